"""Successive controllers, the routers' batches, and a control plane in memory, all on the test's event loop."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.config.schema import Config, parse
from app.control_plane import Delivery
from app.errors import UpstreamError
from app.experiments.api import ControllerApi
from app.experiments.automation.actions import carry_out
from app.experiments.controller import Controller
from app.experiments.storage.journal import read_entries
from app.experiments.storage.keeper import OpenStore, Submit, at_once
from app.experiments.storage.store import LocalStore, open_store
from app.exposures.controller_client import Answer
from app.exposures.wire import Acknowledgement, Plan, TrafficBlock, decode_acknowledgement, encode
from tests.support.experiments.exposures import batch, row, start
from tests.support.processes.fake_control_plane import MemoryControl

START = 10_000.0
RAMP = {"steps": [5, 50, 100], "min_step_s": 60, "min_units": 10, "cooldown_s": 3600}


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
    """Successive controllers on one directory, routers, and the control plane."""

    def __init__(self, directory: Path, config: dict[str, Any], *, has_control_plane: bool = True) -> None:
        self.directory, self.now, self.has_control_plane = directory, START, has_control_plane
        self.control = MemoryControl(config, lambda config: None)
        self.open_store: OpenStore = open_store
        self.submit: Submit = at_once
        self.numbers = 0
        self.units = 0
        self.begin()

    def begin(self) -> None:
        """Starts a controller, as after the death of the one before."""
        self.controller = Controller(
            self.config.ledger,
            base=self.directory,
            has_control_plane=self.has_control_plane,
            clock=lambda: self.now,
            submit=self.submit,
            open_store=self.open_store,
        )
        self.answers = ControllerApi(self.controller)
        self.read()

    @property
    def config(self) -> Config:
        return parse(self.control.config)

    @property
    def green(self) -> int:
        return self.config.endpoints["chat"].traffic["green"]

    def read(self) -> None:
        self.controller.configure(self.config, rollout_complete=self.control.delivery is Delivery.SETTLED)

    def send(self, green_fails: int = 0, green: int = 0, blue: int = 0, green_lasts: int = 0) -> Acknowledgement:
        """Sends a batch of requests, each of another unit; some last for a quarter of an hour."""
        self.numbers += 1
        traffic = self.config.endpoints["chat"].traffic
        requests = [(0, 0, 1.5)] * blue + [(1, 0, 1.5)] * green + [(1, 1, 1.5)] * green_fails
        requests += [(1, 0, 900.0)] * green_lasts
        starts, rows = [], []
        for number, (arm, error, duration_s) in enumerate(requests, 1):
            self.units += 1
            seq = 1000 * self.numbers + number
            fields = {"at": self.now, "unit": self.units, "assigned": arm}
            starts.append(start(seq, **fields))
            served, status = (-1, 502) if error else (arm, 200)
            rows.append(row(seq, **fields, served=served, status=status, error=error, duration_s=duration_s))
        plans = [Plan("chat", f"0-{traffic['green']:08d}", traffic)]
        sent = batch(self.numbers, starts=starts, rows=rows, plans=plans, oldest=self.numbers)
        return decode_acknowledgement(self.controller.ingest(encode(sent)))

    def hear(self) -> list[TrafficBlock]:
        return decode_acknowledgement(self.controller.ingest(encode(batch(0, oldest=0)))).stops

    def decide(self, action: str, revision: int | None = None, **fields: Any) -> Answer:
        """Makes a decision as alice, with a reason."""
        request = {"action": action, "reason": "it is time", "by": "alice", "revision": revision, **fields}
        body = json.dumps({name: value for name, value in request.items() if value is not None}).encode()
        return self.answers.answer("POST", "/experiments/trial/decision", {}, body)

    def change(self, green: int, by: str = "bob") -> None:
        """Someone else changes the traffic, and every router has the change."""
        endpoints = self.control.config["endpoints"]
        generation = endpoints["chat"].get("plan", {}).get("generation", 0) + 1
        plan = {"generation": generation, "by": by}
        chat = {**endpoints["chat"], "traffic": {"blue": 100 - green, "green": green}, "plan": plan}
        self.control.config = {**self.control.config, "endpoints": {**endpoints, "chat": chat}}
        self.read()
        self.controller.tick()

    async def settle(self, rounds: int = 6) -> None:
        """Advances the time; every router gets the applied configuration."""
        for _ in range(rounds):
            self.now += 1
            await self.move()
            self.control.deliver()

    async def move(self) -> list[str | None]:
        """Does what the host does each second."""
        refusals = []
        for change in self.controller.changes():
            refusals.append(await carry_out(self.control, change, self.now))
            self.controller.changed(change, refusals[-1])
        with suppress(UpstreamError):
            await self.control.applied()
            self.read()
        self.controller.tick()
        return refusals

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.controller.tick()

    def ask(self, path: str = "") -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.answers.answer("GET", f"/experiments/trial{path}", {}, b"").body)
        return document

    @property
    def acting(self) -> dict[str, Any]:
        self.now += 1.0  # reports are kept for a second
        state: dict[str, Any] = self.ask()["acting"]
        return state

    def entries(self) -> list[tuple[str, str]]:
        listed = read_entries(LocalStore(self.directory / ".run/ledger"))
        return [
            (entry.kind, entry.detail["text"])
            for entry in listed
            if "state" in entry.detail and entry.kind != "run_state"
        ]
