"""Questions to the controller of experiments; its refusals as errors of this server."""

import json
from collections.abc import Callable, Mapping

from app.errors import (
    BadRequest,
    ClientError,
    Conflict,
    MethodNotAllowed,
    NotFound,
    PreconditionFailed,
    SwitchyardError,
    Unavailable,
    UpstreamError,
)
from app.exposures.controller_client import Answer, ControllerClient

_REFUSALS: Mapping[int, type[ClientError]] = {400: BadRequest, 404: NotFound, 405: MethodNotAllowed, 409: Conflict}


class ControllerAway(UpstreamError):
    """The controller does not answer. `answered_at`: its last answer, in Unix seconds; None: none since this router
    started."""

    kind = "unavailable"

    def __init__(self, cause: UpstreamError, answered_at: float | None) -> None:
        super().__init__(cause.message, retry_after=cause.retry_after)
        self.status, self.answered_at = cause.status, answered_at


class WatchedController:
    """A `ControllerClient` that knows when the controller answered last. `clock`: Unix seconds."""

    def __init__(self, controller: ControllerClient, clock: Callable[[], float]) -> None:
        self._controller, self._clock = controller, clock
        self._answered_at: float | None = None

    async def send(self, batch: bytes) -> bytes:
        """Like the controller's `send`, with the same errors."""
        acknowledgement = await self._controller.send(batch)
        self._answered_at = self._clock()
        return acknowledgement

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        """Like the controller's `ask`; raises ControllerAway if it does not answer."""
        try:
            answer = await self._controller.ask(method, path, query, body)
        except UpstreamError as error:
            raise ControllerAway(error, self._answered_at) from error
        self._answered_at = self._clock()
        return answer


async def ask(
    controller: ControllerClient | None,
    method: str,
    path: str,
    query: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Answer:
    """The controller's answer, unless it is a refusal.

    Raises the ClientError that it refuses with (PreconditionFailed with the present state, which is the answer), and
    Unavailable if there is no controller or if it does not answer.
    """
    if controller is None:
        raise no_controller()
    answer = await controller.ask(method, path, query or {}, body)
    if answer.status < 400:
        return answer
    raise refusal(answer)


def no_controller() -> Unavailable:
    """The error of a router without a controller."""
    return Unavailable("No controller of experiments runs beside this router: add the application `experiments`")


def refusal(answer: Answer) -> SwitchyardError:
    """The error that an answer of at least 400 is: PreconditionFailed with the present state, which is the answer."""
    if answer.status == PreconditionFailed.status:
        return PreconditionFailed("This was meant for another state", current=json.loads(answer.body))
    message, param = _message(answer)
    if (error := _REFUSALS.get(answer.status)) is not None:
        return error(message, param=param)
    return Unavailable(message)


def _message(answer: Answer) -> tuple[str, str | None]:
    try:
        content = json.loads(answer.body)
        return content["message"], content["param"]
    except (ValueError, KeyError, TypeError):
        return f"The controller of experiments failed with status {answer.status}; see its log", None
