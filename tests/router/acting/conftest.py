"""Three real routers with one real controller of experiments that acts, in front of fake deployments."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest

from app.config.schema import parse
from app.control_plane import Delivery
from app.experiments.contract.report import AutomationStatus, Report, Summary
from app.exposures.controller_client import Answer
from app.exposures.log import Arm
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.support.engine.fake_engine import Answer as Engine
from tests.support.engine.fake_engine import FakeEngine, chat, chunk, refuse, stream
from tests.support.experiments.live_controller import LiveController
from tests.support.processes.killer import MortalControl
from tests.support.processes.load import Lane, Outcome, ask_all
from tests.support.processes.servers import ServerPool, free_port
from tests.support.waiting import PATIENCE_S, wait_until_async

SEND_EVERY_S = 0.02
ROUTERS = 3
SAY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}
DONE = b"data: [DONE]"
TRAFFIC = "/api/endpoints/chat/traffic"


class RouterConnection:
    """A router's connection to the controllers: always the same one, or a random one, as behind a load balancer."""

    def __init__(self, rig: "ActingRig", number: int) -> None:
        self._rig, self._number, self._random = rig, number, Random(number)

    async def send(self, batch: bytes) -> bytes:
        controllers = self._rig.controllers
        number = (
            self._number % len(controllers) if self._rig.is_partitioned else self._random.randrange(len(controllers))
        )
        return await controllers[number].send(batch)

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        return await self._rig.controller.ask(method, path, query, body)


