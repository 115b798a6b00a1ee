from app.experiments.contract.report import AutomationStatus
from app.experiments.contract.series import METRICS, series_of
from app.experiments.shadows import MIRROR_VALUE
from tests.support.experiments.reports import SHIP

SECOND_STEP = AutomationStatus(state="running", revision=3, step=1, share=5, next_share=25)


def values(name: str, acting: AutomationStatus | None = SECOND_STEP, /, **labels: str) -> list[float]:
    return [
        sample.value
        for sample in series_of(SHIP, acting)
        if sample.metric == name and labels.items() <= sample.labels.items()
    ]


def test_a_lift_has_three_bounds() -> None:
    lift = [
        values("switchyard_experiment_lift", metric="ttft", bound=bound) for bound in ("estimate", "lower", "upper")
    ]
    assert lift == [[-0.0769], [-0.134], [-0.0166]]


def test_missing_values_have_no_sample() -> None:
    assert values("switchyard_experiment_lift", metric="empty") == []


def test_exactly_one_verdict_of_a_metric_is_1() -> None:
    assert values("switchyard_experiment_verdict", metric="ttft", verdict="better") == [1.0]
    assert sorted(values("switchyard_experiment_verdict", metric="ttft")) == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_units_guardrails_and_the_sample_ratio() -> None:
    assert values("switchyard_experiment_units", arm="smollm2-green") == [1198.0]
    assert values("switchyard_guardrail_log_e_value", event="error", treatment="smollm2-green") == [0.7]
    assert values("switchyard_sample_ratio_log_e_value") == [-2.1]


def test_metrics_of_evidence_have_their_former_names_too() -> None:
    former = {name: name.replace("_log_e_value", "_ln_e") for name in METRICS if name.endswith("_log_e_value")}
    assert len(former) == 3
    for name, old in former.items():
        assert values(name) == values(old) != []
        assert METRICS[old] == f"Deprecated: {name}"


def test_the_series_show_the_state_of_acting() -> None:
    states = [values("switchyard_experiment_state", state=state) for state in ("running", "paused", "stopped")]
    assert states == [[1.0], [0.0], [0.0]]
    assert values("switchyard_experiment_step") == [2.0]
    assert values("switchyard_experiment_share") == [5.0]


def test_below_the_first_step_and_without_a_ramp() -> None:
    below = AutomationStatus(state="running", revision=0, next_share=1)
    assert values("switchyard_experiment_step", below) == [0.0]
    by_hand = AutomationStatus(state="paused", revision=1, share=50)
    assert values("switchyard_experiment_step", by_hand) == []
    assert values("switchyard_experiment_share", by_hand) == [50.0]
    assert values("switchyard_experiment_state", None) == []


def test_every_metric_has_a_help_and_no_two_samples_have_the_same_labels() -> None:
    series = series_of(SHIP, SECOND_STEP)
    assert {gauge.metric for gauge in series} == METRICS.keys() - {MIRROR_VALUE}
    assert len({(gauge.metric, *sorted(gauge.labels.items())) for gauge in series}) == len(series)
