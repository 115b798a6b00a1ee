"""An experiment on two real variants: applied by `deploy`, fed by the official SDK, analysed by its own application."""

import asyncio
import json
import math
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from tests.real.conftest import Application, reconfigured
from tests.support.processes.launcher import run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

NAME = "trial"
BLUE, GREEN = "smollm2-blue", "smollm2-green"
WINDOW_S = 8
"""On a busy machine, some answers take longer."""
EXPERIMENT: dict[str, Any] = {
    "endpoint": "chat",
    "control": BLUE,
    "treatments": [GREEN],
    "primary": [{"metric": "ttft", "minimal_effect": 0.5}],  # few requests must suffice for an interval
    "secondary": [
        {"metric": "tokens_per_second", "minimal_effect": 0.5},
        {"metric": "thumbs", "minimal_effect": 0.05},
    ],
    "feedback": {"thumbs": {"type": "boolean", "window_s": WINDOW_S}},
}
SESSIONS = 80


class Turn(NamedTuple):
    """An answer as its client sees it."""

    session: int
    request_id: str
    answer_id: str
    deployment: str
    scored_within_s: float = math.inf
    """From before the question until its score was accepted."""

    @property
    def thumb(self) -> bool:
        """Its score."""
        return self.session % 2 == 0


@pytest.fixture(scope="module")
def experiment(application: Application, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """The application while the experiment runs; its own configuration is restored afterwards."""

    def declare(user_config: dict[str, Any]) -> None:
        user_config["endpoints"]["chat"] |= {"traffic": {BLUE: 50, GREEN: 50}, "sticky": {"by": "conversation"}}
        user_config["experiments"] = {NAME: EXPERIMENT}

    with reconfigured(application, tmp_path_factory.mktemp("experiment") / "serve_config.yaml", declare):
        wait_until(lambda: report_of(application) is not None)
        yield application
    wait_until(lambda: report_of(application) is None)


@pytest.fixture(scope="module")
def turns(experiment: Application) -> list[Turn]:
    """Sends two turns of every session with the official SDK, and a score for each."""
    return asyncio.run(_talk(experiment.url))


async def _talk(url: str) -> list[Turn]:
    sdk: Any = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120)
    waiting, turns = iter(range(SESSIONS)), list[Turn]()

    async def work() -> None:
        for session in waiting:
            for question in ("Name a color.", "Another one."):
                since = time.monotonic()
                turn = await _turn(sdk, session, question)
                score = {"request_id": turn.answer_id, "metric": "thumbs", "value": turn.thumb}
                answer = await http.post("/api/feedback", json=score)
                assert (answer.status_code, answer.json()["accepted"]) == (202, 1)
                turns.append(turn._replace(scored_within_s=time.monotonic() - since))

    async with sdk, httpx.AsyncClient(base_url=url, timeout=30) as http:
        await asyncio.gather(*(work() for _ in range(12)))
    return turns


async def _turn(sdk: Any, session: int, question: str) -> Turn:
    answer = await sdk.chat.completions.with_raw_response.create(
        model="chat",
        messages=[{"role": "user", "content": question}],
        max_tokens=4,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"x-session-id": f"session-{session}"},
    )
    ids = {chunk.id async for chunk in answer.parse()}
    (answer_id,) = ids
    headers = answer.headers
    return Turn(session, headers["x-request-id"], answer_id, headers["azureml-model-deployment"])


def report_of(application: Application, requests: int = 0) -> dict[str, Any] | None:
    """The report once it has this many requests; None before, or if there is no report."""
    answer = httpx.get(f"{application.url}/api/experiments/{NAME}/report", timeout=30)
    if answer.status_code != 200:
        return None
    report: dict[str, Any] = answer.json()
    return report if sum(report["requests"].values()) >= requests else None


