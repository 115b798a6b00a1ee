"""Which replica a request goes to, and which replicas get none."""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from app.telemetry.logs import Lack
from app.upstream.balancer import (
    CHECK_EVERY_S,
    FIRST_PAUSE_S,
    IDLE_CHECKS_PER_S,
    IDLE_S,
    LONGEST_PAUSE_S,
    MOST_GONE,
    SILENCE_S,
    Address,
    Balancer,
    Placement,
    Visit,
)

KEYS = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(1, 201)]
AMPLE = 16
NAMES = ("a", "b", "c", "d", "e")


class Clock:
    """Seconds that a test moves on."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def address(name: str, host: str = "host") -> Address:
    return Address(f"SERVE_REPLICA::blue#Engine#{name}", f"http://{host}:{30000 + ord(name)}", "/deployments/blue")


def balancer(names: Sequence[str] = NAMES[:4], clock: Clock | None = None) -> Balancer:
    made = Balancer(clock=clock or Clock(), random=Random(0))
    made.update({"blue": [address(name) for name in names]})
    return made


def visited(balancer: Balancer, placement: Placement) -> str:
    """The replica of a request that is over at once."""
    started(balancer, placement).end(has_failed=False)
    return placement.chosen[-1]


def started(balancer: Balancer, placement: Placement) -> Visit:
    visit = balancer.visit("blue", placement)
    assert visit is not None
    return visit


def homes(balancer: Balancer) -> dict[int, str]:
    return {key: visited(balancer, Placement(key, AMPLE)) for key in KEYS}


async def healthy(origin: str) -> bool:
    return True


async def ill(origin: str) -> bool:
    return False


def test_a_key_keeps_its_replica_and_keys_are_dealt_out() -> None:
    four = balancer()
    first = homes(four)
    assert homes(four) == first
    shares = Counter(first.values())
    assert shares.keys() == {"a", "b", "c", "d"}
    assert min(shares.values()) > len(KEYS) / 4 / 3


def test_every_router_chooses_the_same_and_a_new_replica_takes_only_its_share() -> None:
    before = homes(balancer())
    assert homes(balancer(("d", "c", "b", "a"))) == before
    after = homes(balancer(NAMES))
    moved = {key for key in KEYS if after[key] != before[key]}
    assert {after[key] for key in moved} == {"e"}
    assert 0 < len(moved) <= len(KEYS) * (1 / 5 + 0.1)


def room(requests: int, bound: float) -> int:
    """The number of equal `requests` that one of four replicas may have; once all are full, the least busy gets
    more."""
    mean = requests / 4
    return max(2, math.ceil(mean), math.floor(mean + bound * math.sqrt(mean)))


@pytest.mark.parametrize("tokens", [1, 1000])
@pytest.mark.parametrize("bound", [0.5, 2])
def test_a_replica_takes_a_key_only_as_far_above_the_mean_as_the_request_says(bound: float, tokens: int) -> None:
    four = balancer()
    took: Counter[str] = Counter()
    order: list[str] = []
    for number in range(1, 25):
        placement = Placement(KEYS[0], bound, prompt=tokens, uncached=tokens)
        started(four, placement)
        took[placement.chosen] += 1
        assert took[placement.chosen] <= room(number, bound)
        order += [placement.chosen] if placement.chosen not in order else []
    assert order[0][-1] == homes(balancer())[KEYS[0]]
    assert max(took.values()) == took[order[0]]
    # The overflow goes to the key's next replica, while that has room.
    assert took[order[1]] >= max((took[name] for name in order[2:]), default=0)
    assert max(took.values()) > 24 / 4, "with a bound of this size it is not least-loaded"


def test_one_long_request_on_an_idle_replica_stays_at_home() -> None:
    """Others' short ones make it no longer than it is: it has most to lose elsewhere."""
    four = balancer()
    for _ in range(3):
        started(four, Placement(prompt=10))
    for key in KEYS[:20]:
        fresh = Placement(key, 1, prompt=20_000, uncached=20_000)
        at_home = homes(balancer())[key]
        assert visited(four, fresh) == at_home


def test_work_is_counted_in_tokens_and_its_end_takes_it_back() -> None:
    two = balancer(("a", "b"))
    long = Placement(prompt=1000)
    visit = started(two, long)
    short = [Placement(prompt=10) for _ in range(5)]
    for placement in short:
        started(two, placement)
    assert {placement.chosen for placement in short} == {short[0].chosen} != {long.chosen}
    visit.end(has_failed=False)
    assert visited(two, Placement(prompt=10)) == long.chosen[-1]


