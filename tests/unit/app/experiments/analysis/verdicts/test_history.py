import itertools
import json

from app.experiments.analysis.verdicts.history import MAX_POINTS, History
from app.experiments.report import Effect


def filled(minutes: float, every_s: float = 20.0) -> History:
    history = History()
    for number in range(int(minutes * 60 / every_s)):
        history.add(number * every_s, Effect(estimate=float(number), lower=None, upper=1.0), 0.5, "undecided")
    return history


def test_one_look_a_minute_is_kept_and_the_latest() -> None:
    assert [point.at for point in filled(4).points] == [0.0, 60.0, 120.0, 180.0, 220.0]
    assert [point.at for point in filled(1 / 3).points] == [0.0]


def test_many_looks_are_thinned_evenly_over_the_whole_run() -> None:
    points = filled(60 * 24 * 3, every_s=60).points
    assert len(points) <= MAX_POINTS
    gaps = {after.at - before.at for before, after in itertools.pairwise(points[:-1])}
    assert gaps == {960.0}


def test_a_state_is_plain_data_from_which_it_continues() -> None:
    history, other = filled(30, every_s=60), History()
    other.restore(json.loads(json.dumps(history.state())))
    assert other.points == history.points
    other.add(30 * 60.0 + 1, Effect(), None, "invalid")
    assert len(other.points) == 31
