"""`/ready` probes no application that may be scaled to zero."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from app.access.caller import ConfigViews
from app.config.schema import parse
from app.control_plane import LEAST_EVERY_S, RUNNING_EVERY_S, Replicas, RunningReplicas
from app.errors import Unavailable
from app.routing.admission import UnmetDemand
from app.server.replicas import CACHE_S, Readiness, UnservedDemand, document, has_replica
from app.upstream.target import RuntimeEnvironment, Target, targets
from tests.support.processes.fake_control_plane import MemoryControl

RAW: dict[str, Any] = {
    "endpoints": {
        "chat": {"tasks": ["chat"], "traffic": {"blue": 100, "green": 0}},
        "other": {"tasks": ["chat"], "traffic": {"hosted": 100}},
    },
    "deployments": {
        "blue": {"app": "blue", "model": "m"},
        "green": {"app": "green", "model": "m"},
        "hosted": {"url": "http://elsewhere", "model": "m"},
    },
}
CONFIG = parse(RAW)
TARGETS = targets(CONFIG, RuntimeEnvironment())


class Fixture:
    """A readiness check with a control plane in memory, recorded probes, and a clock."""

    def __init__(self, applications: Mapping[str, Mapping[str, int]], asleep: frozenset[str] = frozenset()) -> None:
        self.probed: list[str] = []
        self.now = 100.0
        self.plane = MemoryControl(RAW, lambda config: None)
        self.plane.running = Replicas(applications, {}, asleep)
        self.running = RunningReplicas(self.plane, lambda: self.now)
        self.readiness = Readiness(self.probe, self.running, lambda: self.now)

    async def probe(self, target: Target, timeout_s: float) -> bool:
        self.probed.append(target.name)
        return True

    async def healthy(self) -> dict[str, bool]:
        return dict(await self.readiness.check(CONFIG, TARGETS))


async def test_only_servers_elsewhere_are_probed() -> None:
    given = Fixture({"blue": {"RUNNING": 1}, "green": {}}, frozenset({"green"}))
    assert await given.healthy() == {"blue": True, "green": True, "hosted": True}
    assert given.probed == ["hosted"]
    assert given.readiness.asleep(CONFIG) == ["green"]


def test_what_is_asked_about_an_application_s_replicas() -> None:
    replicas = Replicas({"blue": {"RUNNING": 2}, "green": {"STARTING": 1}, "red": {}}, {}, {"red"})
    asked = ("blue", "green", "red", "other", None)
    assert [replicas.running(name) for name in asked] == [2, 0, 0, 0, 0]
    assert [replicas.lacks(name) for name in asked] == [False, True, True, True, False]
    assert [replicas.keeps(name) for name in asked] == [True, True, False, False, False]
    assert [replicas.is_vacant(name) for name in asked[:-1]] == [False, True, False, False]
    assert not Replicas({"blue": {"STARTING": 1, "STOPPING": 1}}, {}).is_vacant("blue"), "it may work on its last ones"


def test_what_was_told_since_corrects_what_the_control_plane_has_listed() -> None:
    listed = Replicas(
        {"blue": {"RUNNING": 1}, "green": {"STARTING": 2}, "red": {}, "other": {"RUNNING": 2}},
        {"RUNNING": 1},
        {"red"},
        {"blue": ["b1"], "other": ["o1", "o2"]},
        waking={"green"},
    )
    assert listed.as_told({}, ()) == listed
    assert listed.as_told({"blue": ["b1"], "green": [], "red": []}, ["x"]) == listed
    told = listed.as_told({"blue": [], "green": ["g1"], "red": ["r1"], "other": ["o2"], "new": ["n1"]}, ["b1"])
    assert told.applications == {
        "blue": {},
        "green": {"RUNNING": 1, "STARTING": 1},
        "red": {"RUNNING": 1},
        "other": {"RUNNING": 2},  # o1 was never listed: it may be of another kind
        "new": {"RUNNING": 1},
    }
    assert [told.running(name) for name in ("blue", "green", "red", "other")] == [0, 1, 1, 2]
    assert (told.asleep, told.waking) == (set(), set()), "what answers is neither"
    assert told.serving("green", {"g1"}) == 0


async def test_an_application_wakes_from_its_sleep_until_a_replica_runs() -> None:
    given, seen = Fixture({}), []
    states: list[tuple[dict[str, int], bool]] = [
        ({"STARTING": 1}, False),
        ({}, True),
        ({"STARTING": 1}, False),
        ({}, False),
        ({"STARTING": 1}, False),
        ({"RUNNING": 1}, False),
        ({"STARTING": 1}, False),
    ]
    for counts, is_asleep in states:
        given.plane.running = Replicas({"blue": counts}, {}, {"blue"} if is_asleep else frozenset())
        given.now += RUNNING_EVERY_S
        replicas = await given.running.now()
        assert replicas is not None
        seen.append("blue" in replicas.waking)
    assert seen == [False, False, True, True, True, False, False]


async def test_a_change_makes_an_answer_outdated_at_once() -> None:
    given = Fixture({"blue": {"RUNNING": 1}})
    await given.running.now()
    given.plane.running = Replicas({"blue": {}}, {})
    given.running.outdated()

    async def asked(later_s: float) -> tuple[int | None, bool]:
        given.now += later_s
        replicas = await given.running.now()
        return replicas.running("blue") if replicas is not None else None, given.running.is_outdated

    assert await asked(LEAST_EVERY_S / 2) == (1, True), "it was asked just now"
    given.plane.failure = Unavailable("The Serve controller is not available")
    assert await asked(LEAST_EVERY_S / 2) == (None, True)
    given.plane.failure = None
    assert await asked(LEAST_EVERY_S) == (0, False)
    alone = RunningReplicas(None)
    alone.outdated()
    assert not alone.is_outdated


async def test_a_change_is_seen_before_the_next_usual_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.control_plane.LEAST_EVERY_S", 0.001)
    running, seen = RunningReplicas(MemoryControl(RAW, lambda config: None)), asyncio.Event()
    async with running.watched(lambda replicas: seen.set()):
        running.outdated()
        await asyncio.wait_for(seen.wait(), RUNNING_EVERY_S / 2)


async def test_the_age_of_the_last_answer_is_known_while_there_is_no_other() -> None:
    given = Fixture({"blue": {"RUNNING": 1}})
    ages, answers = [], []
    for failure, later_s in ((None, 0.0), (Unavailable("The Serve controller is not available"), RUNNING_EVERY_S + 7)):
        given.plane.failure = failure
        given.now += later_s
        answers.append(await given.running.now())
        ages.append(given.running.silent_s)
    assert ages == [None, RUNNING_EVERY_S + 7]
    assert answers == [given.running.last, None]
    assert given.running.last is not None


@pytest.mark.parametrize(
    "applications",
    [{"blue": {"STARTING": 1}}, {"blue": {"STOPPING": 1}}, {"blue": {}}, {}],
    ids=["starting", "stopping", "no replica yet", "not deployed"],
)
async def test_an_application_that_neither_runs_nor_sleeps_is_not_ready(
    applications: Mapping[str, Mapping[str, int]],
) -> None:
    given = Fixture(applications)
    assert (await given.healthy())["blue"] is False
    assert "blue" not in given.probed


async def test_serve_is_called_at_most_every_few_seconds() -> None:
    given = Fixture({"blue": {"RUNNING": 1}})
    assert (await given.healthy())["blue"]
    given.plane.running = Replicas({"blue": {}}, {})
    given.now += RUNNING_EVERY_S - 0.1
    assert (await given.healthy())["blue"]
    given.now += CACHE_S
    assert not (await given.healthy())["blue"]


async def test_servers_are_probed_once_a_second() -> None:
    given = Fixture({})
    await given.healthy()
    given.now += CACHE_S - 0.1
    await given.healthy()
    assert given.probed == ["hosted"]
    given.now += 0.1
    await given.healthy()
    assert given.probed == ["hosted", "hosted"]


async def test_while_serve_does_not_answer_its_last_answer_holds() -> None:
    given = Fixture({"blue": {"RUNNING": 1}})
    await given.healthy()
    given.plane.failure = Unavailable("away")
    given.now += RUNNING_EVERY_S
    assert (await given.healthy())["blue"]


async def test_before_serve_has_answered_no_application_is_started() -> None:
    given = Fixture({"blue": {"RUNNING": 1}})
    given.plane.failure = Unavailable("away")
    assert not (await given.healthy())["blue"]
    assert given.probed == ["hosted"]


async def test_without_a_control_plane_all_deployments_are_probed() -> None:
    given = Fixture({})
    await Readiness(given.probe, RunningReplicas(None)).check(CONFIG, TARGETS)
    assert given.probed == ["blue", "green", "hosted"]


def test_an_endpoint_needs_a_ready_deployment_with_traffic() -> None:
    ready, body = document(CONFIG, {"blue": False, "green": True, "hosted": True}, ["green"], [])
    assert not ready
    assert body == {
        "status": "not ready",
        "endpoints": {"chat": False, "other": True},
        "deployments": {"blue": False, "green": True, "hosted": True},
        "open_breakers": [],
        "asleep": ["green"],
    }


CONFIG_UNSERVED_DEMAND: dict[str, Any] = {
    "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}}},
    "deployments": {
        "blue": {"app": "llama", "model": "m"},
        "green": {"app": "llama", "model": "m"},
        "hosted": {"url": "http://elsewhere", "model": "m"},
    },
}
VIEWS = ConfigViews(parse(CONFIG_UNSERVED_DEMAND))


def control() -> MemoryControl:
    return MemoryControl(CONFIG_UNSERVED_DEMAND, lambda config: None)


async def test_the_demand_of_an_application_is_that_of_its_deployments() -> None:
    unserved, plane = UnmetDemand(), control()
    demand = UnservedDemand(unserved, lambda: VIEWS, plane)
    with unserved.waiting("blue"), unserved.waiting("green"), unserved.waiting("hosted"), unserved.waiting("gone"):
        await demand.report(plane)
    assert plane.unserved == [{"llama": 2}]


async def test_the_end_of_demand_is_reported_once() -> None:
    unserved, plane = UnmetDemand(), control()
    demand = UnservedDemand(unserved, lambda: VIEWS, plane)
    await demand.report(plane)
    with unserved.waiting("blue"):
        await demand.report(plane)
    await demand.report(plane)
    await demand.report(plane)
    assert plane.unserved == [{"llama": 1}, {"llama": 0}]


async def test_an_unavailable_control_plane_is_called_again() -> None:
    unserved, plane = UnmetDemand(), control()
    demand = UnservedDemand(unserved, lambda: VIEWS, plane)
    with unserved.waiting("blue"):
        await demand.report(plane)
    plane.failure = Unavailable("away")
    await demand.report(plane)
    plane.failure = None
    await demand.report(plane)
    assert plane.unserved == [{"llama": 1}, {"llama": 0}]


async def test_demand_is_reported_periodically() -> None:
    unserved, plane = UnmetDemand(), control()
    with unserved.waiting("blue"):
        async with UnservedDemand(unserved, lambda: VIEWS, plane, every_s=0.0).running():
            while not plane.unserved:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert plane.unserved[0] == {"llama": 1}


async def test_before_the_first_configuration_there_is_no_demand() -> None:
    plane = control()
    await UnservedDemand(UnmetDemand(), lambda: None, plane).report(plane)
    assert plane.unserved == []


def test_a_deployment_lacks_a_replica_unless_it_is_scaled_to_zero() -> None:
    starting = Replicas({"blue": {"STARTING": 1}, "green": {}}, {}, frozenset({"green"}))
    assert has_replica(starting, CONFIG) == {("chat", "blue"): False}
    wanted = has_replica(starting, CONFIG, wanted={"green"})
    assert wanted == {("chat", "blue"): False, ("chat", "green"): False}, "a request waits for it"
    running = Replicas({"blue": {"RUNNING": 1}}, {})
    assert has_replica(running, CONFIG)["chat", "blue"] is True
    running = running._replace(ids={"blue": ["replica"]})
    assert has_replica(running, CONFIG, {"other"})["chat", "blue"] is True
    assert has_replica(running, CONFIG, {"replica"})["chat", "blue"] is False, "its engine has died"
