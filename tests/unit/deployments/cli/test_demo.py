"""The questions of `switchyard demo traffic`, their times and users."""

import re
import time
from collections import Counter
from itertools import islice

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.cli.demo import DemoTraffic, TrafficSender, questions
from deployments.cli.main import main
from deployments.cli.options import ExitCode
from tests.support.processes.servers import serve

PROGRESS = r"(?m)^\d+ s: (\d+) requests?, \d+ waiting, (\d+) failed$"

PLAN = DemoTraffic(endpoint="chat", users=50, rate=4.0, seconds=500.0, max_tokens=8, seed=3)


def test_the_same_seed_asks_the_same_questions() -> None:
    assert list(islice(questions(PLAN), 50)) == list(islice(questions(PLAN), 50))


def test_questions_come_at_the_rate_until_the_time_is_over() -> None:
    calls = list(questions(PLAN))
    assert sum(question.after_s for question in calls) <= PLAN.seconds
    assert len(calls) == pytest.approx(PLAN.rate * PLAN.seconds, rel=0.1)


def test_users_differ_in_how_often_they_ask_and_prompts_in_length() -> None:
    calls = list(questions(PLAN))
    per_user = Counter(question.session for question in calls)
    assert len(per_user) > PLAN.users / 2
    assert max(per_user.values()) > 5 * min(per_user.values())
    assert max(len(question.prompt) for question in calls) > 5 * min(len(question.prompt) for question in calls)


@pytest.mark.parametrize(
    ("status", "code"), [(400, ExitCode.WRONG), (401, ExitCode.DENIED), (403, ExitCode.DENIED), (404, ExitCode.WRONG)]
)
def test_a_refusal_that_stays_one_ends_it_at_once(
    status: int, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = 0

    async def refuse(request: Request) -> Response:
        nonlocal asked
        asked += 1
        return JSONResponse({"error": {"message": "The model 'nope' does not exist"}}, status)

    with serve(Starlette(routes=[Route("/v1/chat/completions", refuse, methods=["POST"])])) as url:
        started = time.monotonic()
        assert main(["demo", "traffic", "nope", "--url", url, "--rate", "0.02", "--seed", "1"]) == code
    assert time.monotonic() - started < 10  # the second question would come after a minute
    assert asked == 1
    assert capsys.readouterr() == ("", "The model 'nope' does not exist\n")


async def test_it_says_how_far_it_is_before_its_end() -> None:
    said: list[str] = []

    async def answer(request: Request) -> Response:
        return JSONResponse({"error": {"message": "busy"}}, 503)

    plan = DemoTraffic(endpoint="chat", users=5, rate=30.0, seconds=1.0, max_tokens=1, seed=1)
    with serve(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])) as url:
        await TrafficSender(url, None, plan, say=said.append, every_s=0.3).run()
    announced, *lines = said
    assert announced == f"Sending 30 requests/s to {url} for {1 / 60:g} min, with --seed 1; Ctrl-C ends it."
    assert len(lines) >= 2
    requests, failed = zip(*re.findall(PROGRESS, "\n".join(lines)), strict=True)
    assert len(requests) == len(lines)
    assert sorted(map(int, requests)) == [*map(int, requests)]
    assert 0 < int(failed[-1]) <= int(requests[-1])


def test_a_server_that_is_not_there_ends_it_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "traffic", "chat", "--url", "http://127.0.0.1:9"]) == ExitCode.UNREACHABLE
    assert capsys.readouterr().err.startswith("http://127.0.0.1:9 cannot be reached: ")
