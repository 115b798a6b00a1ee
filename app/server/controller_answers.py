"""Questions to the controller of experiments; its refusals as errors of this server."""

import json
from collections.abc import Mapping

from app.errors import (
    BadRequest,
    ClientError,
    Conflict,
    MethodNotAllowed,
    NotFound,
    PreconditionFailed,
    SwitchyardError,
    Unavailable,
)
from app.ledger.controller_client import Answer, ControllerClient

_REFUSALS: Mapping[int, type[ClientError]] = {400: BadRequest, 404: NotFound, 405: MethodNotAllowed, 409: Conflict}


async def ask(
    controller: ControllerClient | None,
    method: str,
    path: str,
    query: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Answer:
    """The controller's answer, if it is none of refusal.

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
    """What a router without a controller answers."""
    return Unavailable("No controller of experiments runs beside this router: add the application `experiments`")


def refusal(answer: Answer) -> SwitchyardError:
    """The error that an answer of at least 400 is: PreconditionFailed with the present state, which is the answer."""
    if answer.status == PreconditionFailed.status:
        return PreconditionFailed("This was meant for another state", current=json.loads(answer.body))
    message, param = _told(answer)
    if (error := _REFUSALS.get(answer.status)) is not None:
        return error(message, param=param)
    return Unavailable(message)


def _told(answer: Answer) -> tuple[str, str | None]:
    try:
        content = json.loads(answer.body)
        return content["message"], content["param"]
    except (ValueError, KeyError, TypeError):
        return f"The controller of experiments failed with status {answer.status}; its log says why", None
