"""Changes of an endpoint's traffic in the control plane: applied as a whole or not at all."""

import asyncio
import copy
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.endpoints import MAX_EARLIER, EarlierWeights, Override, PlanSettings
from app.config.schema import Config, Endpoint, parse
from app.control_plane import (
    Applied,
    Authorship,
    Delivery,
    WantedPlan,
    change_plan,
    change_traffic,
    delivery_seen,
    planned,
    restore_expired,
    with_traffic,
)
from app.errors import BadRequest, Conflict
from app.exposures.plans import plan_of
from tests.support.processes.fake_control_plane import MemoryControl

DATA: dict[str, Any] = {
    "endpoints": {
        "chat": {"tasks": ["chat"], "traffic": {"blue": 90, "green": 10}, "sticky": {"by": "user"}},
        "other": {"tasks": ["chat"], "traffic": {"blue": 100}},
    },
    "deployments": {"blue": {"app": "blue", "model": "m"}, "green": {"app": "green", "model": "m"}},
    "timeouts": {"idle_s": 7},
}
SEEN = {"blue": 90, "green": 10}
MOVED = {"blue": 0, "green": 100}
ALICE = Authorship("alice", at=1000.0)


@pytest.fixture
def control() -> MemoryControl:
    return MemoryControl(copy.deepcopy(DATA), parse)


async def test_only_the_traffic_and_its_plan_change(control: MemoryControl) -> None:
    await change_traffic(control, "chat", seen=SEEN, wanted=MOVED, author=ALICE)
    expected = copy.deepcopy(DATA)
    expected["endpoints"]["chat"]["traffic"] = MOVED
    earlier = [{"weights": SEEN, "until": 2800.0}]
    expected["endpoints"]["chat"]["plan"] = {"generation": 1, "by": "alice", "since": 1000.0, "earlier": earlier}
    assert control.config == expected


async def test_a_repeated_change_does_nothing(control: MemoryControl) -> None:
    for _ in range(2):
        await change_traffic(control, "chat", seen=SEEN, wanted=MOVED, author=ALICE)
    assert control.replaced == 1


async def test_traffic_that_changed_in_the_meantime_is_not_overwritten(control: MemoryControl) -> None:
    control.config = with_traffic(DATA, "chat", {"blue": 50, "green": 50})
    before = copy.deepcopy(control.config)
    with pytest.raises(Conflict, match="has changed in the meantime"):
        await change_traffic(control, "chat", seen=SEEN, wanted=MOVED, author=ALICE)
    assert control.config == before


async def test_an_update_in_progress_refuses_the_next(control: MemoryControl) -> None:
    await change_traffic(control, "other", seen={"blue": 100}, wanted={"blue": 50, "green": 50}, author=ALICE)
    with pytest.raises(Conflict, match="in progress"):
        await change_traffic(control, "chat", seen=SEEN, wanted=MOVED, author=ALICE)
    control.deliver()
    await change_traffic(control, "chat", seen=SEEN, wanted=MOVED, author=ALICE)
    assert control.config["endpoints"]["other"]["traffic"] == {"blue": 50, "green": 50}


@pytest.mark.parametrize("delivery", [Delivery.UNSETTLED, Delivery.FAILED])
async def test_an_entry_that_is_no_update_blocks_nothing(control: MemoryControl, delivery: Delivery) -> None:
    control.delivery = delivery
    await change_traffic(control, "chat", seen=SEEN, wanted=MOVED, author=ALICE)
    assert control.replaced == 1


async def test_exactly_one_of_concurrent_changes_is_made(control: MemoryControl) -> None:
    wanted = [{"blue": share, "green": 100 - share} for share in range(10)]
    changes = [change_traffic(control, "chat", seen=SEEN, wanted=traffic, author=ALICE) for traffic in wanted]
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    assert (outcomes.count(None), sum(isinstance(outcome, Conflict) for outcome in outcomes)) == (1, 9)
    assert control.config["endpoints"]["chat"]["traffic"] == wanted[outcomes.index(None)]


class Interrupted(MemoryControl):
    """Another client applies another configuration between the read and the change."""

    async def applied(self) -> Applied:
        seen = await super().applied()
        self.config = {**self.config, "max_body_bytes": 4096}
        return seen


async def test_a_change_in_between_is_noticed() -> None:
    control = Interrupted(copy.deepcopy(DATA), parse)
    with pytest.raises(Conflict, match="has changed in the meantime"):
        await change_traffic(control, "chat", seen=SEEN, wanted=MOVED, author=ALICE)
    assert control.config == {**DATA, "max_body_bytes": 4096}


