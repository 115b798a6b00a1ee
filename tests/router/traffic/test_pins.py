"""Weights move while conversations run, on real routers that exchange their pins through a controller."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from scipy.stats import binomtest

from app.access.keys import append, create
from app.config.schema import parse
from app.exposures.wire import Flag, Reason, TrafficBlock, decode_acknowledgement, encode_acknowledgement
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.router.traffic.test_resilience import open_breakers
from tests.router.traffic.test_stops import EXPERIMENT
from tests.support.engine.fake_engine import refuse
from tests.support.experiments.live_controller import LiveController
from tests.support.processes.servers import ServerPool
from tests.support.telemetry.counters import counted
from tests.support.waiting import wait_until

ALL_BLUE, ALL_GREEN = {"blue": 100, "green": 0}, {"blue": 0, "green": 100}
SESSION = {"x-session-id": "s-1"}
SEND_EVERY_S = 0.02


def said(opening: str, turns: int = 0) -> dict[str, Any]:
    """A chat with that many earlier turns of the model."""
    more = [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}] * turns
    return {"model": "chat", "messages": [{"role": "user", "content": opening}, *more]}


class StoppingController(LiveController):
    """A controller that also sends the test's stops."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.stops: list[TrafficBlock] = []

    async def send(self, batch: bytes) -> bytes:
        return encode_acknowledgement(replace(decode_acknowledgement(await super().send(batch)), stops=self.stops))


class ChatRouters:
    """Routers that serve `chat` with one controller, and two callers."""

    def __init__(self, rig: Rig, serve: Callable[[Router], str], directory: Path) -> None:
        self.rig, self._serve = rig, serve
        self.controller = StoppingController(directory / "ledger")
        self.routers: list[Router] = []
        self.urls: list[str] = []
        self.keys: dict[str, str] = {}
        file = directory / "keys.yaml"
        for name in ("ann", "bob"):
            self.keys[name], record = create(name)
            append(file, record.line)
        rig.change(access={"keys_file": str(file)})
        rig.chat_endpoint(traffic=ALL_BLUE, sticky={"by": "conversation"})

    def start(self, send_every_s: float = SEND_EVERY_S) -> None:
        router = Router(
            RuntimeEnvironment(internal_key="internal"),
            random=Random(len(self.routers)),
            controller=self.controller,
            send_every_s=send_every_s,
        )
        router.reconfigure(self.rig.config)
        self.routers.append(router)
        self.urls.append(self._serve(router))

    def change(self, **fields: Any) -> None:
        """Applies a file that is delivered to all routers, and waits until new conversations follow it."""
        self.rig.chat_endpoint(**fields)
        self.controller.configure(parse(self.rig.config))
        for router in self.routers:
            router.reconfigure(self.rig.config)
        time.sleep(4 * SEND_EVERY_S)

    def ask(
        self, opening: str, turns: int = 0, *, router: int = 0, caller: str = "ann", headers: Mapping[str, str] = {}
    ) -> str:
        """The deployment that answers."""
        sent = {"authorization": f"Bearer {self.keys[caller]}", **headers}
        url = f"{self.urls[router]}/v1/chat/completions"
        answer = httpx.post(url, json=said(opening, turns), headers=sent, timeout=30)
        assert answer.status_code == 200, answer.text
        name: str = answer.headers["azureml-model-deployment"]
        return name

    def wait_for_pins(self, pins: int) -> None:
        """Waits until all routers have that many pins."""
        for router in self.routers:
            wait_until(lambda router=router: router.state.pins.sizes().get("chat", 0) >= pins)  # type: ignore[misc]

    def misses(self, cause: str, router: int = 0) -> float:
        return counted(self.routers[router].state.telemetry.pin_misses.labels("chat", cause))


@pytest.fixture
def talking(rig: Rig, servers: ServerPool, tmp_path: Path) -> Iterator[ChatRouters]:
    with ExitStack() as stack:
        both = ChatRouters(rig, lambda router: stack.enter_context(servers.host(router.app)), tmp_path)
        both.controller.configure(parse(rig.config))
        for _ in range(2):
            both.start()
        yield both
    both.controller.close()