class ActingRig:
    """The experiment `first` on the endpoint `chat`: green against blue, with a ramp. A user is the header `x-user`.

    Time passes with `advance`, for routers and the controller. `skewed_s`: how far each router's clock is ahead.
    `cut_off`: a router that cannot reach blue, from the next delivery on.
    """

    def __init__(self, engines: dict[str, FakeEngine], url: str, base: Path) -> None:
        self.blue, self.green = engines["blue"], engines["green"]
        self.config: dict[str, Any] = {
            "endpoints": {
                "chat": {
                    "tasks": ["chat"],
                    "traffic": {"blue": 100, "green": 0},
                    "sticky": {"by": "header", "name": "x-user"},
                }
            },
            "deployments": {
                name: {"url": f"{url}/{name}", "model": f"{name}-model", "tasks": ["chat"]}
                for name in ("blue", "green")
            },
            "ledger": {"url": "ledger"},
            "experiments": {
                "first": {
                    "state": "draft",
                    "endpoint": "chat",
                    "control": "blue",
                    "treatments": ["green"],
                    "primary": [{"metric": "ttft", "minimal_effect": 0.2}],
                    "guardrails": [{"event": "error", "action": "rollback"}],
                    "min_duration_s": 7200,
                    "ramp": {"steps": [10, 50, 100], "min_step_s": 600, "min_units": 10, "cooldown_s": 3600},
                }
            },
        }
        self.skewed_s = [0.0] * ROUTERS
        self.cut_off: int | None = None
        self.control = MortalControl(self.config, self._deliver)
        self.control.delivers_at_once = True
        self._base = base
        self.controllers = [LiveController(base, self.control)]
        self.is_partitioned = False
        self.routers = [
            Router(
                RuntimeEnvironment(internal_key="internal"),
                random=Random(number),
                control=self.control,
                controller=RouterConnection(self, number),
                send_every_s=SEND_EVERY_S,
                clock=partial(self._clock, number),
            )
            for number in range(ROUTERS)
        ]
        self.urls: list[str] = []
        self.outcomes: list[Outcome] = []
        """The outcomes of every request so far."""
        self._users = count()

    @property
    def controller(self) -> LiveController:
        """The first controller."""
        return self.controllers[0]

    def another_controller(self) -> LiveController:
        """Starts another controller on the same directory and control plane.

        Each batch goes to a random one, unless `is_partitioned`.
        """
        controller = LiveController(self._base, self.control)
        controller.ahead_s = self.controller.ahead_s
        controller.configure(parse(self.control.config))
        self.controllers.append(controller)
        return controller

    def _clock(self, router: int) -> float:
        return time.time() + self.controller.ahead_s + self.skewed_s[router]

    def _deliver(self, config: Any) -> None:
        for number, router in enumerate(self.routers):
            router.reconfigure(_without_blue(config) if number == self.cut_off else config)

    def deploy(self, green: int | None = None, delivery: Delivery = Delivery.SETTLED, **experiment: Any) -> None:
        """Applies a file, as `switchyard deploy` does: with the given traffic, or with the present one. Waits until new
        conversations follow it.
        """
        endpoint, section = self.config["endpoints"]["chat"], self.config["experiments"]["first"]
        traffic = {"blue": 100 - green, "green": green} if green is not None else endpoint["traffic"]
        self.config = {
            **self.config,
            "endpoints": {"chat": {**endpoint, "traffic": traffic}},
            "experiments": {"first": {**section, "state": "running", **experiment}},
        }
        self.control.config = self.config
        self.control.deliver()
        self.control.delivery = delivery
        for controller in self.controllers:
            controller.configure(parse(self.config))
        time.sleep(4 * SEND_EVERY_S)

    def advance(self, seconds: float) -> None:
        """Lets time pass for routers and controllers."""
        for controller in self.controllers:
            controller.advance(seconds)

    @property
    def weight(self) -> int:
        """Green's share in the control plane."""
        weight: int = self.control.config["endpoints"]["chat"]["traffic"]["green"]
        return weight

    def shares(self) -> list[int]:
        """Green's share on each router, with stops applied."""
        return [_share(router) for router in self.routers]

    def rows_lost(self) -> list[int]:
        """The lost rows of blue and of green, over all routers."""
        lost = sum((router.state.ledger.backlog.lost for router in self.routers), Counter[Arm]())
        return [sum(rows for arm, rows in lost.items() if name in arm) for name in ("blue", "green")]

    def plans(self) -> list[str]:
        """The plan that each router serves."""
        return [router.state.snapshot.plans["chat"] for router in self.routers if router.state.snapshot is not None]

    async def send(self, requests: int, *routers: int, at_once: int = 4) -> list[Outcome]:
        """Sends that many requests of as many new users, evenly through these routers; by default through all."""
        urls = [self.urls[number] for number in routers or range(ROUTERS)]
        each = [[_lane(next(self._users)) for _ in range(requests // len(urls))] for _ in urls]
        answered = await asyncio.gather(
            *(ask_all(url, lanes, at_once=at_once) for url, lanes in zip(urls, each, strict=True))
        )
        outcomes = [outcome for some in answered for outcome in some]
        self.outcomes += outcomes
        return outcomes

    async def drive(self, holds: Callable[[], bool], *, requests: int = 60, seconds: float = 0.0) -> None:
        """Sends requests until a condition holds; time passes after each batch."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, (await self.acting(), await self.report())
            await self.send(requests)
            await self.let_routers_report()
            if seconds:
                self.advance(seconds)
                await self.let_routers_report()

    async def let_routers_report(self) -> None:
        """Gives every router time to send its records and to receive the acknowledgement."""
        await asyncio.sleep(0.2)

    async def get(self, path: str, router: int = 0) -> Any:
        async with httpx.AsyncClient(base_url=self.urls[router], timeout=30) as client:
            return (await client.get(path)).raise_for_status()

    async def report(self, requests: int = 0) -> Report:
        """The report, once it has that many requests: those analysed, and those of a change that settles."""

        async def arrived() -> Report | None:
            answer = await self.get("/api/experiments/first/report")
            report = msgspec.json.decode(answer.content, type=Report)
            return report if received(report) >= requests else None

        return await wait_until_async(arrived)

    async def acting(self) -> AutomationStatus:
        summary = msgspec.json.decode((await self.get("/api/experiments/first")).content, type=Summary)
        assert summary.acting is not None
        return summary.acting

    async def history(self, plans: int) -> list[dict[str, Any]]:
        """The endpoint's plans, the first one first, once the controller has seen that many: routers may be faster."""

        async def seen() -> list[dict[str, Any]] | None:
            found: list[dict[str, Any]] = (await self.get(f"{TRAFFIC}/history")).json()["plans"]
            return found[::-1] if len(found) >= plans else None

        return await wait_until_async(seen, lambda: self.controller.journal)

    async def decide(self, action: str, reason: str = "as agreed") -> httpx.Response:
        """Sends a manager's decision."""
        seen = await self.get("/api/experiments/first")
        async with httpx.AsyncClient(base_url=self.urls[1], timeout=30) as client:
            return await client.post(
                "/api/experiments/first/decision",
                json={"action": action, "reason": reason},
                headers={"if-match": seen.headers["etag"]},
            )

    async def put_traffic(self, green: int) -> httpx.Response:
        """Sends a manager's change of the traffic."""
        seen = await self.get(TRAFFIC)
        async with httpx.AsyncClient(base_url=self.urls[2], timeout=30) as client:
            document = {"weights": {"blue": 100 - green, "green": green}, "reason": "by hand"}
            return await client.put(TRAFFIC, json=document, headers={"if-match": seen.headers["etag"]})

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for a condition without sending requests."""
        await wait_until_async(holds, lambda: self.controller.journal)

    def kinds(self, *kinds: str) -> list[str]:
        """The first controller's journal entries of these kinds, in words."""
        return [f"{entry.kind}: {entry.detail['text']}" for entry in self.controller.journal if entry.kind in kinds]


def _share(router: Router) -> int:
    snapshot = router.state.snapshot
    assert snapshot is not None
    stopped = snapshot.stops.get("chat", {})
    return 0 if "green" in stopped else snapshot.config.endpoints["chat"].traffic["green"]


def _without_blue(config: dict[str, Any]) -> dict[str, Any]:
    deployments = config["deployments"]
    unreachable = {**deployments["blue"], "url": f"http://127.0.0.1:{free_port()}"}
    return {**config, "deployments": {**deployments, "blue": unreachable}}


def _lane(user: int) -> Lane:
    return Lane("openai", "/v1/chat/completions", SAY, DONE, True, {"x-user": f"user-{user}"})


def after(seconds: float, answer: Engine = chat) -> Engine:
    """The same stream with a first token that comes that much later."""

    def later(body: dict[str, Any]) -> Any:
        text = ["Hel", "lo ", body["model"]]
        return stream([seconds, *(chunk(token) for token in text), chunk("", finish_reason="stop"), "data: [DONE]\n\n"])

    return later


def some(share: float, first: Engine, other: Engine = chat) -> Engine:
    """Answers with `first` for a share of the requests, spread evenly."""
    calls = count(1)

    def answer(body: dict[str, Any]) -> Any:
        number = next(calls)
        return (first if int(number * share) > int((number - 1) * share) else other)(body)

    return answer


def empty(body: dict[str, Any]) -> Any:
    """An answer without text."""
    return stream([chunk(" \n"), chunk("", finish_reason="stop"), "data: [DONE]\n\n"])


@asynccontextmanager
async def watched(acting: ActingRig) -> AsyncIterator[set[tuple[int, ...]]]:
    """Collects every combination of green's shares on the routers that occurred while the block ran."""
    seen: set[tuple[int, ...]] = set()

    async def watch() -> None:
        while True:
            seen.add(tuple(acting.shares()))
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


failing = refuse(500, "broken", kind="InternalServerError")


@pytest.fixture
def acting(engines: tuple[dict[str, FakeEngine], str], servers: ServerPool, tmp_path: Path) -> Iterator[ActingRig]:
    """A rig whose experiment is a draft until it is deployed."""
    fakes, url = engines
    for fake in fakes.values():
        fake.reset()
    rig = ActingRig(fakes, url, tmp_path)
    with ExitStack() as stack:
        rig.deploy(state="draft")
        rig.urls = [stack.enter_context(servers.host(router.app)) for router in rig.routers]
        yield rig
    for controller in rig.controllers:
        controller.close()


def received(report: Report) -> int:
    """The requests that the controller has, those that no analysis counts since a change settled included."""
    return sum(report.requests.values()) + sum(report.carried.values())


def failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The requests that were not answered in full."""
    return [outcome for outcome in outcomes if not outcome.is_whole]
