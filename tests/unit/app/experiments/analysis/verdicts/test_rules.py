import pytest

from app.experiments.analysis.comparing import decision_of, effect_of, is_non_inferior, verdict_of
from app.experiments.analysis.metrics import Measure
from app.experiments.contract.report import Better, Comparison, Decision, Effect, Verdict


def measure(better: Better) -> Measure:
    return Measure(
        key="m", metric="m", statistic="mean", kind="mean", better=better, scale="relative", minimal_effect=0.05,
        role="primary",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("better", "lower", "upper", "verdict", "non_inferior"),
    [
        ("higher", 0.01, 0.2, "better", True),
        ("higher", -0.2, -0.01, "worse", False),
        ("higher", -0.04, -0.01, "worse", True),
        ("higher", -0.04, 0.04, "equivalent", True),
        ("higher", -0.04, 0.2, "undecided", True),
        ("higher", -0.2, 0.04, "undecided", False),
        ("lower", -0.2, -0.01, "better", True),
        ("lower", 0.01, 0.2, "worse", False),
        ("lower", -0.2, 0.04, "undecided", True),
        ("lower", -0.04, 0.2, "undecided", False),
        ("lower", -0.04, 0.04, "equivalent", True),
        ("neither", 0.01, 0.2, "different", False),
        ("neither", -0.2, -0.01, "different", False),
        ("neither", 0.01, 0.04, "equivalent", True),
        ("neither", -0.2, 0.2, "undecided", False),
        ("higher", 0.01, None, "better", True),
        ("lower", None, None, "undecided", False),
        ("lower", 0.3, None, "worse", False),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_good_direction(
    better: Better, lower: float | None, upper: float | None, verdict: Verdict, non_inferior: bool
) -> None:
    effect = Effect(estimate=0.0, lower=lower, upper=upper)
    assert verdict_of(effect, measure(better)) == verdict
    assert is_non_inferior(effect, measure(better)) == non_inferior


def test_a_lift_is_relative_to_control_and_a_difference_stays_as_it_is() -> None:
    lift = effect_of(-0.08, (-0.14328, -0.01672), "relative")
    assert (lift.lower, lift.upper) == pytest.approx((-0.1335, -0.0166), abs=1e-4)
    assert effect_of(0.3, None, "absolute") == Effect(estimate=0.3)


def compared(verdict: Verdict, *, non_inferior: bool = False) -> Comparison:
    return Comparison(
        metric="m", statistic="mean", role="primary", treatment="green", better="lower", scale="relative",
        minimal_effect=0.05, alpha=0.05, effect=Effect(), verdict=verdict, non_inferior=non_inferior,
    )  # fmt: skip


BETTER, SAME, OPEN = (
    compared("better", non_inferior=True),
    compared("equivalent", non_inferior=True),
    compared("undecided", non_inferior=True),
)


@pytest.mark.parametrize(
    ("primary", "facts", "decision"),
    [
        ([BETTER], {}, "ship"),
        ([BETTER, SAME, OPEN], {}, "ship"),
        ([BETTER, compared("undecided")], {}, "keep_going"),
        ([SAME, OPEN], {}, "keep_going"),
        ([BETTER, compared("worse", non_inferior=True)], {}, "do_not_ship"),
        ([BETTER], {"acted": True}, "do_not_ship"),
        ([BETTER], {"quiet": False}, "keep_going"),
        ([BETTER], {"quiet": False, "acted": True}, "do_not_ship"),
        ([compared("worse")], {"quiet": False}, "do_not_ship"),
        ([BETTER], {"long_enough": False}, "keep_going"),
        ([BETTER], {"changed": True}, "keep_going"),
        ([BETTER], {"same_length": False}, "keep_going"),
        ([BETTER], {"comparable": False}, "keep_going"),
        ([BETTER, compared("different")], {}, "do_not_ship"),
        ([BETTER], {"settled": False}, "keep_going"),
        ([compared("worse")], {"settled": False}, "do_not_ship"),
        ([compared("worse")], {"changed": True}, "do_not_ship"),
        ([BETTER], {"invalid": True}, "invalid"),
        ([compared("worse")], {"invalid": True}, "invalid"),
        ([BETTER], {"invalid": True, "acted": True}, "do_not_ship"),
    ],
)
def test_the_decision_follows_from_the_primary_metrics_and_the_state(
    primary: list[Comparison], facts: dict[str, bool], decision: Decision
) -> None:
    everything = {
        **{"acted": False, "quiet": True, "changed": False, "same_length": True},
        **{"settled": True, "comparable": True, "invalid": False, "long_enough": True},
    }
    assert decision_of(primary, **(everything | facts)) == decision