def test_a_running_chat_keeps_its_deployment_and_a_new_one_follows_the_weights(talking: ChatRouters) -> None:
    assert talking.ask("old") == "blue"
    talking.change(traffic=ALL_GREEN)
    for router in (0, 1):
        assert talking.ask("old", 1, router=router) == "blue", "it started before the change"
    assert talking.ask("new") == "green"
    talking.wait_for_pins(1)
    for router in (0, 1):
        assert talking.ask("new", 1, router=router) == "green", "it started after the change"
        assert talking.ask("old", 2, router=router) == "blue"
    labels = 'deployment="blue",dialect="openai",endpoint="chat",reason="pinned",status="200"'
    metrics = talking.routers[0].state.telemetry.expose().decode()
    assert f"switchyard_requests_total{{{labels}}} 2.0" in metrics
    wait_until(lambda: 'switchyard_pins{endpoint="chat"} 1.0' in talking.routers[1].state.telemetry.expose().decode())


def test_several_changes_in_a_row_move_no_chat_that_runs(talking: ChatRouters) -> None:
    began = {"first": talking.ask("first")}
    for name, traffic in (("second", ALL_GREEN), ("third", {"blue": 50, "green": 50}), ("fourth", ALL_BLUE)):
        talking.change(traffic=traffic)
        began[name] = talking.ask(name)
        talking.wait_for_pins(len(began) - 1)
        for turn, (opening, deployment) in enumerate(began.items()):
            assert talking.ask(opening, 1, router=turn % 2) == deployment
    assert (began["first"], began["second"], began["fourth"]) == ("blue", "green", "blue")


def test_a_router_that_starts_after_a_plan_follows_its_earlier_weights(talking: ChatRouters) -> None:
    earlier = [{"weights": ALL_BLUE, "until": 4e9}]
    talking.change(traffic=ALL_GREEN, plan={"generation": 1, "earlier": earlier})
    assert talking.ask("new") == "green"
    talking.start()
    talking.wait_for_pins(1)
    assert (talking.ask("old", 1, router=2), talking.ask("new", 1, router=2)) == ("blue", "green")


def test_a_router_that_starts_after_a_file_gets_the_weights_that_it_replaced(talking: ChatRouters) -> None:
    talking.change(traffic=ALL_GREEN)
    assert talking.ask("new") == "green"
    running = [router.state.snapshot for router in talking.routers]
    talking.start()
    started = talking.routers[2].state
    wait_until(lambda: started.snapshot is not None and "chat" in started.snapshot.rules)
    talking.wait_for_pins(1)
    assert (talking.ask("old", 1, router=2), talking.ask("new", 1, router=2)) == ("blue", "green")
    assert talking.ask("newer", router=2) == "green"
    talking.wait_for_pins(2)
    assert [talking.ask("newer", 1, router=router) for router in range(3)] == ["green"] * 3
    assert all(router.state.snapshot is before for router, before in zip(talking.routers, running, strict=False)), (
        "the running routers needed no new snapshot"
    )
    talking.change(traffic={"blue": 50, "green": 50})
    assert (talking.ask("old", 2, router=2), talking.ask("new", 2, router=2)) == ("blue", "green"), "over another file"


def test_two_callers_with_the_same_words_and_the_same_session_share_no_pin(talking: ChatRouters) -> None:
    talking.change(sticky={"by": "header", "name": "x-tenant"})
    named = {"x-tenant": "t", **SESSION}
    assert talking.ask("hi", caller="ann", headers=named) == "blue"
    talking.change(traffic=ALL_GREEN)
    assert talking.ask("hi", caller="bob", headers=named) == "green"
    talking.wait_for_pins(1)
    assert talking.ask("hi", 1, caller="ann", headers=named) == "blue"
    assert talking.ask("hi", 1, caller="bob", headers=named) == "green"
    assert talking.ask("hi", 1, caller="bob", headers={"x-tenant": "t", "x-session-id": "s-2"}) == "blue", (
        "another session"
    )


