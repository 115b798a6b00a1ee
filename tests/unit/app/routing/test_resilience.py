"""Breakers open on failed connections and failed checks, never on requests alone, and spare the last deployment.

The fuse refuses bodies for a minute, and looks at none when there is nothing to refuse.

The budget of retries, and each caller's part of it.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.resilience import (
    AT_ONCE_S,
    DEATHS_S,
    FAULTS_IN_A_ROW,
    LONGEST_OPEN_S,
    OPEN_S,
    RESERVE,
    SHARE,
    Breaker,
    Breakers,
    Fault,
    Fuse,
    RetryBudget,
)


def failed(times: int, fault: Fault, now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(times):
        breaker.failed(fault, now)
    return breaker


def opened(now: float = 0.0) -> Breaker:
    return failed(FAULTS_IN_A_ROW, Fault.CONNECTION, now)


def test_failed_connections_in_a_row_open_the_breaker() -> None:
    assert not failed(FAULTS_IN_A_ROW - 1, Fault.CONNECTION).is_open
    assert opened().is_open


def test_failed_answers_only_cause_a_check() -> None:
    breaker = failed(3 * FAULTS_IN_A_ROW, Fault.ANSWER)
    assert not breaker.is_open
    assert breaker.wants_check(0.0)
    breaker.checked(healthy=True, now=0.0)
    assert not breaker.is_open
    assert not breaker.wants_check(0.0)


def test_a_failed_check_opens_the_breaker() -> None:
    breaker = failed(FAULTS_IN_A_ROW, Fault.ANSWER)
    breaker.checked(healthy=False, now=0.0)
    assert breaker.is_open


def test_an_answer_between_faults_resets_the_count() -> None:
    breaker = failed(FAULTS_IN_A_ROW - 1, Fault.CONNECTION)
    breaker.succeeded()
    breaker.failed(Fault.CONNECTION, 0.0)
    assert not breaker.is_open
    assert not breaker.wants_check(0.0)


def test_after_a_while_one_check_at_a_time_decides_whether_it_closes() -> None:
    breaker = opened()
    assert not breaker.wants_check(OPEN_S - 0.1)
    assert breaker.wants_check(OPEN_S)
    breaker.checking = True
    assert not breaker.wants_check(OPEN_S)
    breaker.checked(healthy=True, now=OPEN_S)
    assert not breaker.is_open


def test_an_answer_to_an_old_request_does_not_close_the_breaker() -> None:
    breaker, period = Breaker(), Breaker().period
    for _ in range(2):
        for _ in range(FAULTS_IN_A_ROW):
            breaker.failed(Fault.CONNECTION, 0.0)
        breaker.succeeded(period)
        assert breaker.is_open
        period = breaker.period
        breaker.checked(healthy=True, now=OPEN_S)


def test_what_is_sent_to_an_open_deployment_and_served_closes_the_breaker_and_what_is_rejected_does_not() -> None:
    """The trial may be what the deployment does not serve."""
    breaker = opened()
    breaker.checked(healthy=False, now=OPEN_S)
    breaker.succeeded()
    assert breaker.is_open, "anybody can send a request that is rejected"
    breaker.succeeded(breaker.period)
    states = (breaker.is_open, breaker.openings)
    assert states == (False, 0)


def test_every_failed_check_prolongs_the_open_time_up_to_a_bound() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(8):
        assert breaker.open_until is not None
        waits.append(breaker.open_until - now)
        now = breaker.open_until
        breaker.checked(healthy=False, now=now)
    assert waits[:3] == [OPEN_S, 2 * OPEN_S, 4 * OPEN_S]
    assert waits[-1] == LONGEST_OPEN_S


def test_open_breakers_come_last_and_no_deployment_is_removed() -> None:
    breakers = Breakers(lambda: 0.0)
    for _ in range(FAULTS_IN_A_ROW):
        breakers.of("a").failed(Fault.CONNECTION, 0.0)
    assert breakers.order(["a", "b", "c"]) == ["b", "c", "a"]
    assert breakers.order(["a"]) == ["a"]
    assert breakers.open() == ["a"]


def test_connections_that_failed_under_other_names_of_the_engine_count_too() -> None:
    breaker, was_open = failed(1, Fault.CONNECTION), []
    for _ in range(FAULTS_IN_A_ROW - 1):
        was_open.append(breaker.is_open)
        breaker.not_reached(0.0)
    assert [*was_open, breaker.is_open] == [False] * (FAULTS_IN_A_ROW - 1) + [True]
    breaker.checked(healthy=True, now=OPEN_S)
    breaker.not_reached(OPEN_S)
    assert not breaker.is_open, "the count starts over"


def test_an_answer_under_another_name_clears_what_failed_under_others_and_nothing_else() -> None:
    breaker = failed(FAULTS_IN_A_ROW - 1, Fault.ANSWER)
    breaker.not_reached(0.0)
    assert breaker.is_open
    breaker = failed(FAULTS_IN_A_ROW - 1, Fault.ANSWER)
    breaker.reached()
    breaker.failed(Fault.ANSWER, 0.0)
    assert breaker.wants_check(0.0)
    breaker = Breaker()
    for _ in range(2 * FAULTS_IN_A_ROW):
        breaker.not_reached(0.0)
        breaker.reached()
    assert not breaker.is_open


ENGINES = {"base": "http://a", "french": "http://a", "german": "http://a", "alone": "http://b"}


def test_an_unreachable_engine_is_unreachable_under_all_of_its_names() -> None:
    breakers = Breakers(lambda: 0.0)
    breakers.configure(ENGINES)
    opened = [list(breakers.not_reached("base")) for _ in range(FAULTS_IN_A_ROW + 1)]
    assert opened == [*[[]] * (FAULTS_IN_A_ROW - 1), ["french", "german"], []]
    assert breakers.open() == ["french", "german"]
    assert [breakers.not_reached(name) for name in ("alone", "gone")] == [[], []]


@pytest.mark.parametrize("configured_anew", [False, True])
def test_an_answer_clears_what_failed_under_the_engines_other_names(configured_anew: bool) -> None:
    breakers = Breakers(lambda: 0.0)
    breakers.configure(ENGINES)
    for _ in range(3 * FAULTS_IN_A_ROW):
        breakers.not_reached("base")
        if configured_anew:
            breakers.configure(ENGINES)
        breakers.reached("french")
        breakers.reached("german")
    assert breakers.open() == []
    breakers.configure({"base": "http://a"})
    assert breakers.not_reached("base") == []


@given(st.lists(st.sampled_from(["succeeded", "failed", "checked"]), max_size=60))
def test_no_sequence_of_requests_to_a_healthy_deployment_opens_the_breaker(events: list[str]) -> None:
    breaker = Breaker()
    for event in events:
        if event == "succeeded":
            breaker.succeeded()
        elif event == "failed":
            breaker.failed(Fault.ANSWER, 0.0)
        elif breaker.wants_check(0.0):
            breaker.checked(healthy=True, now=0.0)
        assert not breaker.is_open


@given(st.lists(st.sampled_from("abcd"), unique=True), st.sets(st.sampled_from("abcd")))
def test_the_order_is_stable_within_open_and_closed_ones(candidates: list[str], broken: set[str]) -> None:
    breakers = Breakers(lambda: 0.0)
    for name in broken:
        for _ in range(FAULTS_IN_A_ROW):
            breakers.of(name).failed(Fault.CONNECTION, 0.0)
    closed = [name for name in candidates if name not in broken]
    assert breakers.order(candidates) == [*closed, *(name for name in candidates if name in broken)]


CALLER = "one"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=2000))
def test_retries_never_exceed_the_reserve_and_a_tenth_of_the_requests(requests: list[tuple[str, bool]]) -> None:
    budget, retries = RetryBudget(), 0
    for caller, fails in requests:
        budget.request(caller)
        retries += fails and budget.take(caller)
    assert retries <= RESERVE + SHARE * len(requests) + 1e-6


def test_quiet_times_do_not_add_to_the_reserve() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.request(CALLER)
    assert sum(budget.take(CALLER) for _ in range(100)) == RESERVE / 2


@given(st.lists(st.booleans(), max_size=300))
def test_one_caller_uses_at_most_half_of_the_reserve(fails: list[bool]) -> None:
    budget = RetryBudget()
    for has_failed in fails:
        budget.request("attacker")
        if has_failed:
            budget.take("attacker")
    assert sum(budget.take(CALLER) for _ in range(100)) >= RESERVE / 4
    assert [budget.take(f"caller {number}") for number in range(3)] == [True] * 3


def test_callers_that_fail_all_the_time_retry_a_tenth_each() -> None:
    budget, retries = RetryBudget(), {"one": 0, "two": 0, "three": 0}
    for _ in range(2000):
        for caller in retries:
            budget.request(caller)
            retries[caller] += budget.take(caller)
    assert all(200 <= count <= 200 + RESERVE / 2 for count in retries.values())


def test_the_debts_of_callers_that_left_are_repaid_by_the_others() -> None:
    budget = RetryBudget()
    while any([budget.take(f"caller {number}") for number in range(100)]):
        pass
    assert not budget.take(CALLER)
    for _ in range(round(RESERVE / SHARE) + 100):
        budget.request(CALLER)
    assert sum(budget.take(CALLER) for _ in range(100)) == RESERVE / 2


class Engines:
    """A fuse, and engines that die with streams on them. A stream is a body, and whether it had a token."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fuse = Fuse(lambda: self.now)

    def die(self, name: str, *streams: tuple[bytes, bool]) -> None:
        for body, had_tokens in streams:
            self.fuse.died("blue", name, body, had_tokens=had_tokens)

    def refused(self, *bodies: bytes) -> set[bytes]:
        return {body for body in bodies if self.fuse.suspicion(body) is not None}


