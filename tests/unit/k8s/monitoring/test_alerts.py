"""Each alert fires on its own series, and not on those of the other cases."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.clients.documents import anchors
from tests.support.kubernetes.overlays import made, release
from tests.support.processes.project import ROOT
from tests.support.processes.promtool import promtool

ALERTS = ROOT / "k8s/monitoring/alerts.yaml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"]
RULES = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}

Values = Mapping[str, str]
"""Series to values, one a minute, in promtool's notation: `0+6x10` are 0, 6, 12, … 60."""


class Case(NamedTuple):
    """`fires` and `silent`: scraped series; `labels`: the alert's without the severity; `at`: the time of the check."""

    fires: Values
    silent: Values
    labels: Mapping[str, str]
    at: str = "20m"


def answered(per_minute: int, failed: int, kind: str = "broken", endpoint: str = "chat") -> Values:
    """Two routers, each with that many requests and errors in every minute of eight hours."""
    return {
        series: f"0+{count}x480"
        for router in ("a", "b")
        for series, count in {
            f'switchyard_requests_total{{endpoint="{endpoint}", replica="{router}"}}': per_minute,
            f'switchyard_errors_total{{endpoint="{endpoint}", error_type="{kind}", replica="{router}"}}': failed,
        }.items()
    }


def streams(late: int, of: int) -> Values:
    """That many streams a minute, `late` of which begin after 2.5 s."""
    name = "gen_ai_server_time_to_first_token_seconds"
    return {
        f'{name}_bucket{{endpoint="chat", le="2.5"}}': f"0+{of - late}x60",
        f'{name}_bucket{{endpoint="chat", le="+Inf"}}': f"0+{of}x60",
        f'{name}_count{{endpoint="chat"}}': f"0+{of}x60",
    }


def replicas(state: str) -> Values:
    """Two replicas of one model."""
    return {f'switchyard_replicas{{application="llama-70b", state="{state}"}}': "0x5 2x90"}


def continued(reason: str) -> str:
    """The series of streams that lost blue's engines."""
    labels = f'endpoint="chat", deployment="blue", reason="{reason}", outcome="continued", replica="a"'
    return f"switchyard_continued_streams_total{{{labels}}}"