async def test_an_invalid_configuration_is_not_sent(control: MemoryControl) -> None:
    with pytest.raises(BadRequest, match="unknown deployment 'red'") as raised:
        await change_traffic(control, "chat", seen=SEEN, wanted={"red": 100}, author=ALICE)
    assert raised.value.param == "traffic_config"
    assert control.config == DATA


async def test_an_invalid_configuration_builds_nothing(control: MemoryControl) -> None:
    control.config = wrong = with_traffic(DATA, "chat", {"blue": 1})
    with pytest.raises(Conflict, match="last applied configuration is invalid"):
        await change_traffic(control, "chat", seen=SEEN, wanted=MOVED, author=ALICE)
    assert control.config == wrong


async def test_an_endpoint_that_is_gone_is_a_conflict(control: MemoryControl) -> None:
    with pytest.raises(Conflict, match="has changed in the meantime"):
        await change_traffic(control, "gone", seen=SEEN, wanted=MOVED, author=ALICE)


def endpoint(control: MemoryControl) -> Endpoint:
    return parse(control.config).endpoints["chat"]


def plan_id(control: MemoryControl) -> str:
    return plan_of("chat", endpoint(control)).id


async def change(control: MemoryControl, wanted: WantedPlan, at: float = 1000.0, least: int = 1) -> None:
    await change_plan(control, "chat", check=lambda config: wanted, author=Authorship("alice", at, least))
    control.deliver()


GREEN = Override(unit="00000000000000ab", deployment="green")


async def test_every_change_is_the_next_generation(control: MemoryControl) -> None:
    await change(control, WantedPlan(MOVED, (GREEN,), reason="a try"))
    plan = endpoint(control).plan
    said = {"generation": 1, "overrides": (GREEN,), "by": "alice", "reason": "a try", "since": 1000.0}
    assert plan == PlanSettings(**said, earlier=(EarlierWeights(weights=SEEN, until=2800.0),))
    await change(control, WantedPlan(SEEN, (GREEN,)), least=7)
    assert (endpoint(control).plan.generation, endpoint(control).plan.reason) == (7, None)
    await change_traffic(control, "chat", seen=SEEN, wanted=MOVED, author=ALICE)
    plan = endpoint(control).plan
    assert (plan.generation, plan.overrides) == (8, (GREEN,)), "a change of the traffic alone leaves overrides"


async def test_the_same_plan_again_is_the_same_generation(control: MemoryControl) -> None:
    for wanted in (WantedPlan(SEEN), WantedPlan(SEEN, reason="again")):
        await change(control, wanted)
    assert (control.replaced, plan_id(control)[0]) == (0, "0")
    for at in (1000.0, 1500.0):
        await change(control, WantedPlan(MOVED, (GREEN,), ttl_s=3600.0), at)
    assert control.replaced == 1
    expires = endpoint(control).plan.expires
    assert expires is not None
    assert expires.at == 4600.0, "a repeated request does not move the end"
    await change(control, WantedPlan(MOVED, (GREEN,), ttl_s=7200.0), at=1500.0)
    await change(control, WantedPlan(MOVED, (GREEN,)))
    assert (endpoint(control).plan.generation, endpoint(control).plan.expires) == (3, None)


documents = st.builds(
    lambda blue, overridden, ttl_s: WantedPlan({"blue": blue, "green": 100 - blue}, (GREEN,) * overridden, ttl_s),
    st.sampled_from([0, 50, 90]),
    st.booleans(),
    st.sampled_from([None, 60.0]),
)


@given(st.lists(documents, max_size=12))
def test_generations_count_the_documents_that_differ_from_the_one_before(them: list[WantedPlan]) -> None:
    async def made() -> tuple[list[tuple[int, str]], int]:
        control, found = MemoryControl(copy.deepcopy(DATA), parse), list[tuple[int, str]]()
        for number, wanted in enumerate(them):
            await change(control, wanted, at=1000.0 + number)
            assert (endpoint(control).traffic, endpoint(control).plan.overrides) == (wanted.weights, wanted.overrides)
            found.append((endpoint(control).plan.generation, plan_id(control)))
        return found, control.replaced

    found, replaced = asyncio.run(made())
    pairs = pairwise([WantedPlan(SEEN), *them])
    differing = sum(one != other for one, other in pairs)
    assert replaced == differing == (found[-1][0] if found else 0)
    assert len({id for _, id in found}) == len({generation for generation, _ in found})
    assert [generation for generation, _ in found] == sorted(generation for generation, _ in found)


