"""Following a server's events: streams end, routers come and go, and no event is missed or printed twice."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from deployments.cli.experiments_decisions import RETRY_S, consequence, follow, frames, is_about, line_of
from deployments.cli.main import main
from deployments.cli.options import CommandError, ExitCode
from deployments.invocation import command
from tests.support.processes.servers import serve

AWAY = CommandError("it cannot be reached", ExitCode.UNREACHABLE)


@pytest.mark.parametrize(
    ("step", "next_share", "what"), [(None, None, "the experiment"), (None, 5, "the ramp"), (2, None, "the ramp")]
)
def test_a_rollback_pauses_the_ramp_if_there_is_one(step: int | None, next_share: int | None, what: str) -> None:
    acting = {"step": step, "next_share": next_share, "share": 50, "cause": ""}
    summary = {"control": "blue", "treatments": ["green"], "acting": acting, "alarm_kinds": []}
    assert consequence(summary, "rollback", None) == f"blue gets the traffic of green at once, and {what} pauses."


@pytest.mark.parametrize(
    ("cause", "kinds", "clears"),
    [
        ("alarm", ["guardrail"], True),
        ("superseded", ["standing"], True),
        ("decision", ["guardrail"], False),
        ("decision", [], False),
    ],
)
def test_a_resumption_says_whether_it_clears_alarms(cause: str, kinds: list[str], clears: bool) -> None:
    acting = {"step": 1, "next_share": 5, "share": 50, "cause": cause}
    summary = {"control": "blue", "treatments": ["green"], "acting": acting, "alarm_kinds": kinds}
    assert consequence(summary, "resume", None).endswith("That clears the guardrails' alarms.") == clears


class Streams:
    """A server that sends these streams one after the other; an error ends a stream, or replaces one."""

    def __init__(self, *streams: list[str | CommandError]) -> None:
        self._streams = iter(streams)
        self.calls: list[str | None] = []

    def lines(self, path: str, last_event: str | None) -> Iterator[str]:
        self.calls.append(last_event)
        for line in next(self._streams):
            if isinstance(line, CommandError):
                raise line
            yield from line.split("\n")


def event(number: int) -> str:
    return f'id: {number}\nevent: alarm\ndata: {{"n": {number}}}\n'


def followed(streams: Streams, count: int, since: str | None = None) -> tuple[list[int], list[str], list[float]]:
    said: list[str] = []
    slept: list[float] = []
    events = follow(streams, since, said.append, slept.append)  # type: ignore[arg-type]
    return [event["n"] for event in islice(events, count)], said, slept


def test_the_next_stream_goes_on_after_the_last_event() -> None:
    streams = Streams([": hello\n", event(1), event(2)], ["id: 5\n", ": nothing new\n"], [event(6)])
    assert followed(streams, 3, since="0") == ([1, 2, 6], [], [])
    assert streams.calls == ["0", "2", "5"]


def test_an_event_that_is_cut_off_comes_again() -> None:
    streams = Streams([event(1), "id: 2", "event: alarm", AWAY], [event(2)])
    assert followed(streams, 2)[0] == [1, 2]
    assert streams.calls == [None, "1"]


def test_an_unreachable_server_is_reported_once() -> None:
    streams = Streams([event(1), AWAY], [AWAY], [AWAY], [event(2)])
    assert followed(streams, 2) == ([1, 2], ["it cannot be reached; trying again"], [RETRY_S] * 2)


def test_a_stream_that_ends_at_once_is_not_reopened_immediately() -> None:
    assert followed(Streams([], [], [event(1)]), 1) == ([1], [], [RETRY_S] * 2)


def test_each_absence_of_the_controller_is_reported_once() -> None:
    away = ": the controller does not answer\n"
    streams = Streams([away, away, event(1), away], [away, event(2)])
    assert followed(streams, 2)[:2] == ([1, 2], ["the controller does not answer"] * 2)


@pytest.mark.parametrize(
    "streams", [[[AWAY]], [[event(1)], [CommandError("no access", ExitCode.DENIED)]]], ids=["first", "refused"]
)
def test_permanent_errors_end_the_command(streams: Any) -> None:
    with pytest.raises(CommandError):
        followed(Streams(*streams), 2)


def test_frames_without_data_are_no_events() -> None:
    read = list(frames(["retry: 1000", ": hello", "", "id: 4", "", 'data: {"n": 1}', "id: 5", "", "data: half"]))
    assert [(frame.id, frame.data, frame.comment) for frame in read] == [
        ("", "", "hello"),
        ("4", "", ""),
        ("5", '{"n": 1}', ""),
    ]


@pytest.mark.parametrize(
    ("about", "is_it"),
    [
        ({"experiment": "exp", "endpoint": "chat"}, True),
        ({"endpoint": "chat"}, True),
        ({}, True),
        ({"experiment": "other", "endpoint": "chat"}, False),
        ({"endpoint": "other"}, False),
    ],
)
def test_an_events_experiment_and_endpoint_are_matched(about: dict[str, str], is_it: bool) -> None:
    assert is_about(about, "exp", "chat") is is_it


def test_a_line() -> None:
    answer = {"at": 1762956300.5, "text": "green is better"}
    at = "2025-11-12 14:05:00 UTC  "
    assert line_of({**answer, "experiment": "exp", "endpoint": "chat"}) == f"{at}exp: green is better"
    assert line_of({**answer, "endpoint": "chat"}) == f"{at}chat: green is better"
    assert line_of(answer) == f"{at}green is better"


@pytest.mark.parametrize("arguments", [["list"], ["report", "x"]])
def test_commands_in_a_text_for_the_terminal_can_be_pasted(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(_: Request) -> PlainTextResponse:
        return PlainTextResponse("made-up ones by `switchyard demo traffic chat`")

    with serve(Starlette(routes=[Route("/api/{path:path}", answer)])) as url:
        assert main(["experiments", *arguments, "--url", url]) == 0
        assert capsys.readouterr().out == f"made-up ones by `{command('demo traffic chat', url)}`\n"
        assert main(["experiments", *arguments, "--url", url, "--format", "markdown"]) == 0
        assert capsys.readouterr().out == "made-up ones by `switchyard demo traffic chat`\n"
