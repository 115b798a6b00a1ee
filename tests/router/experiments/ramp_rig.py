"""A router with a control plane and the real controller of experiments, and a ramp that managers decide about."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from app.config.schema import parse
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.experiments.live_controller import LiveController
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

EXPERIMENT = "/api/experiments/first"


class RampRig:
    """The experiment `first` on the endpoint `chat`: a ramp to 50 % that waits for a manager, from 1 %."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        chat = {"tasks": ["chat"], "traffic": {"blue": 99, "green": 1}, "sticky": {"by": "user"}}
        section = {
            "endpoint": "chat",
            "control": "blue",
            "treatments": ["green"],
            "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
            "ramp": {"steps": [1, 25, 50], "advance": "manual"},
        }
        self.config = {
            **rig.config,
            "ledger": {"url": "ledger"},
            "endpoints": {**rig.config["endpoints"], "chat": chat},
            "experiments": {"first": section},
        }
        self.control = MemoryControl(self.config, self.take)
        self.control.delivers_at_once = True
        self.controller = LiveController(directory, self.control)
        environment = RuntimeEnvironment(internal_key="internal", ledger_base=directory)
        self.router = Router(environment, control=self.control, controller=self.controller, send_every_s=0.02)
        self.url = ""
        self.take(self.config)

    def take(self, config: Any) -> None:
        self.router.reconfigure(config)
        self.controller.configure(parse(config))

    def get(self, **query: str) -> httpx.Response:
        return httpx.get(f"{self.url}{EXPERIMENT}", params=query).raise_for_status()

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> httpx.Response:
        """The experiment, once its acting state is as expected."""

        def found() -> httpx.Response | None:
            answer = self.get()
            return answer if holds(answer.json()["acting"]) else None

        return wait_until(found, lambda: self.get().text)

    def decide(self, action: str, tag: str) -> httpx.Response:
        body = {"action": action, "reason": "as agreed"}
        return httpx.post(f"{self.url}{EXPERIMENT}/decision", json=body, headers={"if-match": tag})

    def report(self) -> str:
        return httpx.get(f"{self.url}{EXPERIMENT}/report", params={"format": "text"}).text

    @property
    def traffic(self) -> Any:
        return self.control.config["endpoints"]["chat"]["traffic"]


@contextmanager
def ramp_rig(rig: Rig, servers: ServerPool, directory: Path) -> Iterator[RampRig]:
    """A fresh one, on a server."""
    ramped = RampRig(rig, directory)
    with servers.host(ramped.router.app) as ramped.url:
        yield ramped
    ramped.controller.close()