async def test_a_check_that_refuses_changes_nothing(control: MemoryControl) -> None:
    def refuse(config: Config) -> WantedPlan:
        raise BadRequest("no")

    with pytest.raises(BadRequest, match="no"):
        await change_plan(control, "chat", check=refuse, author=ALICE)
    with pytest.raises(Conflict, match="has changed in the meantime"):
        await change_plan(control, "gone", check=refuse, author=ALICE)
    await change_plan(control, "chat", check=lambda config: WantedPlan(MOVED), author=ALICE)
    with pytest.raises(Conflict, match="in progress"):
        await change_plan(control, "chat", check=lambda config: WantedPlan(SEEN), author=ALICE)
    assert control.replaced == 1


async def test_a_temporary_plan_ends_in_the_one_before(control: MemoryControl) -> None:
    await change(control, WantedPlan(SEEN, (GREEN,)))
    await change(control, WantedPlan(MOVED, ttl_s=60.0, reason="a try"), at=1000.0)
    for now in (1000.0, 1059.9):
        assert await restore_expired(control, now) == parse(control.config)
    assert control.replaced == 2
    restored = await restore_expired(control, 1060.0)
    assert restored == parse(control.config)
    plan = endpoint(control).plan
    assert (endpoint(control).traffic, plan.overrides, plan.expires) == (SEEN, (GREEN,), None)
    assert (plan.generation, plan.by, plan.since) == (3, "alice", 1060.0)
    assert plan.reason == "generation 2 was temporary: generation 1 again"
    control.deliver()
    await restore_expired(control, 9999.0)
    assert control.replaced == 3


async def test_a_temporary_plan_counts_those_before_it_as_the_history_does(control: MemoryControl) -> None:
    """Plans of deployed files have no numbers of their own."""
    author = Authorship("alice", 1000.0, least_generation=4)
    await change_plan(control, "chat", check=lambda config: WantedPlan(MOVED, ttl_s=60.0), author=author)
    control.deliver()
    await restore_expired(control, 1060.0)
    assert endpoint(control).plan.reason == "generation 4 was temporary: generation 3 again"


async def test_nothing_temporary_becomes_lasting_by_itself(control: MemoryControl) -> None:
    for share in (50, 20):
        await change(control, WantedPlan({"blue": share, "green": 100 - share}, ttl_s=60.0))
    await restore_expired(control, 1060.0)
    assert endpoint(control).traffic == SEEN


@pytest.mark.parametrize("after", ["traffic", "plan", "file"])
async def test_another_change_cancels_the_end(control: MemoryControl, after: str) -> None:
    await change(control, WantedPlan(MOVED, ttl_s=60.0))
    between = {"blue": 40, "green": 60}
    if after == "traffic":
        await change_traffic(control, "chat", seen=MOVED, wanted=between, author=ALICE)
        control.deliver()
    elif after == "plan":
        await change(control, WantedPlan(between))
    else:
        control.config = with_traffic(DATA, "chat", between)
    await restore_expired(control, 9999.0)
    assert endpoint(control).traffic == between


async def test_an_end_waits_for_the_update_in_progress_and_yields_to_a_change_in_between(
    control: MemoryControl,
) -> None:
    await change(control, WantedPlan(MOVED, ttl_s=60.0))
    await change_traffic(control, "other", seen={"blue": 100}, wanted={"blue": 50, "green": 50}, author=ALICE)
    await restore_expired(control, 2000.0)
    assert endpoint(control).traffic == MOVED
    interrupted = Interrupted(control.config, parse)
    await restore_expired(interrupted, 2000.0)
    assert endpoint(interrupted).traffic == MOVED
    control.deliver()
    await restore_expired(control, 2000.0)
    assert endpoint(control).traffic == SEEN


async def test_nothing_is_restored_in_an_invalid_configuration(control: MemoryControl) -> None:
    control.config = with_traffic(DATA, "chat", {"blue": 1})
    assert await restore_expired(control, 2000.0) is None


SERVED = parse(DATA)
OTHER = parse(with_traffic(DATA, "chat", MOVED))


@pytest.mark.parametrize("delivery", [Delivery.DELIVERING, Delivery.UNSETTLED, Delivery.FAILED])
def test_an_update_pending_in_serve_is_pending_here(delivery: Delivery) -> None:
    assert delivery_seen(Applied(DATA, delivery, 1), SERVED, SERVED) is delivery


def test_an_update_is_settled_once_this_router_serves_it() -> None:
    applied = Applied(copy.deepcopy(DATA), Delivery.SETTLED, 1)
    assert delivery_seen(applied, SERVED, SERVED) is Delivery.SETTLED
    assert delivery_seen(applied, OTHER, SERVED) is Delivery.SETTLED
    assert delivery_seen(applied, SERVED, OTHER) is Delivery.UNSETTLED