def test_elsewhere_than_at_home_a_whole_prompt_has_to_be_computed() -> None:
    two = balancer(("a", "b"))
    started(two, Placement(KEYS[0], AMPLE, prompt=1000, uncached=10))
    other = Placement(prompt=100)
    started(two, other)
    home = homes(balancer(("a", "b")))[KEYS[0]]
    assert other.chosen[-1] != home
    assert visited(two, Placement(prompt=1)) == home, "10 tokens are less work than 100"


def test_the_expected_answer_is_learned_and_bounded_by_the_requests_limit() -> None:
    def kept_away(two: Balancer, most: int | None) -> int:
        """How many requests of one token go to the other replica meanwhile."""
        first = Placement(most=most)
        visit = started(two, first)
        others = 0
        while visited_other(two, first.chosen):
            others += 1
        visit.end(has_failed=False)
        return others

    def visited_other(two: Balancer, busy: str) -> bool:
        placement = Placement(most=0, prompt=10)
        waiting.append(started(two, placement))
        return placement.chosen != busy

    waiting: list[Visit] = []
    assert kept_away(balancer(("a", "b")), 10) < kept_away(balancer(("a", "b")), None)
    taught = balancer(("a", "b"))
    for _ in range(200):
        taught.answered("blue", 1000)
    assert kept_away(taught, None) > 2 * kept_away(balancer(("a", "b")), None)


def test_without_a_key_the_least_busy_replica_is_chosen_and_a_random_one_of_several() -> None:
    four = balancer()
    assert len({visited(four, Placement()) for _ in range(50)}) == 4
    for _ in range(12):
        started(four, Placement())
    assert len({visited(four, Placement()) for _ in range(50)}) == 4, "three each"


def test_a_failed_replica_gets_nothing_until_a_check_passes_and_its_keys_go_to_their_next() -> None:
    clock = Clock()
    four = balancer(clock=clock)
    before = homes(four)
    started(four, Placement(next(key for key in KEYS if before[key] == "a"), AMPLE)).end(has_failed=True)
    after = homes(four)
    assert "a" not in after.values()
    assert {key: name for key, name in after.items() if before[key] != "a"} == {
        key: name for key, name in before.items() if name != "a"
    }


async def test_pauses_grow_while_checks_fail_and_the_first_that_passes_ends_them() -> None:
    clock = Clock()
    one = balancer(("a",), clock)
    started(one, Placement()).end(has_failed=True)
    waited = []
    for _ in range(10):
        began = clock.now
        while not (due := list(one.due())):
            clock.now += 0.05
        waited.append(clock.now - began)
        await one.check(due[0], ill)
    assert waited == sorted(waited)
    assert waited[0] == pytest.approx(FIRST_PAUSE_S, abs=0.06)
    assert waited[-1] == pytest.approx(LONGEST_PAUSE_S, abs=0.06)
    assert one.visit("blue", Placement()) is None
    clock.now += LONGEST_PAUSE_S
    (due_now,) = one.due()
    await one.check(due_now, healthy)
    assert visited(one, Placement()) == "a"


def test_many_requests_that_fail_with_their_replica_make_one_short_pause() -> None:
    clock = Clock()
    one = balancer(("a",), clock)
    visits = [started(one, Placement()) for _ in range(50)]
    for visit in visits:
        visit.end(has_failed=True)
    clock.now += FIRST_PAUSE_S
    assert len(list(one.due())) == 1


async def test_a_replica_that_has_requests_and_says_nothing_is_checked() -> None:
    clock = Clock()
    two = balancer(("a", "b"), clock)
    placement = Placement()
    visit = started(two, placement)
    clock.now += IDLE_S
    (idle,) = two.due()
    clock.now += SILENCE_S - IDLE_S
    await two.check(idle, healthy)
    (silent,) = two.due()
    assert silent.address.name == placement.chosen
    visit.heard()
    assert list(two.due()) == []
    clock.now += SILENCE_S
    await two.check(silent, ill)
    assert {visited(two, Placement()) for _ in range(10)} == {"ab".replace(placement.chosen[-1], "")}


async def test_the_death_of_an_idle_replica_is_known_within_seconds() -> None:
    clock = Clock()
    two = balancer(("a", "b"), clock)
    seen = {}
    while two.silent() != {"b"}:
        for replica in list(two.due()):
            seen[replica.id] = replica
            await two.check(replica, ill if replica.id == "b" else healthy)
        assert "a" not in two.silent()
        clock.now += CHECK_EVERY_S
    assert clock.now - Clock.now < IDLE_S + 1
    assert {visited(two, Placement()) for _ in range(10)} == {"a"}
    await two.check(seen["b"], healthy)
    assert two.silent() == set()