def test_a_pinned_chat_leaves_a_stopped_deployment_for_control_and_stays_there(talking: ChatRouters) -> None:
    talking.change(traffic=ALL_GREEN)
    assert talking.ask("chat") == "green"
    talking.change(traffic={"blue": 50, "green": 50})
    talking.wait_for_pins(1)
    assert talking.ask("chat", 1) == "green"
    talking.controller.stops = [TrafficBlock("1", "chat", "green", "blue")]
    for router in talking.routers:
        wait_until(lambda router=router: bool(router.state.snapshot.stops))  # type: ignore[misc]
    assert talking.ask("chat", 2) == talking.ask("chat", 3, router=1) == "blue"
    assert [talking.misses("stopped", router) for router in (0, 1)] == [1.0, 1.0]
    talking.controller.stops = []
    for router in talking.routers:
        wait_until(lambda router=router: not router.state.snapshot.stops)  # type: ignore[misc]
    talking.change(traffic=ALL_GREEN)
    assert talking.ask("chat", 4) == talking.ask("chat", 5, router=1) == "blue", "it does not go back and forth"


def test_a_pin_of_a_deployment_that_fails_or_is_gone_counts_as_a_miss(talking: ChatRouters) -> None:
    assert talking.ask("chat") == "blue"
    talking.change(traffic=ALL_GREEN)
    assert talking.ask("chat", 1) == "blue"
    talking.rig.blue.answer = refuse(500, "out of memory")
    with httpx.Client(base_url=talking.urls[0], headers={"authorization": f"Bearer {talking.keys['ann']}"}) as client:
        for _ in range(10):
            talking.ask("chat", 1)
        wait_until(lambda: open_breakers(client) == ["blue"])
    assert talking.ask("chat", 1) == "green"
    assert talking.misses("failing") >= 1
    deployments = {name: deployment for name, deployment in talking.rig.config["deployments"].items() if name != "blue"}
    talking.rig.config = {**talking.rig.config, "deployments": deployments}
    talking.change(traffic={"green": 100})
    assert talking.ask("chat", 1, router=1) == "green"
    assert talking.misses("gone", 1) == 1


def test_without_a_controller_a_pin_stays_on_its_router_and_is_a_miss_when_it_comes_late(talking: ChatRouters) -> None:
    talking.controller.absent = True
    talking.change(traffic=ALL_GREEN)
    assert talking.ask("new") == "green"
    assert talking.ask("new", 1) == "green"
    assert talking.ask("new", 1, router=1) == "blue", "it looks as if it had started before"
    talking.controller.absent = False
    talking.wait_for_pins(1)
    assert talking.ask("new", 2, router=1) == "green"
    assert (talking.misses("late", 1), talking.misses("late", 0)) == (1.0, 0.0)


def test_without_pin_s_and_without_sticky_nothing_is_pinned(talking: ChatRouters) -> None:
    talking.change(pin_s=0)
    assert talking.ask("chat") == "blue"
    talking.change(traffic=ALL_GREEN)
    assert talking.ask("chat", 1) == "green"
    endpoint = {name: value for name, value in talking.rig.config["endpoints"]["chat"].items() if name != "pin_s"}
    talking.rig.change(endpoints={**talking.rig.config["endpoints"], "chat": endpoint})
    talking.change(sticky=None)
    talking.change(traffic=ALL_BLUE)
    assert talking.ask("chat", 1) == "blue"
    assert talking.routers[0].state.snapshot.rules == {}  # type: ignore[union-attr]


