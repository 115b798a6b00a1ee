"""A report of the past says what was shown then: it rests on ledger and journal up to that time, on nothing later."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import NIGHTLY
from tests.support.experiments.life import DECISIONS, REDEPLOYED, Life, audited, busy, declared
from tests.support.experiments.printed import contradictions
from tests.support.experiments.recorded_ledger import controller_of
from tests.support.experiments.world import START, World

STEPS = st.one_of(
    st.tuples(st.just("traffic"), st.integers(1, 5), st.sampled_from([0, 3, 900])),
    st.tuples(st.just("wait"), st.sampled_from([5.0, 300.0, 7200.0])),
    st.tuples(st.just("redeploy"), st.integers(0, len(REDEPLOYED) - 1)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("decide"), st.sampled_from(DECISIONS)),
)


@settings(deadline=None, max_examples=25 if NIGHTLY else 3, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    steps=st.lists(STEPS, min_size=3, max_size=14),
    slower=st.sampled_from([1.0, 1.6]),
    errors=st.sampled_from([0.005, 0.1]),
    hangs=st.sampled_from([0.0, 0.05]),
    before=st.sampled_from([0, 1500]),
)
@pytest.mark.timeout(900)  # it takes a minute of CPU, which other tests want, too
def test_a_report_of_the_past_says_what_was_shown_then(
    steps: list[tuple[Any, ...]], slower: float, errors: float, hangs: float, before: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(slower=slower, error_rate=(0.005, errors), hangs=hangs)
        life = Life(Path(directory), world, 4000, before, busy)
        life.traffic(3, 0)
        life.look()
        for name, *arguments in steps:
            getattr(life, name)(*arguments)
            life.look()
        life.controller.close()
        for at, shown in life.shown:
            assert contradictions(shown.text) == []
            assert audited(Path(directory), at, life.clock) == shown, f"at {at - START}"


def test_what_units_did_before_the_run_is_read_again_after_a_restart(tmp_path: Path) -> None:
    """And in a report of the past; a run of a version that did not know covariates stays without."""
    life = Life(tmp_path, World(slower=1.1), 4000, before=3000)
    life.traffic(30, 0)
    life.look()
    life.clock.now -= 1
    life.restart()
    life.look()
    (at, shown), (_, again) = life.shown
    life.controller.close()
    assert again == shown
    assert audited(tmp_path, at, life.clock) == shown
    for file in tmp_path.rglob("journal/**/*.jsonl"):
        file.write_text(file.read_text().replace('"covariates":["history"],', ""))
    assert audited(tmp_path, at, life.clock) != shown


def test_a_report_of_a_time_with_two_controllers_says_so(tmp_path: Path) -> None:
    """The first one has taken records that the second one has not read yet."""
    life = Life(tmp_path, World(slower=1.1), 4000)
    life.traffic(10, 0)
    life.look()
    first, life.controller = life.controller, controller_of(tmp_path, declared(), life.clock)
    second, life.controller = life.controller, first
    life.traffic(10, 0)
    life.controller = second
    life.traffic(1, 0)
    life.look()
    first.close()
    life.wait(300.0)
    life.look()
    second.close()
    before, meanwhile, after = life.shown
    assert audited(tmp_path, before[0], life.clock) == before[1]
    assert audited(tmp_path, after[0], life.clock).text == after[1].text  # it had counted in another order
    again = audited(tmp_path, meanwhile[0], life.clock)
    assert again != meanwhile[1]
    assert "Two controllers ran at that time" in again.text
