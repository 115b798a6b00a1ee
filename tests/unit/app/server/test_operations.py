"""The controller's answers on the router: passed on, or raised as errors."""

from collections.abc import Mapping

import pytest

from app.errors import BadRequest, Conflict, NotFound, SwitchyardError, TimedOut, Unavailable
from app.exposures.controller_client import Answer
from app.server.operations import ControllerAway, WatchedController, ask


class FixedController:
    """A controller that always gives one answer."""

    def __init__(self, status: int, body: bytes) -> None:
        self._answer = Answer(status, body)

    async def send(self, batch: bytes) -> bytes:
        raise NotImplementedError

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        return self._answer


async def test_a_success_is_passed_on() -> None:
    assert (await ask(FixedController(202, b"{}"), "GET", "/series")).status == 202


@pytest.mark.parametrize(
    ("status", "error"), [(400, BadRequest), (404, NotFound), (409, Conflict), (503, Unavailable), (500, Unavailable)]
)
async def test_a_refusal_is_an_error_with_its_message(status: int, error: type[SwitchyardError]) -> None:
    with pytest.raises(error, match="the directory is full") as raised:
        await ask(FixedController(status, b'{"message": "the directory is full", "param": "metric"}'), "GET", "/series")
    if status < 500:
        assert raised.value.param == "metric"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}"])
async def test_an_answer_of_something_else_is_a_failure(body: bytes) -> None:
    with pytest.raises(Unavailable, match="failed with status 502"):
        await ask(FixedController(502, body), "GET", "/series")


async def test_without_a_controller_the_fix_is_named() -> None:
    with pytest.raises(Unavailable, match="add the application `experiments`"):
        await ask(None, "GET", "/series")


class UnreliableController:
    """A controller that answers while it is available."""

    def __init__(self) -> None:
        self.is_there = True

    async def send(self, batch: bytes) -> bytes:
        if not self.is_there:
            raise TimedOut("too late")
        return b"taken"

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        if not self.is_there:
            raise TimedOut("too late")
        return Answer(503, b"{}")


async def test_a_controller_that_is_away_is_known_to_have_answered_at_a_time() -> None:
    away, now = UnreliableController(), 100.0
    watched = WatchedController(away, lambda: now)
    away.is_there = False
    with pytest.raises(ControllerAway, match="too late") as never:
        await ask(watched, "GET", "/experiments")
    assert (never.value.answered_at, never.value.status) == (None, 504)
    away.is_there, now = True, 110.0
    assert await watched.send(b"batch") == b"taken"
    away.is_there, now = False, 120.0
    with pytest.raises(TimedOut):
        await watched.send(b"batch")
    with pytest.raises(ControllerAway) as sent:
        await ask(watched, "GET", "/experiments")
    assert sent.value.answered_at == 110
    away.is_there, now = True, 130.0
    with pytest.raises(Unavailable):  # a refusal is an answer
        await ask(watched, "GET", "/experiments")
    away.is_there = False
    with pytest.raises(ControllerAway) as calls:
        await ask(watched, "GET", "/experiments")
    assert calls.value.answered_at == 130