CASES: dict[str, Case] = {
    "SwitchyardErrorBudgetBurnsFast": Case(
        answered(100, 2), {**answered(1000, 5), **answered(100, 50, "bad_request", "embed")}, {"endpoint": "chat"}, "2h"
    ),
    "SwitchyardErrorBudgetBurns": Case(answered(1000, 7), answered(1000, 5), {"endpoint": "chat"}, "7h"),
    "SwitchyardFirstTokenLate": Case(streams(10, 100), streams(4, 100), {"endpoint": "chat"}, "40m"),
    "SwitchyardBreakerOpen": Case(
        {'switchyard_breaker_open{deployment="blue", replica="a"}': "0x5 1x60"},
        {'switchyard_breaker_open{deployment="blue", replica="a"}': "0x17 1 0x60"},
        {"deployment": "blue"},
    ),
    "SwitchyardEnginesDie": Case(
        {continued("closed"): "0x5 9x7 20x60", continued("error"): "0x9 4x60"},
        {continued("closed"): "0x5 9x60", continued("handover"): "0+9x60"},
        {"endpoint": "chat", "deployment": "blue"},
        "22m",
    ),
    "SwitchyardConfigurationRefused": Case(
        {
            f'switchyard_config_last_reload_successful{{application="router", replica="{replica}"}}': "1x5 0x60"
            for replica in "ab"
        },
        {'switchyard_config_last_reload_successful{application="router", replica="a"}': "1x60"},
        {"application": "router"},
    ),
    "SwitchyardKeysRefused": Case(
        {
            'switchyard_keys_last_reload_successful{application="router", replica="a"}': "1x60",
            'switchyard_keys_last_reload_successful{application="router", replica="b"}': "0x60",
        },
        {'switchyard_config_last_reload_successful{application="router", replica="a"}': "0x60"},
        {"application": "router"},
    ),
    "SwitchyardUnauthorizedRequests": Case(
        {'switchyard_unauthorized_requests_total{application="router", replica="a", outcome="throttled"}': "0+9x60"},
        {'switchyard_unauthorized_requests_total{application="router", replica="a", outcome="refused"}': "0+20x60"},
        {"application": "router"},
    ),
    "SwitchyardLimitsStoreAway": Case(
        {'switchyard_limit_store_failures_total{application="router", replica="a"}': "0+1x60"},
        {'switchyard_limit_store_failures_total{application="router", replica="a"}': "7x60"},
        {"application": "router"},
    ),
    "SwitchyardControllerAway": Case(
        {"switchyard_experiments_controller_up": "1x5 0x60"},
        {
            'switchyard_experiments_controller_up{replica="a"}': "0x60",
            'switchyard_experiments_controller_up{replica="b"}': "1x60",
        },
        {},
    ),
    "SwitchyardControlPlaneAway": Case(
        {"switchyard_control_plane_up": "1x5 0x60", "switchyard_experiments_controller_up": "1x60"},
        {"switchyard_control_plane_up": "1x17 0 1x60", "switchyard_experiments_controller_up": "0x60"},
        {},
    ),
    "SwitchyardExposuresLost": Case(
        {'switchyard_ledger_rows_lost_total{endpoint="chat", deployment="blue"}': "0x10 30x60"},
        {'switchyard_ledger_rows_total{endpoint="chat", deployment="blue"}': "0+30x60"},
        {"endpoint": "chat"},
    ),
    "SwitchyardSampleRatioAlarm": Case(
        {'switchyard_sample_ratio_log_e_value{endpoint="chat", experiment="e", replica="a"}': "7x60"},
        {'switchyard_guardrail_log_e_value{endpoint="chat", experiment="e", replica="a"}': "7x60"},
        {"endpoint": "chat", "experiment": "e"},
    ),
    "SwitchyardGuardrailStop": Case(
        {'switchyard_stops{endpoint="chat", deployment="green", replica="a"}': "0x5 1x60"},
        {'switchyard_stops{endpoint="chat", deployment="green", replica="a"}': "1x5 0x60"},
        {"endpoint": "chat", "deployment": "green"},
    ),
    "SwitchyardReplicasPending": Case(replicas("STARTING"), replicas("RUNNING"), {"application": "llama-70b"}, "30m"),
    "SwitchyardApplicationFailed": Case(
        {'ray_serve_application_status{application="llama-70b"}': "5x5 1x60"},
        {
            'ray_serve_application_status{application="llama-70b"}': "5x5 6x60",
            'ray_serve_application_status{application="bge"}': "2 6x60",
        },
        {"application": "llama-70b"},
    ),
    "SwitchyardNotReady": Case(
        {'kuberay_service_condition_ready{name="blue", namespace="team", condition="false"}': "1x60"},
        {
            'kuberay_service_condition_ready{name="blue", namespace="team", condition="true"}': "1x60",
            'kuberay_service_condition_ready{name="green", namespace="team", condition="false"}': "1x10 _x60",
        },
        {"name": "blue", "namespace": "team"},
        "30m",
    ),
    "SwitchyardUpgradeStuck": Case(
        {'kuberay_service_condition_upgrade_in_progress{name="blue", namespace="team", condition="true"}': "1x90"},
        {
            'kuberay_service_condition_upgrade_in_progress{name="blue", namespace="team", condition="false"}': "1x90",
            'kuberay_service_condition_upgrade_in_progress{name="c", namespace="team", condition="true"}': "1x40 _x60",
        },
        {"name": "blue", "namespace": "team"},
        "80m",
    ),
    "SwitchyardWeightsFailed": Case(
        {'kube_job_failed{job_name="blue-weights-0123abcd", namespace="team", condition="true"}': "0x5 1x60"},
        {
            'kube_job_failed{job_name="blue-weights-0123abcd", namespace="team", condition="false"}': "1x60",
            'kube_job_failed{job_name="backup", namespace="team", condition="true"}': "1x60",
        },
        {"job_name": "blue-weights-0123abcd", "namespace": "team"},
    ),
    "SwitchyardDrainTooLong": Case(
        {'switchyard_draining{application="llama-70b", node="10.0.0.3", replica="x"}': "0x5 1x90"},
        {'switchyard_draining{application="llama-70b", node="10.0.0.3", replica="x"}': "0x5 1x40 0x50"},
        {"application": "llama-70b", "node": "10.0.0.3", "replica": "x"},
        "60m",
    ),
    "SwitchyardQueueFull": Case(
        {'switchyard_admission_refused_total{endpoint="chat", cause="full", replica="a"}': "0+3x60"},
        {'switchyard_admission_waiting{endpoint="chat", replica="a"}': "30x60"},
        {"endpoint": "chat"},
    ),
}
OTHER_CAUSES = [
    (
        "SwitchyardQueueFull",
        Case(
            {
                f'switchyard_deployment_refused_total{{endpoint="chat", deployment="{name}", replica="a"}}': "0+3x60"
                for name in ("blue", "green")
            },
            {'switchyard_fallbacks_total{endpoint="chat", deployment="blue", fallback="green"}': "0+3x60"},
            {"endpoint": "chat"},
        ),
    )
]
"""Alerts that fire on further series."""


