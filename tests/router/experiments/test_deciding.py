"""Decisions, reports and events of a ramp: over HTTP, on the real router, the real controller, a control plane."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from deployments.cli.main import main
from tests.router.conftest import Rig
from tests.router.experiments.ramp_rig import EXPERIMENT, RampRig, ramp_rig
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until


@pytest.fixture
def ramped(rig: Rig, servers: ServerPool, tmp_path: Path) -> Iterator[RampRig]:
    with ramp_rig(rig, servers, tmp_path) as ramped:
        yield ramped


class EventListener:
    """A client of `/api/events`, in a thread until its stream ends or the server does."""

    def __init__(self, url: str, **query: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._thread = Thread(target=self._read, args=(url, query), daemon=True)
        self._thread.start()

    def _read(self, url: str, query: dict[str, str]) -> None:
        with suppress(httpx.HTTPError), httpx.stream("GET", f"{url}/api/events", params=query, timeout=60) as stream:
            kind = ""
            for line in stream.iter_lines():
                kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
                if line.startswith("data: "):
                    self.events.append({"kind": kind, **json.loads(line.removeprefix("data: "))})

    def until(self, kind: str, text: str = "") -> dict[str, Any]:
        return wait_until(
            lambda: [event for event in self.events if event["kind"] == kind and text in event["text"]],
            lambda: self.events,
        )[-1]


def test_a_step_is_decided_applied_and_reported(ramped: RampRig) -> None:
    seen = ramped.until(lambda acting: acting["step"] == 0 and acting["next_share"] == 25 and acting["revision"] > 0)
    listening = EventListener(ramped.url, since="0")
    listening.until("ramp", "green 1 %")
    assert "a manager's `advance`" in ramped.report()
    assert "switchyard experiments decide first advance --reason TEXT" in ramped.report()

    dry = httpx.post(
        f"{ramped.url}{EXPERIMENT}/decision?dry_run=true", json={"action": "advance", "reason": "what if"}
    ).json()
    assert (dry["before"], dry["after"]) == ({"blue": 99, "green": 1}, {"blue": 75, "green": 25})
    assert ramped.get().headers["etag"] == seen.headers["etag"]
    made = ramped.decide("advance", seen.headers["etag"])
    assert made.status_code == 200, made.text
    ramped.until(lambda acting: acting["share"] == 25 and acting["step"] == 1)
    assert ramped.traffic == {"blue": 75, "green": 25}
    decision = listening.until("decision")
    assert (decision["action"], decision["reason"], decision["endpoint"]) == ("advance", "as agreed", "chat")
    assert listening.until("plan", "green 25 %")["by"] == "experiment first"
    assert listening.until("done")["weights"] == {"blue": 75, "green": 25}
    assert "the ramp is at step 2, and the treatment has 25 % of the traffic" in " ".join(ramped.report().split())
    assert ramped.decide("advance", seen.headers["etag"]).status_code == 412


def test_a_rollback_and_the_way_back(ramped: RampRig) -> None:
    ramped.until(lambda acting: acting["revision"] > 0)
    body = {"action": "rollback", "reason": "what if"}
    dry = httpx.post(f"{ramped.url}{EXPERIMENT}/decision?dry_run=true", json=body).json()
    assert (dry["after"], dry["stopped"], dry["state"]) == ({"blue": 100, "green": 0}, ["green"], "paused")
    rolled = ramped.decide("rollback", "*")
    assert rolled.status_code == 200, rolled.text
    seen = ramped.until(lambda acting: acting["share"] == 0 and not acting["stopped"])
    assert ramped.traffic == {"blue": 100, "green": 0}
    text = ramped.report()
    assert "Paused" in text
    assert "To go on: switchyard experiments decide first resume --reason TEXT" in text
    assert "rollback" in text.partition("What is done about it")[2]
    assert ramped.decide("resume", seen.headers["etag"]).status_code == 200
    ramped.until(lambda acting: acting["state"] == "running" and acting["share"] == 1)


def test_an_inapplicable_decision_is_refused_with_the_reason(ramped: RampRig) -> None:
    seen = ramped.until(lambda acting: acting["revision"] > 0)
    body = {"action": "pause", "reason": "what if"}
    dry = httpx.post(f"{ramped.url}{EXPERIMENT}/decision?dry_run=true", json=body).json()
    assert (dry["before"], dry["stopped"], dry["state"]) == (dry["after"], [], "paused")
    refused = ramped.decide("resume", seen.headers["etag"])
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        409,
        "The experiment runs: there is nothing to resume",
    )


def test_the_command_decides_and_the_metrics_say_so(ramped: RampRig, capsys: pytest.CaptureFixture[str]) -> None:
    ramped.until(lambda acting: acting["revision"] > 0)
    decide = ["experiments", "decide", "first", "pause", "--reason", "lunch", "--yes", "--url", ramped.url]
    assert main(decide) == 0
    shown = capsys.readouterr()
    assert "Now: running, green has 1 % of the traffic (step 1)." in shown.err
    assert "Now: paused, green has 1 % of the traffic (step 1)." in shown.out
    assert "until somebody resumes it" in shown.out
    metrics = httpx.get(f"{ramped.url}/metrics").text
    assert 'switchyard_experiment_state{endpoint="chat",experiment="first",state="paused"} 1.0' in metrics
    assert 'switchyard_experiment_step{endpoint="chat",experiment="first"} 1.0' in metrics
    assert 'switchyard_experiment_share{endpoint="chat",experiment="first"} 1.0' in metrics
    assert main(["experiments", "list", "--url", ramped.url]) == 0
    assert "paused" in capsys.readouterr().out


def test_a_client_that_comes_back_has_missed_nothing_though_the_controller_was_replaced(ramped: RampRig) -> None:
    ramped.until(lambda acting: acting["revision"] > 0)
    first = EventListener(ramped.url, since="0")
    begun = first.until("ramp")
    ramped.controller.replaced()
    ramped.decide("pause", "*").raise_for_status()
    second = EventListener(ramped.url, since=str(begun["at"]))
    second.until("decision", "pause")
    first.until("decision", "pause")
    assert [event["kind"] for event in second.events].count("ramp") == 0
    assert [event["kind"] for event in first.events if event["at"] > begun["at"]] == [
        event["kind"] for event in second.events
    ]
