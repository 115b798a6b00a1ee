"""How a request over HTTP fails. Messages hold no header and no body."""


class HttpError(Exception):
    """A request without a complete response."""


class NotConnected(HttpError):
    """No connection could be made: nobody has seen the request."""


class ConnectTimedOut(HttpError):
    """Making the connection took too long."""


class Disconnected(HttpError):
    """The connection ended before the head of a response: the server may have seen the request."""


class Malformed(HttpError):
    """What came is no HTTP response, or ended before it was complete."""
