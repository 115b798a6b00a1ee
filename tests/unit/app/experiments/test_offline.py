"""A report of the past says what was shown then: it rests on ledger and journal up to that time, on nothing later."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from app.experiments.api import ControllerApi
from app.experiments.offline import RecordedLedger
from app.experiments.storage.gaps import EXPIRED
from app.experiments.storage.write_ahead import FOLDER
from tests.conftest import NIGHTLY
from tests.support.experiments.life import DECISIONS, NAME, REDEPLOYED, Life, audited, busy, declared, failing, said
from tests.support.experiments.printed import contradictions
from tests.support.experiments.recorded_ledger import controller_of, unpaced
from tests.support.experiments.world import START, World
from tests.support.waiting import wait_until

STEPS = st.one_of(
    st.tuples(st.just("traffic"), st.integers(1, 5), st.sampled_from([0, 3, 900])),
    st.tuples(st.just("wait"), st.sampled_from([5.0, 300.0, 7200.0])),
    st.tuples(st.just("redeploy"), st.integers(0, len(REDEPLOYED) - 1)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("kill")),
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


def test_units_that_are_hashed_with_another_secret_are_warned_of(tmp_path: Path) -> None:
    """From then on, also in reports of the past, but not in a run that begins later."""
    told = "began to hash units with another secret"
    life = Life(tmp_path, World(slower=1.1), 2000)
    for life.hashed in ("", "one", "two", "one"):
        life.traffic(2, 0)
        life.look()
    life.restart()
    life.look()
    life.redeploy(9)
    life.traffic(2, 0)
    life.look()
    life.controller.close()
    assert [told in unwrapped(said.text) for _, said in life.shown] == [False, False, True, True, True, False]
    for at, shown in life.shown:
        assert audited(tmp_path, at, life.clock) == shown


def test_a_report_counts_what_waits_to_be_stored(tmp_path: Path) -> None:
    """Each batch once, wherever it is: in the file of a living process or of one that was killed, or stored since."""
    life = Life(tmp_path, World(slower=1.1), 2000)
    life.traffic(15, 0)
    for file in [*(tmp_path / "ledger" / FOLDER).iterdir()]:
        os.link(file, file.with_name(f"killed-{file.name}"))
    life.look()
    [(at, shown)] = life.shown
    again = audited(tmp_path, at, life.clock)
    life.controller.close()
    assert [again.data[name] for name in ("units", "requests")] == [shown.data[name] for name in ("units", "requests")]
    assert audited(tmp_path, at, life.clock) == shown


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


@settings(deadline=None, max_examples=10 if NIGHTLY else 2, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(steps=st.lists(STEPS, min_size=4, max_size=8))
@pytest.mark.timeout(900)  # as above
def test_without_any_of_its_files_a_report_is_the_same_or_says_that_the_ledger_is_incomplete(
    steps: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        life = Life(directory, World(slower=1.6, error_rate=(0.005, 0.1)), 1000)
        life.traffic(2, 0)
        for step, *arguments in steps:
            getattr(life, step)(*arguments)
            life.look()
        life.controller.close()
        moments = [life.shown[0][0], life.shown[len(life.shown) // 2][0], life.clock.now]
        whole = [audited(directory, at, life.clock) for at in moments]
        for file in sorted((directory / "ledger").rglob("*.*")):
            if file.is_file() and EXPIRED not in file.name:
                aside = directory / "aside"
                file.rename(aside)
                for at, said in zip(moments, whole, strict=True):
                    told = audited(directory, at, life.clock)
                    assert told == said or "incomplete" in unwrapped(told.text), (file, at - START)
                aside.rename(file)


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_every_answer_from_an_incomplete_ledger_says_so(tmp_path: Path) -> None:
    life = Life(tmp_path, World(slower=1.1), 2000)
    life.traffic(10, 0)
    life.wait(61.0)
    life.controller.close()
    questions = ["report", "history", "planner"]

    def answers() -> ControllerApi:
        return ControllerApi(RecordedLedger("ledger", tmp_path, unpaced, clock=life.clock))

    def said(question: str, form: str) -> str:
        return unwrapped(
            answers().answer("GET", f"/experiments/{NAME}/{question}", {"format": form}, b"").body.decode()
        )

    def runs_said(form: str) -> str:
        asked, path = answers(), f"/experiments/{NAME}/aa"
        asked.answer("POST", path, {}, b'{"runs": 1}')
        wait_until(lambda: b'"running"' not in asked.answer("GET", path, {}, b"").body)
        return unwrapped(asked.answer("GET", path, {"format": form}, b"").body.decode())

    assert [json.loads(said(question, "json"))["incomplete"] for question in questions] == [[], [], []]
    assert json.loads(runs_said("json"))["incomplete"] == []
    next((tmp_path / "ledger/exposures").rglob("*.parquet")).unlink()
    missing = json.loads(said("report", "json"))["incomplete"]
    assert len(missing) == 1
    for question in questions:
        assert missing[0] in said(question, "text")
        assert json.loads(said(question, "json"))["incomplete"] == missing
    assert missing[0] in runs_said("markdown")
    assert json.loads(runs_said("json"))["incomplete"] == missing


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_clock_that_is_set_back_at_a_restart_makes_no_second_controller(is_killed: bool, tmp_path: Path) -> None:
    life = Life(tmp_path, World(slower=1.1), 4000)
    life.traffic(10, 0)
    life.wait(61.0)
    life.decide("pause")
    life.wait(1.0)
    if not is_killed:
        life.controller.close()
    life.clock.now -= 240.0
    life.controller = controller_of(tmp_path, declared(), life.clock)
    life.wait(61.0)
    at = life.clock.now
    life.traffic(10, 0)
    life.wait(600.0)
    life.controller.close()
    told = unwrapped(audited(tmp_path, at, life.clock).text)
    assert "Two controllers" not in told
    assert "A controller took over with a clock that was behind" in told
    assert "took over" not in audited(tmp_path, life.clock.now, life.clock).text


def test_a_report_of_a_time_at_which_the_directory_failed_says_so(tmp_path: Path) -> None:
    life = Life(tmp_path, World(slower=1.1), 2000)
    life.traffic(5, 0)
    life.wait(61.0)
    life.look()
    with failing(tmp_path / "ledger"):
        life.traffic(2, 0)
        life.wait(61.0)
        life.wait(61.0)
        life.look()
    life.wait(61.0)
    life.look()
    life.controller.close()
    assert [shown.text.count("directory has failed for") for _, shown in life.shown] == [0, 1, 0]
    for at, shown in life.shown:
        assert audited(tmp_path, at, life.clock).text == shown.text


def test_what_a_killed_controller_could_not_write_is_said_to_be_unknown(tmp_path: Path) -> None:
    """Of the time before its directory failed, and since the next one began, nothing is missing."""
    life = Life(tmp_path, World(slower=1.1), 2000)
    life.traffic(5, 0)
    life.wait(61.0)
    life.look()
    with failing(tmp_path / "ledger"):
        life.clock.now += 10.0
        life.shown.append((life.clock.now, said(ControllerApi(life.controller))))
        life.clock.now += 0.4  # then it is noticed
        life.controller.flush()
        life.traffic(2, 0)
        life.wait(61.0)
        life.look()
        life.die()

    def unknown(at: float | None) -> int:
        reasons = audited(tmp_path, at, life.clock).data["incomplete"]
        return sum("what a controller showed from" in reason for reason in reasons)

    assert [unknown(at) for at, _ in life.shown] == [0, 1, 1]
    assert unknown(None) == 1, "decisions may be missing"
    life.clock.now += 100.0
    between = life.clock.now - 50.0
    life.begin_again()
    life.look()
    life.controller.close()
    assert [unknown(at) for at, _ in life.shown] == [0, 1, 1, 0]
    assert (unknown(between), unknown(None)) == (1, 0)
    for at, shown in (life.shown[0], life.shown[3]):
        assert audited(tmp_path, at, life.clock) == shown


def test_what_a_killed_controller_may_have_shown_after_its_last_sign_of_life_is_unknown(tmp_path: Path) -> None:
    """A disk that takes nothing takes neither that it lives nor that its directory fails."""
    life = Life(tmp_path, World(slower=1.1), 2000)
    life.traffic(5, 0)
    life.wait(61.0)
    life.look()
    life.die()
    killed_at = life.clock.now
    life.clock.now += 100.0
    life.begin_again()
    life.wait(1.0)
    life.look()
    life.controller.close()
    ends = [0.0, 1.0, 10.0, 99.0, 101.0]
    told = [audited(tmp_path, killed_at + after, life.clock).data["incomplete"] for after in ends]
    assert [sum("if it still ran" in reason for reason in reasons) for reasons in told] == [1, 1, 1, 1, 0]
    assert audited(tmp_path, None, life.clock).data["incomplete"] == []
    for at, shown in life.shown:
        assert audited(tmp_path, at, life.clock) == shown