SILENT, SPOKEN = False, True


@given(st.lists(st.tuples(st.sampled_from([b"one", b"two", b"three"]), st.booleans()), max_size=40))
def test_one_engine_s_death_accuses_nobody_however_many_streams_tell_of_it(streams: list[tuple[bytes, bool]]) -> None:
    engines = Engines()
    for stream in streams:
        engines.die("e1", stream)
        engines.now += 1.0
        assert engines.refused(b"one", b"two", b"three") == set()


def test_a_body_that_was_alone_with_two_dying_engines_is_refused_for_a_minute_after_the_last() -> None:
    engines = Engines()
    engines.die("e1", (b"killer", SPOKEN), (b"other", SPOKEN))
    engines.now = 30.0
    engines.die("e2", (b"killer", SILENT))
    engines.now = 31.0
    assert engines.fuse.suspicion(b"killer") == (2, DEATHS_S - 1)
    assert engines.refused(b"other") == set()
    engines.now = 30.0 + DEATHS_S
    assert engines.refused(b"killer") == set()
    assert not engines.fuse.watches


def test_a_body_that_had_a_token_of_the_last_engine_is_not_refused() -> None:
    engines = Engines()
    engines.die("e1", (b"body", SILENT))
    engines.die("e2", (b"body", SILENT), (b"body", SPOKEN))
    assert engines.refused(b"body") == set()


