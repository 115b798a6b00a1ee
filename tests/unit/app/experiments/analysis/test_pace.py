from app.experiments.analysis.analysis import EVERY_S, REST, TURN_S, Pace


class Timer:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def test_a_turn_is_followed_by_ten_times_its_length() -> None:
    timer = Timer()
    pace = Pace(timer)
    assert pace.allows()
    with pace:
        assert not pace.is_over()
        timer.now += 2 * TURN_S
        assert pace.is_over()
    timer.now += 2 * TURN_S * REST - 0.01
    assert not pace.allows()
    timer.now += 0.02
    assert pace.allows()


def test_turns_are_at_least_a_second_apart() -> None:
    timer = Timer()
    pace = Pace(timer)
    with pace:
        pass
    timer.now += EVERY_S - 0.01
    assert not pace.allows()
    timer.now += 0.02
    assert pace.allows()