def switchyard(application: Application, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `switchyard experiments` like an operator."""
    url = ("--url", application.url)
    return run("experiments", *arguments, *url, directory=application.directory, timeout_s=60)


def test_the_report_has_numbers_for_both_variants(experiment: Application, turns: list[Turn]) -> None:
    report = wait_until(lambda: report_of(experiment, len(turns)))
    counts = {name: sum(turn.deployment == name for turn in turns) for name in (BLUE, GREEN)}
    assert report["requests"] == counts
    assert report["units"] == {name: count // 2 for name, count in counts.items()}
    assert report["served"] == {name: {name: count} for name, count in counts.items()}
    assert not report["sample_ratio"]["alarm"]
    assert report["alarms"] == []

    def judged() -> bool:
        report = report_of(experiment)
        return report is not None and report["primary"][0]["effect"]["lower"] is not None

    wait_until(judged, lambda: report_of(experiment))
    ttft, speed = (_compared(experiment, metric) for metric in ("ttft", "tokens_per_second"))
    for metric in (ttft, speed):
        assert {value["arm"]: value["requests"] for value in metric["values"]} == counts
        assert all(value["value"] > 0 for value in metric["values"])
    assert ttft["verdict"] in ("undecided", "equivalent", "worse", "better")
    assert ttft["effect"]["lower"] < ttft["effect"]["estimate"] < ttft["effect"]["upper"]


def _compared(application: Application, metric: str) -> dict[str, Any]:
    report = report_of(application)
    assert report is not None
    (found,) = (
        comparison for comparison in [*report["primary"], *report["secondary"]] if comparison["metric"] == metric
    )
    compared: dict[str, Any] = found
    return compared


def test_a_session_is_one_unit_on_one_variant(experiment: Application, turns: list[Turn]) -> None:
    first = [turn for turn in turns if turn.session == 0]
    seen = [_exposure(experiment, id) for turn in first for id in (turn.request_id, turn.answer_id)]
    assert len({exposure["unit"] for exposure in seen}) == 1
    assert {exposure["assigned"] for exposure in seen} == {turn.deployment for turn in first}
    for exposure in seen:
        assert (exposure["dialect"], exposure["stream"], exposure["status"], exposure["reason"]) == (
            "openai",
            True,
            200,
            "sticky",
        )
        assert 0 < exposure["ttft_s"] <= exposure["duration_s"]
        assert (exposure["completion_tokens"], exposure["finish"]) == (4, "length")


def _exposure(application: Application, id: str) -> dict[str, Any]:
    (exposure,) = httpx.get(f"{application.url}/api/requests/{id}", timeout=30).raise_for_status().json()["exposures"]
    recorded: dict[str, Any] = exposure
    return recorded


def test_feedback_counts_once_its_window_is_over(experiment: Application, turns: list[Turn]) -> None:
    """A score that came late does not count. Here, those of slow answers may be late, or their answer forgotten."""

    def scored() -> bool:
        report, values = report_of(experiment), _compared(experiment, "thumbs")["values"]
        without = re.findall(r"(\d+) scores (?:came after|match no answer)", str(report and report["warnings"]))
        counted: int = sum(value["requests"] for value in values)
        return counted + sum(map(int, without)) == len(turns)

    wait_until(scored, lambda: json.dumps(report_of(experiment)), within_s=240)
    for value in _compared(experiment, "thumbs")["values"]:
        own = [turn for turn in turns if turn.deployment == value["arm"]]
        for counted, thumbs in ((value["requests"], own), (value["value"] * value["requests"], _up(own))):
            in_time = [turn for turn in thumbs if turn.scored_within_s < WINDOW_S / 2]
            assert len(in_time) <= round(counted) <= len(thumbs)
        assert value["response_rate"] == pytest.approx(value["requests"] / len(own))


def _up(turns: list[Turn]) -> list[Turn]:
    return [turn for turn in turns if turn.thumb]


def test_the_commands_print_the_same_report(experiment: Application, turns: list[Turn], tmp_path: Path) -> None:
    assert NAME in switchyard(experiment, "list").stdout
    text = switchyard(experiment, "report", NAME)
    assert text.stdout.startswith(f"{NAME} on chat: "), text
    assert f"{BLUE}" in text.stdout
    assert json.loads(switchyard(experiment, "report", NAME, "--format", "json").stdout)["control"] == BLUE
    explained = switchyard(experiment, "explain", "chat", "session-0").stdout
    assert f"chat: {next(turn.deployment for turn in turns if turn.session == 0)}" in explained