Evaluate = Callable[[list[tuple[str, Values, Mapping[str, str] | None, str]]], tuple[bool, str]]
"""Runs promtool on these cases: alert, series, and the alert's labels at that time; None if it must not fire."""


def evaluator(groups: list[dict[str, Any]], folder: Path, **added: str) -> Evaluate:
    """`added` are labels that the alerts of these groups have in addition."""
    # Labels only: the values in summaries are not tested here.
    bare = [
        {**group, "rules": [{key: rule[key] for key in rule if key != "annotations"} for rule in group["rules"]]}
        for group in groups
    ]
    (folder / "alerts.yaml").write_text(yaml.safe_dump({"groups": bare}))

    def run(cases: list[tuple[str, Values, Mapping[str, str] | None, str]]) -> tuple[bool, str]:
        tests = [
            {
                "interval": "1m",
                "name": f"{alert} {'fires' if labels is not None else 'is silent'}",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {"alertname": alert, "eval_time": at, "exp_alerts": expected(alert, labels, added)}
                ],
            }
            for alert, series, labels, at in cases
        ]
        file = folder / "tests.yaml"
        file.write_text(yaml.safe_dump({"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": tests}))
        return promtool("test", "rules", file)

    return run


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory: pytest.TempPathFactory) -> Evaluate:
    return evaluator(GROUPS, tmp_path_factory.mktemp("rules"))


def expected(alert: str, labels: Mapping[str, str] | None, added: Mapping[str, str]) -> list[dict[str, Any]]:
    return [] if labels is None else [{"exp_labels": {**labels, **RULES[alert]["labels"], **added}}]


def test_promtool_accepts_the_rules_and_no_broken_ones(tmp_path: Path) -> None:
    assert promtool("check", "rules", ALERTS)[0]
    (tmp_path / "broken.yaml").write_text(ALERTS.read_text().replace("sum by (endpoint)", "sum bye (endpoint)", 1))
    assert not promtool("check", "rules", tmp_path / "broken.yaml")[0]


def test_every_alert_fires_on_its_series_and_is_silent_on_its_neighbours(evaluate: Evaluate) -> None:
    assert CASES.keys() == RULES.keys()
    cases = [*CASES.items(), *OTHER_CAUSES]
    firing = [(alert, case.fires, case.labels, case.at) for alert, case in cases]
    well, printed = evaluate([*firing, *((alert, case.silent, None, case.at) for alert, case in cases)])
    assert well, printed