@pytest.mark.parametrize("config", [with_traffic(DATA, "chat", MOVED), with_traffic(DATA, "chat", {"blue": 1}), None])
def test_a_configuration_that_this_router_has_and_does_not_serve_has_failed(config: Any) -> None:
    assert delivery_seen(Applied(config, Delivery.SETTLED, 1), SERVED, SERVED) is Delivery.FAILED


# --- weights that running conversations follow -----------------------------------------------------


def chat_endpoint(**fields: Any) -> Endpoint:
    chat = {"tasks": ["chat"], "traffic": SEEN, "sticky": {"by": "user"}, "pin_s": 60.0, **fields}
    return parse({**DATA, "endpoints": {**DATA["endpoints"], "chat": chat}}).endpoints["chat"]


def changed(endpoint: Endpoint, *weights: Mapping[str, int], **more: Any) -> list[tuple[Mapping[str, int], float]]:
    """The earlier weights after these changes, ten seconds apart, and until when they count."""
    for number, wanted in enumerate(weights):
        endpoint = planned(endpoint, WantedPlan(wanted, **more), Authorship("alice", 1000.0 + 10 * number))
    return [(dict(replaced.weights), replaced.until) for replaced in endpoint.plan.earlier]


HALF = {"blue": 50, "green": 50}


def test_a_change_keeps_the_weights_before_for_as_long_as_conversations_are_pinned() -> None:
    assert changed(chat_endpoint(), MOVED) == [(SEEN, 1060.0)]
    assert changed(chat_endpoint(), MOVED, HALF) == [(SEEN, 1070.0), (MOVED, 1070.0)], "the time starts over"
    assert changed(chat_endpoint(pin_s=10.0), MOVED, HALF) == [(MOVED, 1020.0)], "expired weights are removed"
    assert changed(chat_endpoint(), MOVED, SEEN, MOVED) == [(SEEN, 1080.0), (MOVED, 1080.0)], "each is listed once"


def test_a_change_that_moves_no_conversation_keeps_no_earlier_weights() -> None:
    assert changed(chat_endpoint(), SEEN, overrides=(GREEN,)) == []
    loose = chat_endpoint(sticky=None, pin_s=1800)
    assert changed(chat_endpoint(pin_s=0), MOVED) == changed(loose, MOVED) == []
    assert changed(chat_endpoint(), MOVED, MOVED) == [(SEEN, 1060.0)], "a change of something else does not prolong it"


def test_beyond_the_bound_the_oldest_weights_are_dropped() -> None:
    weights = [{"blue": share, "green": 100 - share} for share in range(1, MAX_EARLIER + 5)]
    plans = changed(chat_endpoint(pin_s=10_000.0), *weights)
    assert [name for name, _ in plans] == weights[-MAX_EARLIER - 1 : -1]


def test_a_deployment_stays_withdrawn_until_it_has_a_share_again() -> None:
    withdrawn = {"blue": "green"}
    out = planned(chat_endpoint(), WantedPlan(MOVED, withdrawn=withdrawn), Authorship("alice", 1000.0))
    assert out.plan.withdrawn == withdrawn
    still = planned(out, WantedPlan(MOVED, (GREEN,)), Authorship("alice", 1010.0))
    assert still.plan.withdrawn == withdrawn
    assert planned(out, WantedPlan(HALF), Authorship("alice", 1010.0)).plan.withdrawn == {}
    assert planned(out, WantedPlan(MOVED, (GREEN,)), Authorship("alice", 2000.0)).plan.withdrawn == {}, (
        "no conversation is pinned"
    )


def test_a_conversation_that_left_a_withdrawn_deployment_does_not_go_back_when_it_has_a_share_again() -> None:
    out = planned(chat_endpoint(), WantedPlan(MOVED, withdrawn={"blue": "green"}), Authorship("alice", 1000.0))
    again = planned(out, WantedPlan(SEEN), Authorship("alice", 1010.0))
    assert [(dict(replaced.weights), replaced.withdrawn) for replaced in again.plan.earlier] == [
        (SEEN, {"blue": "green"}),
        (MOVED, {}),
    ]
    then = planned(again, WantedPlan(HALF), Authorship("alice", 1020.0))
    assert (SEEN, {}) in [(dict(replaced.weights), replaced.withdrawn) for replaced in then.plan.earlier], (
        "conversations started since stay on blue"
    )
