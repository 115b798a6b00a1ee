"""Errors of the HTTP client. Messages hold no header and no body."""


class HttpError(Exception):
    """A request without a complete response."""


class NotConnected(HttpError):
    """No connection could be made: no server has seen the request."""


class ConnectTimedOut(HttpError):
    """Making the connection took too long."""


class Disconnected(HttpError):
    """The connection ended before the head of a response: the server may have seen the request."""


class Malformed(HttpError):
    """The bytes received are not an HTTP response, or ended before it was complete."""
