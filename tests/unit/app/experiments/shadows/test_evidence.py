"""The sums of pairs: which pairs count, once, in any order."""

import math
from typing import Any

import numpy as np
import pytest

from app.experiments.shadows import PairedEvent, PairedValue, ShadowEvidence
from app.experiments.storage.columns import PairColumns
from app.exposures.wire import Failure, Finish
from tests.support.experiments.exposure_columns import Recorder


def evidence(*parts: PairColumns) -> ShadowEvidence:
    found = ShadowEvidence()
    for part in parts:
        found.add(part)
    return found


def value(found: ShadowEvidence, metric: str) -> PairedValue:
    return next(it for it in found.report("blue").values if it.metric == metric)


def event(found: ShadowEvidence, name: str) -> PairedEvent:
    return next(it for it in found.report("blue").events if it.event == name)


def many(count: int = 200, units: int = 50, seed: int = 1) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    return [
        {
            "unit": number % units,
            "ttft_s": 0.05 + 0.02 * random.normal(),
            "length_ratio": math.exp(-0.2 + 0.1 * random.normal()),
            "equal_words": int(random.random() < 0.6),
        }
        for number in range(count)
    ]


def test_means_have_intervals_and_sides() -> None:
    found = evidence(Recorder().pairs(*many()))
    first = value(found, "ttft")
    assert first.value.lower is not None
    assert first.value.upper is not None
    assert 0.03 < first.value.lower < 0.05 < first.value.upper < 0.07
    assert (first.kind, first.side, first.pairs, first.units) == ("difference", "higher", 200, 50)
    length = value(found, "length")
    assert length.value.estimate == pytest.approx(math.exp(-0.2) - 1, abs=0.02)
    assert length.side == "lower"
    same = value(found, "equal_words")
    assert same.value.lower is not None
    assert 0.4 < same.value.lower < 0.6
    assert same.side is None


def test_the_order_and_the_split_into_batches_change_nothing() -> None:
    fields = many(units=7)
    whole = evidence(Recorder().pairs(*fields)).report("blue")
    parts = evidence(*(Recorder().pairs(*fields[at : at + 13]) for at in reversed(range(0, 200, 13)))).report("blue")
    for one, other in zip(whole.values, parts.values, strict=True):
        assert one.value.estimate == pytest.approx(other.value.estimate, rel=1e-9)
        assert (one.metric, one.pairs, one.units) == (other.metric, other.pairs, other.units)


def test_failures_count_and_are_compared_with_nothing() -> None:
    failed = [{"error": Failure.TIMEOUT, "tokens": None, "equal": None, "ttft_s": None}] * 2
    found = evidence(Recorder().pairs(*failed, {"error": 77, "tokens": 5}, {"tokens": 50}))
    report = found.report("blue")
    assert (report.failed, report.compared, found.copies, found.tokens) == ({"timeout": 2, "other": 1}, 1, 4, 55)
    assert {it.pairs for it in report.values} == {1}


def test_values_that_are_missing_are_no_values() -> None:
    found = evidence(Recorder().pairs({"ttft_s": None, "length_ratio": 0.0}, {"cosine": 0.5}))
    assert value(found, "ttft").pairs == 1
    assert value(found, "length").pairs == 1
    assert value(found, "cosine").value.estimate == pytest.approx(0.5)


def test_events_count_by_pairs_and_their_evidence_by_units() -> None:
    short: dict[str, Any] = {"finish": Finish.LENGTH, "primary_finish": Finish.STOP}
    rows = [{"unit": 1, **short}] * 5 + [{"unit": unit, **short} for unit in range(2, 16)]
    rows += [{"unit": 99, "finish": Finish.LENGTH, "primary_finish": Finish.LENGTH}, {"unit": 98}]
    found = event(evidence(Recorder().pairs(*rows)), "truncated")
    assert (found.pairs, found.shadow_only, found.primary_only, found.both) == (21, 19, 0, 1)
    assert found.side == "higher"
    once = event(evidence(Recorder().pairs(*[{"unit": 1, **short}] * 30)), "truncated")
    assert (once.shadow_only, once.side) == (30, "undecided")
    again = event(evidence(*(Recorder().pairs({"unit": 1, **short}) for _ in range(30))), "truncated")
    assert again.log_e_value == once.log_e_value


def test_an_event_that_the_primary_has_more_often_is_lower_on_the_shadow() -> None:
    rows = [{"unit": unit, "valid": 1, "primary_valid": 0} for unit in range(20)]
    found = event(evidence(Recorder().pairs(*rows, {"valid": 1})), "invalid_output")
    assert (found.pairs, found.primary_only, found.shadow_only, found.side) == (20, 20, 0, "lower")
    none = evidence(Recorder().pairs({"visible": 1, "primary_visible": None, "finish": 0}))
    assert none.report("blue").events == []


def test_memory_is_bounded_by_units() -> None:
    found = ShadowEvidence(max_units=100)
    found.add(Recorder().pairs(*({"unit": 2**40 * unit + 17} for unit in range(1000))))
    assert 0 < value(found, "ttft").units <= 100
    assert found.compared == 1000
