"""Everything that can go wrong with a request, by whose fault it is.

    SwitchyardError                 status
    ├── ClientError                 4xx   the request cannot be served as it is
    │   ├── BadRequest              400   malformed, of the wrong type, out of bounds, contradictory
    │   │   ├── Blocked             400   the endpoint's content filter matches
    │   │   └── WrongTask           400   the endpoint or deployment does not support the task
    │   ├── Unauthorized            401   no credentials, or wrong ones
    │   ├── Forbidden               403   authenticated, but not allowed
    │   ├── NotFound                404   no such endpoint, deployment or route
    │   │   └── UnsupportedRoute    404   a route that only the vendor's own server has
    │   ├── MethodNotAllowed        405
    │   ├── TooSlow                 408
    │   ├── Conflict                409   changed by another request in the meantime
    │   ├── PreconditionFailed      412   the request was made for another state than the present one
    │   ├── TooLarge                413
    │   │   └── HeadersTooLarge     431
    │   ├── UnsupportedMediaType    415   a content coding or a media type that is not read here
    │   ├── Unprocessable           422   well formed, but unsupported by this deployment
    │   │   └── Suspected           422   engines have died of it, perhaps: the fault of none of its clients
    │   ├── PreconditionRequired    428   the request does not name the state it was made for
    │   ├── LimitExceeded           429   one of the caller's limits is reached
    │   │   └── TooManyRefusals     429   too many requests without valid credentials from one address
    │   └── Rejected                4xx   the engine rejected the request
    │       └── ContextExceeded     4xx   the model's context is too short for the prompt, or it and the answer
    ├── UpstreamError               5xx   the deployment failed
    │   ├── Unavailable             503   no connection or no replica
    │   │   ├── AtCapacity          503   no room for another request at present
    │   │   │   └── Queued          503   requests wait for a replica, and no more may
    │   │   ├── Unreachable         503   no connection could be made
    │   │   └── Unanswered          503   the connection ended before an answer
    │   ├── Broken                  502   a failed or incomplete response
    │   │   └── MalformedAnswer     502   status 200, and no answer
    │   └── TimedOut                504   connect, first byte, idle or total
    └── InternalError               500   a bug of the router

A dialect words them (`render_error`); nothing else turns an error into bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

_LONGEST_PARAM = 100

CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's code for a prompt, or a prompt and an answer, that the model's context cannot hold."""


CLIENT_GONE = "client_gone"
"""The kind of a request whose client disconnected."""

CLIENT_TIMEOUT = "client_timeout"
"""The kind of a request that took longer than its client allows, which is less than this server does. Its client got an
error; the deployment is not to blame."""

NO_ENGINE = "no_engine"
"""The kind of a request whose client has waited for an engine, of which there was none, until it disconnected or its
own limit was over: our failure."""


ROUTER_LOST = "router_lost"
"""The kind of a request whose router ended before it: our failure. What its client got is not known."""


def shortened(text: str, longest: int) -> str:
    """`text` with at most `longest` characters: an ellipsis replaces the middle of a longer one."""
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 2
    return f"{text[: longest - 1 - tail]}…{text[-tail:]}"


class SwitchyardError(Exception):
    """One failed request.

    `message` is for the caller and holds neither secrets nor prompt text; `kind` is a stable word that dialects
    map to their own codes; `param` is the path of the offending field (``messages[0].role``) or None;
    `retry_after` is in seconds. `message` and `param` lose the middle if they are long, as they may quote the client.
    """

    status: int = 500
    kind: ClassVar[str] = "internal"
    longest_message: ClassVar[int] = 512
    """In characters; some formats have the message twice."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.message = message
        super().__init__(self.message)
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def message(self) -> str:
        return self._message

    @message.setter
    def message(self, text: str) -> None:
        self._message = shortened(text, self.longest_message)

    @property
    def param(self) -> str | None:
        return self._param

    @param.setter
    def param(self, path: str | None) -> None:
        self._param = None if path is None else shortened(path, _LONGEST_PARAM)


class ClientError(SwitchyardError):
    """The request cannot be served as it is; repeating it does not help, unless `retry_after` is set."""

    status = 400
    kind = "bad_request"
    is_clients_fault: ClassVar[bool] = True
    """Whether it counts as the client's fault, also against the caller's limits."""


class BadRequest(ClientError):
    """Malformed, of the wrong type, out of bounds or contradictory."""


class Blocked(BadRequest):
    """The text matches a pattern of the endpoint's content filter."""

    kind = "content_filter"