def test_idle_replicas_are_checked_the_less_often_the_more_there_are() -> None:
    clock, checks = Clock(), 0
    many = Balancer(clock=clock, random=Random(0))
    many.update({"blue": [Address(f"SERVE_REPLICA::blue#Engine#{n}", f"http://{n}", "/x") for n in range(1000)]})
    for _ in range(1000):
        clock.now += CHECK_EVERY_S
        for replica in many.due():
            checks += 1
            replica.heard_at = clock.now
    assert checks <= 100 * IDLE_CHECKS_PER_S


def test_a_request_avoids_the_replicas_that_have_failed_it_while_there_are_others() -> None:
    three = balancer(("a", "b", "c"))
    avoided: set[str] = set()
    placement, order = Placement(KEYS[0], AMPLE, avoided=avoided), []
    for _ in range(3):
        order.append(visited(three, placement))
        avoided.add(placement.chosen)
    assert sorted(order) == ["a", "b", "c"]
    assert visited(three, placement) == order[0]


def test_replicas_that_stay_keep_their_work_and_their_pauses() -> None:
    two = balancer(("a", "b"))
    busy, failing = Placement(prompt=100), Placement()
    visit = started(two, busy)
    started(two, failing).end(has_failed=True)
    two.update({"blue": [address("b"), address("a"), address("c")], "green": []})
    assert visited(two, Placement(prompt=1)) == "c"
    two.update({"blue": [address("b"), address("a")]})
    assert visited(two, Placement()) == busy.chosen[-1]
    two.update({})
    visit.end(has_failed=False)
    assert two.visit("blue", Placement()) is None


def test_of_an_application_without_replicas_there_is_no_choice() -> None:
    assert Balancer().visit("blue", Placement()) is None
    none = balancer(())
    assert none.visit("blue", Placement()) is None
    assert (Balancer().is_known, none.is_known) == (False, True)


def test_a_request_waits_for_a_replica_until_one_is_listed() -> None:
    made, told, lacks = balancer(()), list[str](), list[Lack]()
    made.changed = lambda: told.append("changed")
    placement = Placement(lacks=lacks.append)
    with made.lacking("blue", placement), made.lacking("blue", placement):
        assert [len(waits) for waits in made.waits().values()] == [2]
        assert told == ["changed"]
        made.update({"blue": [address("b")]})
        assert made.waits() == {}
        assert all(lack.until is not None for lack in lacks)
    with made.lacking("blue", placement):
        assert len(lacks) == 2, "there is one"
    with Balancer().lacking("blue", placement):
        assert len(lacks) == 2, "nobody knows"


@pytest.mark.parametrize("is_answered", [True, False])
def test_an_answer_is_a_sign_of_a_replica_of_which_nobody_has_told(*, is_answered: bool) -> None:
    made, told = balancer(()), list[str]()
    made.changed = lambda: told.append("changed")
    with suppress(ConnectionError), made.lacking("blue", Placement()):
        told.clear()
        if not is_answered:
            raise ConnectionError
    assert told == (["changed"] if is_answered else [])
    assert made.waits() == {}


async def test_it_tells_when_replicas_begin_to_serve_and_when_they_do_not_any_more() -> None:
    clock = Clock()
    made, told = balancer(("a", "b"), clock), list[str]()
    made.changed = lambda: told.append("changed")
    clock.now += SILENCE_S
    replicas = list(made.due())
    made.failed(replicas[0])
    assert told == [], "it may be there"
    await made.check(replicas[0], ill)
    await made.check(replicas[0], ill)
    assert (len(told), made.silent()) == (1, {replicas[0].id})
    await made.check(replicas[0], healthy)
    assert (len(told), made.silent()) == (2, set())
    made.update({"blue": [address("b")]})
    assert (len(told), list(made.gone)) == (3, [replicas[0].id])
    made.update({"blue": [address("b")]})
    assert len(told) == 3
    made.update({"blue": [address("a"), address("b")]})
    assert (len(told), list(made.gone), made.listed()) == (4, [], {"blue": [one.id for one in replicas]})


def test_the_replicas_that_are_gone_are_bounded() -> None:
    made = balancer(())
    for number in range(MOST_GONE + 50):
        made.update({"blue": [Address(f"blue#{number}", "http://x", "")]})
    assert list(made.gone)[:: MOST_GONE - 1] == ["49", str(MOST_GONE + 48)]