BODIES = [bytes([number]) for number in range(6)]
COMPANY = st.sets(st.sampled_from(BODIES), min_size=1)


@given(COMPANY, COMPANY, COMPANY)
def test_of_several_bodies_on_two_dying_engines_none_is_refused_before_a_third_dies(
    first: set[bytes], second: set[bytes], third: set[bytes]
) -> None:
    engines = Engines()
    for name, bodies in (("e1", first), ("e2", second)):
        engines.die(name, *((body, SILENT) for body in bodies))
    both = first & second
    assert engines.refused(*BODIES) == (both if len(both) == 1 else set())
    engines.die("e3", *((body, SILENT) for body in third))
    everywhere = first & second & third
    assert engines.refused(*BODIES) >= everywhere
    for body in engines.refused(*BODIES) - everywhere:
        deaths = [bodies for bodies in (first, second, third) if body in bodies]
        assert len(deaths) == 2
        assert deaths[0] & deaths[1] == {body}, "another one was in the same case"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(BODIES), st.booleans()), max_size=30), COMPANY)
def test_an_answer_clears_a_body(losses: list[tuple[str, bytes, bool]], answered: set[bytes]) -> None:
    engines = Engines()
    for name, body, had_tokens in losses:
        engines.die(name, (body, had_tokens))
    before = engines.refused(*BODIES)
    for body in answered:
        engines.fuse.answered(body)
    assert engines.refused(*BODIES) == before - answered, "and does not accuse the others"


