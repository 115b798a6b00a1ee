"""Everything that can go wrong with a request, by whose fault it is.

    SwitchyardError                 status
    ├── ClientError                 4xx   the request cannot be served as it stands
    │   ├── BadRequest              400   malformed, of the wrong type, out of bounds, contradictory
    │   │   └── WrongTask           400   the endpoint or deployment does other things
    │   ├── Unauthorized            401   no credentials, or wrong ones
    │   ├── Forbidden               403   known, and not allowed this
    │   ├── NotFound                404   no such endpoint, deployment or route
    │   ├── MethodNotAllowed        405
    │   ├── TooSlow                 408
    │   ├── Conflict                409   somebody else changed it, or is about to
    │   ├── TooLarge                413
    │   │   └── HeadersTooLarge     431
    │   ├── Unprocessable           422   well formed, and beyond what this deployment can do
    │   ├── LimitExceeded           429   the caller's share is used up for now
    │   └── Rejected                4xx   the engine's own refusal of the request
    ├── UpstreamError               5xx   the deployment failed us
    │   ├── Unavailable             503   nobody answers there
    │   ├── Broken                  502   an answer began and did not end, or makes no sense
    │   └── TimedOut                504   connect, first byte, idle or total
    └── InternalError               500   ours

A dialect words them (`render_error`); nothing else turns an error into bytes.
"""

from typing import Any, ClassVar


class SwitchyardError(Exception):
    """One failed request.

    `message` is for the caller and holds neither secrets nor prompt text; `kind` is a stable word that dialects
    map to their own codes; `param` is the path of the offending field (``messages[0].role``) or None;
    `retry_after` is in seconds.
    """

    status: int = 500
    kind: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after


class ClientError(SwitchyardError):
    """The request cannot be served as it stands; sending it again changes nothing, unless `retry_after` says when."""

    status = 400
    kind = "bad_request"


class BadRequest(ClientError):
    """Malformed, of the wrong type, out of bounds or contradictory."""


class WrongTask(BadRequest):
    """The endpoint or deployment that the client named does other things."""

    kind = "wrong_task"


class Unauthorized(ClientError):
    """No credentials, or wrong ones."""

    status = 401
    kind = "unauthorized"


class Forbidden(ClientError):
    """The caller is known, and may not use what it asks for."""

    status = 403
    kind = "forbidden"


class LimitExceeded(ClientError):
    """The caller has used up what it may for now. `message` says which limit; `retry_after` is when it frees."""

    status = 429
    kind = "limit_exceeded"


class NotFound(ClientError):
    """No such endpoint, deployment, model or route."""

    status = 404
    kind = "not_found"


class MethodNotAllowed(ClientError):
    """The route exists for other methods."""

    status = 405
    kind = "method_not_allowed"


class TooSlow(ClientError):
    """The client took too long to send its request."""

    status = 408
    kind = "too_slow"


class Conflict(ClientError):
    """What the request would change is not as its sender saw it, or is being changed: look again, then repeat it."""

    status = 409
    kind = "conflict"


class TooLarge(ClientError):
    """The body exceeds what the router reads."""

    status = 413
    kind = "too_large"


class HeadersTooLarge(TooLarge):
    """The headers do."""

    status = 431


class Unprocessable(ClientError):
    """Well formed, and beyond what this deployment can do. `value` is what `param` was."""

    status = 422
    kind = "unprocessable"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, value: Any = None) -> None:
        super().__init__(message, param=param, code=code)
        self.value = value


class Rejected(ClientError):
    """The engine rejected the request; `status` is the engine's. `value` is what `param` was, where that is known."""

    kind = "rejected"
    value: Any = None

    def __init__(self, message: str, *, status: int, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status


class UpstreamError(SwitchyardError):
    """The deployment failed, not the client: worth another try elsewhere.

    `is_fault`: it says something about the deployment's health; being busy does not.
    """

    status = 502
    kind = "upstream"

    @property
    def is_fault(self) -> bool:
        return True


class Unavailable(UpstreamError):
    """Nobody answers: no connection, no replica, or (then with `retry_after`) a refusal to take more."""

    status = 503
    kind = "unavailable"

    @property
    def is_fault(self) -> bool:
        return self.retry_after is None


class Broken(UpstreamError):
    """The answer is a failure, or makes no sense."""

    kind = "broken"


class Incomplete(Broken):
    """The answer began and did not end."""


class TimedOut(UpstreamError):
    """The deployment kept us waiting: for the connection, the first byte, or the next chunk."""

    status = 504
    kind = "timeout"


class DeadlinePassed(TimedOut):
    """The time for the whole exchange is over, which may be as short as the client wishes."""

    @property
    def is_fault(self) -> bool:
        return False


class InternalError(SwitchyardError):
    """A defect of the router."""
