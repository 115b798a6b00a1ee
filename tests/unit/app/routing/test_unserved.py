import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.admission import COUNTED_S, MOMENT_S, Unserved


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_waiting_requests_are_demand_while_they_wait() -> None:
    unserved = Unserved()
    with unserved.waiting("blue"), unserved.waiting("blue"), unserved.waiting("green"):
        assert unserved.demand() == {"blue": 2, "green": 1}
    with pytest.raises(KeyError), unserved.waiting("blue"):
        raise KeyError
    assert unserved.demand() == {}


def test_refused_requests_of_one_moment_add_up_and_are_forgotten() -> None:
    clock = Clock()
    unserved = Unserved(clock)
    for _ in range(28):
        unserved.refused("blue")
        clock.now += 0.01
    assert unserved.demand() == {"blue": 28}
    clock.now = 100.0 + COUNTED_S - 0.01
    assert unserved.demand() == {"blue": 28}
    clock.now = 100.0 + COUNTED_S
    assert unserved.demand() == {}


def test_a_request_refused_repeatedly_counts_once() -> None:
    clock = Clock()
    unserved = Unserved(clock)
    for _ in range(10):
        unserved.refused("blue")
        clock.now += MOMENT_S
    assert unserved.demand() == {"blue": 1}


@given(st.lists(st.floats(0, 40), max_size=60))
def test_the_demand_is_at_most_the_recently_refused_requests(pauses: list[float]) -> None:
    clock, refused = Clock(), []
    unserved = Unserved(clock)
    for pause in pauses:
        clock.now += pause
        refused.append(clock.now)
        unserved.refused("blue")
    lately = sum(at > clock.now - COUNTED_S for at in refused)
    assert (
        (lately > 0)
        <= unserved.demand().get("blue", 0)
        <= lately + sum(clock.now - COUNTED_S - MOMENT_S < at <= clock.now - COUNTED_S for at in refused)
    )