def test_pinned_requests_are_recorded(rig: Rig) -> None:
    rig.change(experiments={"first": EXPERIMENT})
    rig.chat_endpoint(traffic=ALL_BLUE, sticky={"by": "conversation"}, pin_s=600)

    def ask(opening: str, turns: int = 0) -> httpx.Response:
        return httpx.post(f"{rig.url}/v1/chat/completions", json=said(opening, turns), timeout=30)

    ask("old")
    rig.chat_endpoint(traffic=ALL_GREEN)
    plan = ask("old", 1).headers["x-switchyard-plan"]
    ask("new")
    ask("new", 1)
    before, pinned, first, second = rig.keeper.wait_for(rows=4)
    assert {row.plan for row in (pinned, first, second)} == {plan} != {before.plan}
    assert [row.assigned for row in (pinned, first, second)] == ["blue", "green", "green"]
    assert [row.reason for row in (pinned, first, second)] == [Reason.PINNED, Reason.STICKY, Reason.STICKY]
    assert [row.flags for row in (pinned, first, second)] == [Flag.CARRIED, Flag(0), Flag.CARRIED]
    assert pinned.item.unit == before.item.unit
    rig.chat_endpoint(pin_s=0, traffic={"blue": 1, "green": 99})
    ask("newer", 1)
    assert rig.keeper.wait_for(rows=5)[4].flags == Flag.CARRIED, "the change before still counts"


@pytest.mark.parametrize("gap", [0.05, 0.2])
async def test_a_conversation_keeps_its_model_on_a_router_without_the_new_plan(
    talking: ChatRouters, gap: float
) -> None:
    """One of three routers gets a change five seconds after the others, and any of them gets any turn."""
    for _ in range(3):
        talking.start(send_every_s=1.0)
    routers, random, count = range(2, 5), Random(1), 40
    for router in talking.routers[2:]:
        wait_until(lambda router=router: router.state.pins.has_others)  # type: ignore[misc]
    talking.rig.chat_endpoint(traffic={"blue": 50, "green": 50})
    talking.controller.configure(parse(talking.rig.config))
    for router in talking.routers[:-1]:
        router.reconfigure(talking.rig.config)

    async def loop(client: httpx.AsyncClient, number: int) -> list[str]:
        await asyncio.sleep(5 * number / count)
        answered = []
        for turn in range(round(2 / gap)):
            url = talking.urls[random.choice(routers)]
            sent = {"authorization": f"Bearer {talking.keys['ann']}"}
            answer = await client.post(
                f"{url}/v1/chat/completions", json=said(f"loop {number}", turn), headers=sent, timeout=30
            )
            answered.append(answer.headers["azureml-model-deployment"])
            await asyncio.sleep(gap)
        return answered

    async def deliver() -> None:
        await asyncio.sleep(5)
        talking.routers[-1].reconfigure(talking.rig.config)

    async with httpx.AsyncClient() as client:
        delivered = asyncio.create_task(deliver())
        loops = await asyncio.gather(*(loop(client, number) for number in range(count)))
        await delivered
    flaps = sum(before != after for answered in loops for before, after in pairwise(answered))
    turns = sum(len(answered) - 1 for answered in loops)
    assert binomtest(flaps, turns, 0.005, alternative="greater").pvalue > 0.001, (flaps, turns)
    assert {answered[0] for answered in loops} == {"blue", "green"}


async def test_an_agents_loop_stays_on_the_model_on_which_it_began(talking: ChatRouters) -> None:
    """Turns 0.05 s apart come to any router, and routers send their batches once a second."""
    for _ in range(3):
        talking.start(send_every_s=1.0)
    routers, random = range(2, 5), Random(1)
    talking.change(traffic={"blue": 50, "green": 50})

    async def flaps(client: httpx.AsyncClient, number: int) -> int:
        answered = []
        for turn in range(6):
            url = talking.urls[random.choice(routers)]
            sent = {"authorization": f"Bearer {talking.keys['ann']}"}
            answer = await client.post(
                f"{url}/v1/chat/completions", json=said(f"loop {number}", turn), headers=sent, timeout=30
            )
            answered.append(answer.headers["azureml-model-deployment"])
            await asyncio.sleep(0.05)
        return sum(before != after for before, after in pairwise(answered))

    async with httpx.AsyncClient() as client:
        flaps_by_loop = await asyncio.gather(*(flaps(client, number) for number in range(40)))
    assert sum(flaps_by_loop) <= 0.005 * 40 * 5, flaps_by_loop
