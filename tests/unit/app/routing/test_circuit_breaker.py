"""Breakers open on faults in a row, probe once, and never take the last deployment out."""

from hypothesis import given
from hypothesis import strategies as st

from app.routing.circuit_breaker import FAULTS_IN_A_ROW, LONGEST_OPEN_S, OPEN_S, Breaker, Breakers
from app.routing.retry_budget import RESERVE, SHARE, RetryBudget


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAULTS_IN_A_ROW):
        breaker.attempt().failed(now)
    return breaker


def test_faults_in_a_row_open_it_and_an_answer_between_them_does_not() -> None:
    breaker = Breaker()
    for _ in range(FAULTS_IN_A_ROW - 1):
        breaker.attempt().failed(0.0)
    breaker.attempt().succeeded()
    breaker.attempt().failed(0.0)
    assert breaker.admits(0.0)
    assert not opened().admits(0.0)


def test_after_a_while_one_request_probes_and_its_success_closes_it() -> None:
    breaker = opened()
    assert not breaker.admits(OPEN_S - 0.1)
    assert breaker.admits(OPEN_S)
    probe = breaker.attempt()
    assert not breaker.admits(OPEN_S)
    probe.succeeded()
    assert breaker.admits(OPEN_S)
    breaker.attempt().failed(OPEN_S)
    assert breaker.admits(OPEN_S)


def test_each_failed_probe_doubles_the_time_up_to_a_bound() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(8):
        assert breaker.open_until is not None
        waits.append(breaker.open_until - now)
        now = breaker.open_until
        breaker.attempt().failed(now)
    assert waits == [min(OPEN_S * 2**i, LONGEST_OPEN_S) for i in range(8)]


def test_an_abandoned_probe_allows_another() -> None:
    breaker = opened()
    breaker.attempt().abandoned()
    assert breaker.admits(OPEN_S)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8), st.booleans())
def test_no_other_request_ends_the_probe(others: list[tuple[bool, bool]], probe_fails: bool) -> None:
    breaker = Breaker()
    before = [breaker.attempt() for _ in others]
    for _ in range(FAULTS_IN_A_ROW):
        breaker.attempt().failed(0.0)
    probe = breaker.attempt()
    for request, (is_later, fails) in zip(before, others, strict=True):
        ended = breaker.attempt() if is_later else request
        if fails:
            ended.failed(OPEN_S)
        else:
            ended.abandoned()
        assert breaker.probe is probe
        assert breaker.open_until == OPEN_S
    if probe_fails:
        probe.failed(OPEN_S)
        assert breaker.open_until == 3 * OPEN_S
    else:
        probe.abandoned()
        assert breaker.admits(OPEN_S)


def test_an_old_probe_does_not_end_the_next_one() -> None:
    breaker = opened()
    old = breaker.attempt()
    breaker.attempt().succeeded()
    for _ in range(FAULTS_IN_A_ROW):
        breaker.attempt().failed(0.0)
    probe = breaker.attempt()
    old.abandoned()
    assert breaker.probe is probe


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, unique=True), st.sets(st.sampled_from(["a", "b", "c"])))
def test_deployments_with_open_breakers_come_last_and_none_is_left_out(candidates: list[str], broken: set[str]) -> None:
    breakers = Breakers(clock=lambda: 0.0)
    for name in broken:
        for _ in range(FAULTS_IN_A_ROW):
            breakers.of(name).attempt().failed(0.0)
    order = list(breakers.order(candidates))
    assert sorted(order) == sorted(candidates)
    assert [name for name in order if name not in broken] == [name for name in candidates if name not in broken]
    assert all(name in broken for name in order[len(set(candidates) - broken) :])


@given(st.lists(st.booleans(), max_size=2000))
def test_retries_never_pass_the_reserve_and_a_tenth_of_the_requests(wants_retry: list[bool]) -> None:
    budget, retries = RetryBudget(), 0
    for wants in wants_retry:
        budget.request()
        retries += wants and budget.take()
    assert retries <= RESERVE + SHARE * len(wants_retry) + 1e-6


def test_calm_does_not_save_up_for_a_storm() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.request()
    assert sum(budget.take() for _ in range(100)) == RESERVE
