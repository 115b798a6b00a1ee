"""The controller's answers on the router: taken, or raised as errors."""

from collections.abc import Mapping

import pytest

from app.errors import BadRequest, Conflict, NotFound, SwitchyardError, Unavailable
from app.ledger.controller_client import Answer
from app.server.controller_answers import ask


class Says:
    """A controller that says one thing."""

    def __init__(self, status: int, body: bytes) -> None:
        self._answer = Answer(status, body)

    async def send(self, batch: bytes) -> bytes:
        raise NotImplementedError

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        return self._answer


async def test_a_success_is_passed_on() -> None:
    assert (await ask(Says(202, b"{}"), "GET", "/series")).status == 202


@pytest.mark.parametrize(
    ("status", "error"), [(400, BadRequest), (404, NotFound), (409, Conflict), (503, Unavailable), (500, Unavailable)]
)
async def test_a_refusal_is_an_error_with_its_message(status: int, error: type[SwitchyardError]) -> None:
    with pytest.raises(error, match="the directory is full") as raised:
        await ask(Says(status, b'{"message": "the directory is full", "param": "metric"}'), "GET", "/series")
    if status < 500:
        assert raised.value.param == "metric"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}"])
async def test_an_answer_of_something_else_is_a_failure(body: bytes) -> None:
    with pytest.raises(Unavailable, match="failed with status 502"):
        await ask(Says(502, body), "GET", "/series")


async def test_without_a_controller_the_fix_is_named() -> None:
    with pytest.raises(Unavailable, match="add the application `experiments`"):
        await ask(None, "GET", "/series")