def test_an_alert_that_does_not_fire_would_be_noticed(evaluate: Evaluate) -> None:
    case = CASES["SwitchyardBreakerOpen"]
    well, printed = evaluate([("SwitchyardBreakerOpen", case.silent, case.labels, case.at)])
    assert (well, "SwitchyardBreakerOpen fires" in printed) == (False, True)


@pytest.mark.parametrize("alert", RULES)
def test_every_alert_has_a_summary_a_severity_and_a_runbook_that_exists(alert: str) -> None:
    rule = RULES[alert]
    assert rule["labels"].keys() == {"severity"}
    assert rule["annotations"].keys() == {"summary", "runbook"}
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor in anchors(ROOT / page)


def rule_of(name: str) -> dict[str, Any]:
    """The spec of a release's PrometheusRule."""
    objects = release(name, monitoring={"enabled": True})
    spec: dict[str, Any] = next(manifest for manifest in objects if manifest["kind"] == "PrometheusRule")["spec"]
    return spec


def test_the_charts_rule_has_the_same_alerts() -> None:
    charts = {rule["alert"]: rule for group in rule_of("blue")["groups"] for rule in group["rules"] if "alert" in rule}
    assert charts.keys() == RULES.keys()
    for alert, rule in charts.items():
        assert rule["labels"] == {**RULES[alert]["labels"], **BLUE}
        assert {**rule, "expr": None, "labels": None} == {**RULES[alert], "expr": None, "labels": None}


BLUE = {"namespace": "switchyard", "release": "blue"}


def of(name: str, series: Values) -> Values:
    """The series as a Prometheus has them that scrapes what this release's objects name."""
    labels = f'namespace="switchyard", release="{name}"'

    def labelled(metric: str) -> str:
        if metric.startswith("ku"):  # KubeRay's, and of kube-state-metrics: they name the object
            return metric.replace("team", "switchyard").replace("blue", name)
        return metric.replace("{", f"{{{labels}, ") if "{" in metric else f"{metric}{{{labels}}}"

    return {labelled(metric): values for metric, values in series.items()}


def test_two_releases_in_one_prometheus_alert_for_themselves(tmp_path: Path) -> None:
    """Each alert of `blue` fires on blue's series as if it were alone, and on green's it is silent."""
    cases = [*CASES.items(), *OTHER_CAUSES]
    firing = [
        (alert, {**of("blue", case.fires), **of("green", case.silent)}, of_blue(case.labels), case.at)
        for alert, case in cases
    ]
    silent = [
        (alert, {**of("blue", case.silent), **of("green", case.fires)}, None, case.at)
        for alert, case in cases
        if "ku" not in min(case.silent)[:2]  # whose neighbours have names of their own
    ]
    evaluate = evaluator(rule_of("blue")["groups"], tmp_path, **BLUE)
    well, printed = evaluate(
        [*firing, *silent, *((alert, of("green", case.fires), None, case.at) for alert, case in cases)]
    )
    assert well, printed
    well, printed = evaluator(GROUPS, tmp_path)(
        [(alert, of("green", case.fires), None, case.at) for alert, case in cases]
    )
    assert all(f"{alert} is silent" in printed for alert in CASES), "without their labels they would fire for both"
    assert not well


def of_blue(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value.replace("team", "switchyard") for name, value in labels.items()}


def test_the_operators_objects_have_the_release_that_a_prometheus_selects() -> None:
    """kube-prometheus-stack passes over others without a word."""
    ours = [
        manifest
        for manifest in made(monitoring={"enabled": True, "release": "kps"})
        if "monitoring.coreos.com" in manifest["apiVersion"]
    ]
    assert {manifest["kind"] for manifest in ours} == {"PodMonitor", "PrometheusRule", "ScrapeConfig"}
    assert {manifest["metadata"]["labels"]["release"] for manifest in ours} == {"kps"}