class WrongTask(BadRequest):
    """The endpoint or deployment that the client named does not support the task."""

    kind = "wrong_task"


class Unauthorized(ClientError):
    """No credentials, or wrong ones."""

    status = 401
    kind = "unauthorized"


class Forbidden(ClientError):
    """The caller is authenticated, but may not use the requested resource."""

    status = 403
    kind = "forbidden"


class LimitExceeded(ClientError):
    """The caller has reached a limit. `message` names it; `retry_after` is the time until it frees."""

    status = 429
    kind = "limit_exceeded"


class TooManyRefusals(LimitExceeded):
    """Too many requests without valid credentials came from one address; with valid ones it would be served."""

    kind = "unauthorized_throttled"


class NotFound(ClientError):
    """No such endpoint, deployment, model or route."""

    status = 404
    kind = "not_found"


class UnsupportedRoute(NotFound):
    """The vendor's own server has this route, for `missing`; `instead` is what to use here. `taken`: the sentence about
    the methods that the path takes, if there are any."""

    def __init__(self, missing: str, instead: str, taken: str = "") -> None:
        self.missing = f"This server has no {missing}; use {instead}"
        super().__init__(f"{taken}. {self.missing}" if taken else self.missing, code="unsupported_route")


class MethodNotAllowed(ClientError):
    """The route exists for other methods: for those in `allowed`, if they are known."""

    status = 405
    kind = "method_not_allowed"

    def __init__(self, message: str, *, allowed: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


def taken(path: str, allowed: Sequence[str], method: str) -> str:
    """The sentence, without its end, about the methods that a path takes instead of `method`."""
    return f"{path} takes {' or '.join(name for name in allowed if name != 'HEAD')}, not {method}"


class TooSlow(ClientError):
    """The client took too long to send its request."""

    status = 408
    kind = "too_slow"


class Conflict(ClientError):
    """The target of the change was changed in the meantime, or is being changed: read it again, then repeat."""

    status = 409
    kind = "conflict"


class PreconditionFailed(ClientError):
    """The request was made for another state than the present one, which is `current` (plain data)."""

    status = 412
    kind = "precondition_failed"

    def __init__(self, message: str, *, current: Mapping[str, Any]) -> None:
        super().__init__(message, param="If-Match")
        self.current = current


class PreconditionRequired(ClientError):
    """The request does not name the state for which it was made."""

    status = 428
    kind = "precondition_required"


class TooLarge(ClientError):
    """The body is larger than the router accepts."""

    status = 413
    kind = "too_large"


class HeadersTooLarge(TooLarge):
    """The headers are larger than the router accepts."""

    status = 431


class UnsupportedMediaType(ClientError):
    """The body's content coding or media type is not read here."""

    status = 415
    kind = "unsupported_media_type"


class Unprocessable(ClientError):
    """Well formed, but unsupported by this deployment. `value` is the value of `param`."""

    status = 422
    kind = "unprocessable"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, value: Any = None) -> None:
        super().__init__(message, param=param, code=code)
        self.value = value


class Suspected(Unprocessable):
    """Engines have died while they worked on the request, perhaps of it. Its client has done nothing wrong."""

    kind = "suspected"
    is_clients_fault = False


