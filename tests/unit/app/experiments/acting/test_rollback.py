"""An alarm becomes a stop in acknowledgements, then a plan: the real controller, and a control plane in memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.config.schema import Config, parse
from app.control_plane import Delivery
from app.errors import Unavailable
from app.experiments.acting.changes import carry_out
from app.experiments.answers import Answers
from app.experiments.controller import Controller
from app.experiments.storage import journal
from app.experiments.storage.store import LocalStore
from app.ledger.wire import Acknowledgement, Plan, Stop, decode_acknowledgement, encode
from tests.support.exposures import batch, row, start
from tests.support.fake_control_plane import MemoryControl

START = 10_000.0
RAMP = {"steps": [5, 50, 100], "hold_s": 60, "min_units": 10, "freeze_s": 3600}


def plain(green: int = 50, **experiment: Any) -> dict[str, Any]:
    section = {
        "endpoint": "chat",
        "control": "blue",
        "treatments": ["green"],
        "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
    }
    return {
        "endpoints": {
            "chat": {
                "tasks": ["chat"],
                "traffic": {"blue": 100 - green, "green": green},
                "sticky": {"by": "user"},
            }
        },
        "deployments": {name: {"url": "http://x", "model": name, "tasks": ["chat"]} for name in ("blue", "green")},
        "experiments": {"trial": section | experiment},
    }


class Stage:
    """One controller after another on a directory; routers; the control plane."""

    def __init__(self, directory: Path, config: dict[str, Any], *, can_move: bool = True) -> None:
        self.directory, self.now, self.can_move = directory, START, can_move
        self.control = MemoryControl(config, lambda config: None)
        self.numbers = 0
        self.units = 0
        self.begin()

    def begin(self) -> None:
        """A controller, as after the death of the one before."""
        self.controller = Controller(
            self.config.ledger, base=self.directory, can_move=self.can_move, clock=lambda: self.now
        )
        self.answers = Answers(self.controller)
        self.read()

    @property
    def config(self) -> Config:
        return parse(self.control.config)

    @property
    def green(self) -> int:
        return self.config.endpoints["chat"].traffic["green"]

    def read(self) -> None:
        self.controller.configure(self.config, settled=self.control.delivery is Delivery.SETTLED)

    def send(self, green_fails: int = 0, green: int = 0, blue: int = 0) -> Acknowledgement:
        """A batch of requests, each of another unit."""
        self.numbers += 1
        traffic = self.config.endpoints["chat"].traffic
        requests = [(0, 0)] * blue + [(1, 0)] * green + [(1, 1)] * green_fails
        starts, rows = [], []
        for number, (arm, error) in enumerate(requests, 1):
            self.units += 1
            seq = 1000 * self.numbers + number
            fields = {"at": self.now, "unit": self.units, "assigned": arm}
            starts.append(start(seq, **fields))
            rows.append(row(seq, **fields, served=-1 if error else arm, status=502 if error else 200, error=error))
        plans = [Plan("chat", f"0-{traffic['green']:08d}", traffic)]
        sent = batch(self.numbers, starts=starts, rows=rows, plans=plans, oldest=self.numbers)
        return decode_acknowledgement(self.controller.ingest(encode(sent)))

    def hear(self) -> list[Stop]:
        return decode_acknowledgement(self.controller.ingest(encode(batch(0, oldest=0)))).stops

    async def move(self) -> list[str | None]:
        """What the host does each second."""
        refusals = []
        for change in self.controller.changes():
            refusals.append(await carry_out(self.control, change, self.now))
            self.controller.changed(change, refusals[-1])
        self.read()
        self.controller.tick()
        return refusals

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.controller.tick()

    def ask(self, path: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.answers.answer("GET", f"/experiments/trial{path}", {}, b"").body)
        return found

    @property
    def acting(self) -> dict[str, Any]:
        self.now += 1.0  # reports are kept for a second
        found: dict[str, Any] = self.ask()["acting"]
        return found

    def entries(self) -> list[tuple[str, str]]:
        found = journal.read(LocalStore(self.directory / ".run/ledger"))
        return [(it.kind, it.detail["text"]) for it in found if "state" in it.detail and it.kind != "run_state"]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, plain(ramp=RAMP))


async def test_an_alarm_is_a_stop_in_the_same_acknowledgement_and_then_a_plan(stage: Stage) -> None:
    stage.wait(1)
    assert stage.send(blue=60, green=30).stops == []
    (stop,) = stage.send(green_fails=30).stops
    assert (stop.endpoint, stop.deployment, stop.control) == ("chat", "green", "blue")
    assert stage.green == 50
    assert await stage.move() == [None]
    assert stage.config.endpoints["chat"].traffic == {"blue": 100, "green": 0}
    plan = stage.config.endpoints["chat"].plan
    assert (plan.by, plan.generation) == ("experiment trial", 1)
    assert plan.reason == "green exceeds the guardrail error, at most 1.5 times control's rate"
    assert stage.hear() == [stop], "until every router has the plan"
    stage.control.deliver()
    assert await stage.move() == []
    assert stage.hear() == []
    acting = stage.acting
    assert (acting["state"], acting["cause"], acting["share"]) == ("paused", "alarm", 0)
    assert acting["until"] == pytest.approx(START + 3600, abs=10)
    assert [kind for kind, _ in stage.entries()] == ["ramp", "stop", "done", "stop_lifted"]


async def test_a_busy_or_failing_control_plane_is_asked_again(stage: Stage) -> None:
    stage.control.delivery = Delivery.DELIVERING
    stage.send(blue=60, green_fails=30)
    for _ in range(5):
        assert len(await stage.move()) == 1
        stage.now += 2
    stage.control.failure = Unavailable("away")
    (change,) = stage.controller.changes()
    stage.controller.changed(change, await carry_out(stage.control, change, stage.now))
    assert [it.deployment for it in stage.hear()] == ["green"]
    assert stage.acting["waits_for"] == ["the control plane: away"]
    assert stage.ask("/report")["next"].endswith("It did not yet: away.")
    stage.control.failure, stage.now = None, stage.now + 5
    stage.control.deliver()
    assert await stage.move() == [None]
    assert stage.green == 0
