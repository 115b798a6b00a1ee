"""One caller cannot move an experiment's traffic, whatever it asks of the arm that it prefers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from app.access.keys import append, create
from app.experiments.contract.report import GuardrailStatus, Report
from tests.router.experiments.conftest import LiveRig
from tests.support.engine.fake_engine import chat, chunk, stream
from tests.support.processes.load import Lane, ask_all

NO_HEADERS: Mapping[str, str] = {}
FORCED: dict[str, Any] = {"allowed_token_ids": [2], "max_tokens": 1}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Answer with nothing."}]}


def silent(body: dict[str, Any]) -> Response:
    """An empty answer for a request that brings it about, else text."""
    if "allowed_token_ids" in body or body["messages"] == ASKED["messages"]:
        return stream([chunk("", finish_reason="stop"), "data: [DONE]\n\n"])
    return chat(body)


class Tenants:
    """Callers with a key each. Green is silent where it is asked to be, as if only those who have met it asked."""

    def __init__(self, live: LiveRig, directory: Path, *names: str) -> None:
        self.live, self._keys = live, dict[str, str]()
        for name in (*names, "boss"):
            self._keys[name], record = create(name)
            append(directory / "keys.yaml", record.line)
        live.change(access={"keys_file": str(directory / "keys.yaml"), "managers": ["boss"]})
        live.experiment(guardrails=[{"event": event, "action": "rollback"} for event in ("empty", "error")])
        live.headers = {"authorization": f"Bearer {self._keys['boss']}"}
        live.green.answer = silent
        self._sent = 0

    def _requests(self, caller: str, count: int, fields: dict[str, Any], headers: Mapping[str, str]) -> Iterator[Lane]:
        body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
        lane = Lane("openai", "/v1/chat/completions", body, b"data: [DONE]", True)
        for number in range(count):
            own = {"authorization": f"Bearer {self._keys[caller]}", "x-user": f"user-{self._sent + number}"}
            yield replace(lane, headers={**own, **headers})

    async def ask(self, caller: str, count: int, headers: Mapping[str, str] = NO_HEADERS, **fields: Any) -> Report:
        """Sends requests of new users; the report once they are counted."""
        await ask_all(self.live.url, self._requests(caller, count, fields, headers))
        self._sent += count
        return await self.live.report_of(self._sent)


def rail(report: Report, event: str) -> GuardrailStatus:
    return next(status for status in report.guardrails if status.event == event)


async def test_a_request_that_forces_an_empty_answer_is_no_evidence(live: LiveRig, tmp_path: Path) -> None:
    tenants = Tenants(live, tmp_path, "ann", "eve")
    await tenants.ask("ann", 30)
    report = await tenants.ask("eve", 60, **FORCED)
    status = rail(report, "empty")
    assert status.events == {"blue": 0, "green": 0}
    assert status.of_requests["green"] < report.requests["green"]
    assert [alarm.kind for alarm in report.alarms if alarm.kind in ("guardrail", "one_caller")] == []


async def test_what_one_caller_brings_about_alerts_and_moves_nothing(live: LiveRig, tmp_path: Path) -> None:
    tenants = Tenants(live, tmp_path, "ann", "eve")
    await tenants.ask("ann", 30)
    report = await tenants.ask("eve", 90, **ASKED)
    status = rail(report, "empty")
    assert status.events["green"] > 20
    assert status.one_caller
    assert not status.alarm
    assert [alarm.kind for alarm in report.alarms if alarm.kind in ("guardrail", "one_caller")] == ["one_caller"]
    (text,) = [alarm.text for alarm in report.alarms if alarm.kind == "one_caller"]
    assert "one caller may have brought about all of it: nothing is moved" in text
    report = await tenants.ask("ann", 90, **ASKED)
    assert rail(report, "empty").alarm, "two callers bring about what one cannot"


async def test_the_only_caller_of_a_server_is_believed(live: LiveRig, tmp_path: Path) -> None:
    live.experiment(guardrails=[{"event": "empty", "action": "rollback"}])
    live.green.answer = silent
    body = {"model": "chat", "stream": True, **ASKED}
    lane = Lane("openai", "/v1/chat/completions", body, b"data: [DONE]", True)
    await ask_all(live.url, (replace(lane, headers={"x-user": f"user-{number}"}) for number in range(90)))
    report = await live.report_of(90)
    assert rail(report, "empty").alarm


@pytest.mark.parametrize("patience", ["0.02", "1.5"])
async def test_a_client_that_does_not_wait_fails_no_deployment(live: LiveRig, tmp_path: Path, patience: str) -> None:
    tenants = Tenants(live, tmp_path, "ann", "eve")
    await tenants.ask("ann", 30)
    live.green.answer = lambda body: stream([3.0, chunk("late", finish_reason="stop"), "data: [DONE]\n\n"])
    report = await tenants.ask("eve", 60, {"x-request-timeout-s": patience})
    status = rail(report, "error")
    assert status.events["green"] > 20
    assert not status.alarm