class Rejected(ClientError):
    """The engine rejected the request with its `status`. `value` is the value of `param`, if known."""

    kind = "rejected"
    value: Any = None

    def __init__(self, message: str, *, status: int, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status


class ContextExceeded(Rejected):
    """The prompt, or the prompt and the tokens that the answer may have, exceed the model's context.

    In tokens: the `context`; the `prompt`, None if that is unknown; `wanted` for the answer. `is_exact`: `prompt` is no
    lower bound. The message has OpenAI's words, and so has the code.
    """

    def __init__(self, context: int, prompt: int | None, wanted: int, *, is_exact: bool, status: int = 400) -> None:
        self.context, self.prompt, self.wanted, self.is_exact = context, prompt, wanted, is_exact
        super().__init__(self._sentence("messages"), status=status, code=CONTEXT_EXCEEDED)

    @property
    def is_prompt_too_long(self) -> bool:
        """Whether the prompt alone leaves no room for an answer's first token, as far as is known."""
        return self.prompt is not None and self.prompt >= self.context

    def named(self, param: str) -> None:
        """Sets the field with the text, also in the message."""
        self.param, self.message = param, self._sentence(param)

    def _sentence(self, field: str) -> str:
        about, limit = (
            "" if self.is_exact else "at least ",
            f"This model's maximum context length is {self.context} tokens",
        )
        if self.prompt is None and not self.wanted:
            return f"{limit}. Please reduce the length of the {field}."
        if self.is_prompt_too_long or not self.wanted:
            return (
                f"{limit}. However, your {field} resulted in {about}{self.prompt} tokens. Please reduce the length of "
                f"the {field}."
            )
        parts = f"{self.wanted} in the completion"
        if self.prompt is not None:
            total = f"{about}{self.prompt + self.wanted}"
            parts = f"{about}{self.prompt} in the {field}, {parts}"
        else:
            total = f"more than {self.wanted}"
        return (
            f"{limit}. However, you requested {total} tokens ({parts}). Please reduce the length of the {field} or "
            "completion."
        )


class UpstreamError(SwitchyardError):
    """The deployment failed, not the client: another deployment may succeed.

    `is_fault`: the failure counts against the deployment's health; being busy does not. `engine_message`: the engine's
    own words, or "". They may quote the prompt, and are not for the caller. `engine`: its name, or "".
    """

    status = 502
    kind = "upstream"
    engine = ""

    def __init__(self, message: str, *, retry_after: float | None = None, engine_message: str = "") -> None:
        super().__init__(message, retry_after=retry_after)
        self.engine_message = shortened(engine_message, self.longest_message)

    @property
    def is_fault(self) -> bool:
        return True


class Unavailable(UpstreamError):
    """No connection, no replica, or (then with `retry_after`) not at present."""

    status = 503
    kind = "unavailable"

    @property
    def is_fault(self) -> bool:
        return self.retry_after is None


class AtCapacity(Unavailable):
    """There is no room for another request, which may be served later: `retry_after`."""

    kind = "at_capacity"


class Queued(AtCapacity):
    """The ingress has no replica, and no room for another request that waits for one."""


class Unreachable(Unavailable):
    """No connection could be made: this holds for every request, regardless of its content."""


class Unanswered(Unavailable):
    """The connection ended before an answer: the deployment may have worked on the request, and died."""


class Broken(UpstreamError):
    """The response is a failure, or incomplete."""

    kind = "broken"


class Incomplete(Broken):
    """The response ended before it was complete, or the engine said that it has died."""


Death = Unanswered | Incomplete
"""An engine may have died, perhaps of the request."""


class MalformedAnswer(Broken):
    """The deployment said 200, and what followed is no answer to the request."""


class TimedOut(UpstreamError):
    """The connection, the first byte or the next chunk took too long."""

    status = 504
    kind = "timeout"


class DeadlinePassed(TimedOut):
    """The time for the whole request is over, which the client may have set itself."""

    @property
    def is_fault(self) -> bool:
        return False


class InternalError(SwitchyardError):
    """A bug of the router."""


def _clients_faults(error: type[ClientError]) -> Iterator[str]:
    if error.is_clients_fault:
        yield error.kind
    for more in error.__subclasses__():
        yield from _clients_faults(more)


_REFUSALS = frozenset(_clients_faults(ClientError))
"""The kinds of errors that are the client's fault."""

Outcome = Literal["answered", "errors", "refused", "left"]
"""What became of a request: `errors`, also where a limit of its own time has cut it, `refused` for its client's fault,
or `left` by its client. Pages say "failed" for `errors`, and "not answered" for all three."""


def outcome_of(error: str, status: int = 200) -> Outcome:
    """The outcome of a request with an error of this kind, whatever its status: a stream may fail after a 200. Without
    an error the status tells it."""
    if not error and status >= 400:
        return "errors" if status >= 500 else "refused"
    if not error:
        return "answered"
    if error == CLIENT_GONE:
        return "left"
    return "refused" if error in _REFUSALS else "errors"


def why_failed(error: SwitchyardError) -> str:
    """Why the call of a deployment has failed, in words that follow the deployment's name; without its own words."""
    match error:
        case Unreachable():
            return "it could not be reached"
        case Unanswered():
            return "its connection ended before an answer"
        case Unavailable():
            return "it is not available" if error.is_fault else "it had no room"
        case Incomplete():
            return "its answer ended before it was complete"
        case MalformedAnswer():
            return "its answer was malformed"
        case DeadlinePassed():
            return "the time for the whole request was over"
        case TimedOut():
            return "it did not answer in time"
        case ClientError():
            return "it rejected the request" if isinstance(error, Rejected) else "the request was refused"
    return "it failed"
