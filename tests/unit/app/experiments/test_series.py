from app.experiments.series import METRICS, series_of
from tests.support.experiment_reports import SHIP


def values(name: str, /, **labels: str) -> list[float]:
    return [it.value for it in series_of(SHIP) if it.metric == name and labels.items() <= it.labels.items()]


def test_a_lift_has_three_bounds() -> None:
    lift = [values("switchyard_experiment_lift", metric="ttft", bound=it) for it in ("estimate", "lower", "upper")]
    assert lift == [[-0.0769], [-0.134], [-0.0166]]


def test_what_has_no_value_has_no_sample() -> None:
    assert values("switchyard_experiment_lift", metric="empty") == []


def test_exactly_one_verdict_of_a_metric_is_1() -> None:
    assert values("switchyard_experiment_verdict", metric="ttft", verdict="better") == [1.0]
    assert sorted(values("switchyard_experiment_verdict", metric="ttft")) == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_units_guardrails_and_the_sample_ratio() -> None:
    assert values("switchyard_experiment_units", arm="smollm2-green") == [1198.0]
    assert values("switchyard_guardrail_ln_e", event="error", treatment="smollm2-green") == [0.7]
    assert values("switchyard_sample_ratio_ln_e") == [-2.1]


def test_every_metric_has_a_help_and_no_two_samples_have_the_same_labels() -> None:
    series = series_of(SHIP)
    assert {it.metric for it in series} == METRICS.keys()
    assert len({(it.metric, *sorted(it.labels.items())) for it in series}) == len(series)
