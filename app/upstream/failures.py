"""Maps failures of deployments to our errors. Messages, which callers see, hold no address."""

from typing import Self

from app.engine.errors import engine_error
from app.errors import Broken, Incomplete, SwitchyardError, TimedOut, Unavailable, Unreachable, UpstreamError
from app.internal_api import NO_SERVER_HEADER
from app.upstream.http.client import Response
from app.upstream.http.errors import ConnectTimedOut, Disconnected, HttpError, NotConnected
from app.upstream.target import Target

_MAX_ERROR_BYTES = 64 * 1024

_BACKPRESSURE = b"Request dropped due to backpressure"
"""Ray Serve's answer, as plain text, when a replica's queue is full (`max_queued_requests`): busy counts as healthy.
"""


class translated:
    """Raises the HTTP client's errors, TimeoutError and ValueError of its block as UpstreamError."""

    __slots__ = ("_target",)

    def __init__(self, target: Target) -> None:
        self._target = target

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, HttpError | TimeoutError | ValueError):
            raise failure(error, self._target) from error


def failure(error: HttpError | TimeoutError | ValueError, target: Target) -> UpstreamError:
    """Our error for one of the HTTP client, or a timeout."""
    match error:
        case ConnectTimedOut():
            return TimedOut(f"Timed out connecting to deployment '{target.name}'")
        case TimeoutError():
            return TimedOut(f"Deployment '{target.name}' did not respond in time")
        case NotConnected():
            return Unreachable(f"Deployment '{target.name}' is not available")
        case Disconnected():
            return Unavailable(f"Deployment '{target.name}' is not available")
    return incomplete(target)


def incomplete(target: Target) -> Incomplete:
    """The error for a response that ends too early."""
    return Incomplete(f"Deployment '{target.name}' ended its response before it was complete")


async def failed(response: Response, target: Target) -> SwitchyardError:
    """The error for a response with another status than 200."""
    body = b""
    while len(body) < _MAX_ERROR_BYTES and (part := await response.read()):
        body += part
    status = response.status
    if status in (401, 403):
        return Broken(f"Deployment '{target.name}' rejected the router's credentials")
    if status == 503 and body == _BACKPRESSURE:
        return Unavailable(f"Deployment '{target.name}' is at capacity", retry_after=1)
    if NO_SERVER_HEADER in response.headers or (status >= 500 and not response.media_type.endswith("json")):
        # Not the engine's own error: the ingress in front of it has no replica.
        return Unavailable(f"Deployment '{target.name}' is not available")
    if status in (429, 503):
        return Unavailable(f"Deployment '{target.name}' is at capacity", retry_after=1)
    return engine_error(body, status)
