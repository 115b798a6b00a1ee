"""A ramp on two real variants: a step, a rollback by a guardrail, one by a manager, through Serve's control plane."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import httpx
import pytest

from tests.real.conftest import Application, reconfigured
from tests.support.processes.launcher import run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

NAME = "ramp-trial"
BLUE, GREEN = "smollm2-blue", "smollm2-green"
EXPERIMENT: dict[str, Any] = {
    "endpoint": "chat",
    "control": BLUE,
    "treatments": [GREEN],
    "primary": [{"metric": "ttft", "minimal_effect": 0.5}],
    "guardrails": [{"event": "truncated", "tolerance": 1.0, "action": "rollback"}],
    "alpha_guardrails": 0.05,
    "on_worse": "pause",
    "ramp": {"steps": [20, 50], "min_step_s": 1, "min_units": 3, "cooldown_s": 86400},
}
TRUNCATED = 11
"""The number of the treatment's sessions with a truncated answer: more than enough for an alarm."""


@pytest.fixture(scope="module")
def ramp(application: Application, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """The application with the ramp; its own configuration is restored afterwards."""

    def declare(user_config: dict[str, Any]) -> None:
        user_config["endpoints"]["chat"] |= {"traffic": {BLUE: 80, GREEN: 20}, "sticky": {"by": "conversation"}}
        user_config["experiments"] = {NAME: EXPERIMENT}

    with reconfigured(application, tmp_path_factory.mktemp("acting") / "serve_config.yaml", declare):
        wait_until(lambda: acting(application) is not None)
        yield application
    wait_until(lambda: acting(application) is None)


def acting(application: Application) -> dict[str, Any] | None:
    """The state of the experiment's actions; None while there is no experiment."""
    answer = httpx.get(f"{application.url}/api/experiments/{NAME}", timeout=30)
    if answer.status_code != 200:
        return None
    shown: dict[str, Any] | None = answer.json().get("acting")
    return shown


def weights(application: Application) -> dict[str, int]:
    """The endpoint's traffic, as the router serves it."""
    answer = httpx.get(f"{application.url}/api/endpoints/chat/traffic", timeout=30).raise_for_status()
    shares: dict[str, int] = answer.json()["weights"]
    return shares


def switchyard(application: Application, *arguments: str) -> str:
    """The output of `switchyard experiments`."""
    url = ("--url", application.url)
    done = run("experiments", *arguments, *url, directory=application.directory, timeout_s=60)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


class Talk:
    """Sends sessions with the official SDK, each of which asks for one word."""

    def __init__(self, application: Application) -> None:
        self._sdk = application.sdk
        self._numbers = count()

    def begin(self) -> tuple[str, str]:
        """Starts a new session; returns the variant that answered it."""
        session = f"session-{next(self._numbers)}"
        return session, self.ask(session)

    def ask(self, session: str, **fields: Any) -> str:
        """The variant that answered; raises if none did."""
        answer = self._sdk.chat.completions.with_raw_response.create(
            model="chat",
            messages=[{"role": "user", "content": "Is water wet?"}],
            extra_headers={"x-session-id": session},
            **({"extra_body": {"structured_outputs": {"choice": ["yes", "no"]}}, "max_tokens": 8} | fields),
        )
        assert answer.parse().choices[0].finish_reason == ("length" if fields else "stop")
        deployment: str = answer.headers["azureml-model-deployment"]
        return deployment

    @contextmanager
    def going_on(self) -> Iterator[list[str]]:
        """Runs sessions in the background; yields the variants that answered. Fails if a session got no answer."""
        answered: list[str] = []
        failures: list[Exception] = []
        over = threading.Event()

        def talk() -> None:
            while not over.is_set():
                try:
                    answered.append(self.begin()[1])
                except Exception as error:  # noqa: BLE001  whatever a client sees
                    failures.append(error)
                time.sleep(0.2)

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            yield answered
        finally:
            over.set()
            thread.join()
        assert failures == []


def test_a_ramp_steps_up_and_is_rolled_back_by_a_guardrail_and_by_a_manager(ramp: Application) -> None:
    talk = Talk(ramp)
    with talk.going_on() as answered:
        # The step waits for units, which come as fast as the engines answer: on some CPUs a second each.
        wait_until(lambda: weights(ramp) == {BLUE: 50, GREEN: 50}, lambda: acting(ramp), within_s=180)
        assert GREEN in answered
        while_listed = switchyard(ramp, "list")
        assert NAME in while_listed

        sessions: dict[str, list[str]] = {BLUE: [], GREEN: []}
        while len(sessions[GREEN]) < TRUNCATED:
            session, deployment = talk.begin()
            sessions[deployment].append(session)
        # Sessions of both variants return: if only the treatment's did, the ramp would hold for that.
        for session in sessions[BLUE]:
            talk.ask(session)
        for session in sessions[GREEN]:
            talk.ask(session, max_tokens=1)
        wait_until(lambda: weights(ramp) == {BLUE: 100, GREEN: 0}, lambda: acting(ramp))
        wait_until(lambda: is_over(ramp), lambda: acting(ramp))
        shown = acting(ramp)
        assert shown is not None
        assert (shown["state"], shown["cause"]) == ("paused", "alarm")
        assert shown["text"].startswith(f"{GREEN} exceeds the guardrail truncated")
        assert {talk.ask(session) for session in sessions[GREEN]} == {BLUE}, "running conversations leave it, too"

        switchyard(ramp, "decide", NAME, "resume", "--reason", "a new build", "--yes")
        wait_until(lambda: weights(ramp) == {BLUE: 80, GREEN: 20}, lambda: acting(ramp))
        decided = switchyard(ramp, "decide", NAME, "rollback", "--reason", "that was a test", "--yes")
        assert "paused" in decided
        wait_until(lambda: weights(ramp) == {BLUE: 100, GREEN: 0}, lambda: acting(ramp))
        wait_until(lambda: is_over(ramp), lambda: acting(ramp))
        answered.clear()
        wait_until(lambda: len(answered) >= 10)
        assert set(answered[1:]) == {BLUE}
    plans = httpx.get(f"{ramp.url}/api/endpoints/chat/traffic/history", timeout=30).json()["plans"][:4][::-1]
    assert [(plan["weights"][GREEN], plan["by"]) for plan in plans] == [
        (50, f"experiment {NAME}"),
        (0, f"experiment {NAME}"),
        (20, f"experiment {NAME}"),
        (0, f"experiment {NAME}"),
    ]
    assert [plan["generation"] for plan in plans] == list(range(plans[0]["generation"], plans[0]["generation"] + 4))
    assert plans[-1]["reason"].endswith("that was a test")


def is_over(application: Application) -> bool:
    """Whether a rollback is complete: every router has the plan, and the stop is lifted."""
    shown = acting(application)
    return shown is not None and shown["stopped"] == []