def test_an_engine_is_dead_for_a_minute_unless_it_answers_after_all() -> None:
    engines = Engines()
    for name in ("e1", "e2", "e2", "e3"):
        engines.die(name, (b"body", SPOKEN))
    engines.fuse.answered(b"other", "e2")
    engines.fuse.answered(b"other")
    assert engines.fuse.dead() == {"e1", "e3"}
    engines.die("e2", (b"body", SPOKEN))
    assert engines.fuse.dead() == {"e1", "e2", "e3"}
    engines.now = DEATHS_S
    assert engines.fuse.dead() == set()


@given(st.lists(st.floats(0.0, AT_ONCE_S / 10), max_size=9))
def test_an_engine_without_a_name_that_is_lost_at_once_is_the_one_that_was_lost_before(pauses: list[float]) -> None:
    engines = Engines()
    engines.die("e1", (b"body", SPOKEN))
    for pause in pauses:
        engines.now += pause
        engines.die("", (b"body", SILENT))
    assert engines.refused(b"body") == set()
    engines.now += 2 * AT_ONCE_S
    engines.die("", (b"body", SILENT))
    assert engines.refused(b"body") == {b"body"}


def test_a_deployment_waits_for_a_check_after_two_deaths_that_are_not_at_once() -> None:
    engines = Engines()
    engines.die("e1", (b"a", SPOKEN))
    engines.die("e2", (b"b", SPOKEN))
    assert not engines.fuse.is_blown("blue")
    engines.now = 2 * AT_ONCE_S
    engines.die("e3", (b"c", SPOKEN))
    assert engines.fuse.is_blown("blue")
    engines.fuse.reset("blue")
    assert not engines.fuse.is_blown("blue")


def test_what_was_sent_before_an_engine_died_was_under_way_on_it() -> None:
    engines = Engines()
    assert not engines.fuse.has_taken("blue", 0.0)
    engines.now = 10.0
    engines.die("e1", (b"a", SILENT))
    engines.now = 10.0 + AT_ONCE_S
    engines.die("e1", (b"b", SILENT))
    assert [engines.fuse.has_taken("blue", sent) for sent in (0.0, 10.0, 10.1)] == [True, True, False]
    assert not engines.fuse.has_taken("green", 0.0)


def test_what_the_fuse_keeps_is_bounded() -> None:
    engines, bodies = Engines(), [b"%d" % number for number in range(1100)]
    for number in range(300):
        engines.die(f"e{number}", (b"always", SILENT))
    suspicion = engines.fuse.suspicion(b"always")
    assert suspicion is not None
    assert suspicion.engines == 64
    for name in ("first", "second", "third"):
        engines.die(name, *((body, SILENT) for body in bodies))
    assert len(engines.refused(*bodies)) == 1024
