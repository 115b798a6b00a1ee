"""The queries of the dashboards and alerts, and the metrics in them."""

import json
import re
from collections.abc import Iterator

import yaml

from tests.support.processes.project import ROOT

MONITORING = ROOT / "k8s/monitoring"
_METRIC = re.compile(r"\b(?:gen_ai|haproxy|http_server|process|ray|switchyard|vllm:)[a-z0-9_]*\b(?!:)")
WHERE_CONFIGURED = {
    "switchyard_admission_running",
    "switchyard_admission_slots",
    "switchyard_admission_waiting",
    "switchyard_experiments_controller_up",
}
"""Metrics that exist only with a queue, or with experiments."""

_PARTS = ("_bucket", "_sum", "_count")


def expressions() -> Iterator[str]:
    """Every query of a dashboard, and of an alert or recording rule."""
    for file in (MONITORING / "grafana").glob("*.json"):
        for panel in json.loads(file.read_text())["panels"]:
            yield from (target["expr"] for target in panel.get("targets", ()))
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def metrics_asked_for() -> set[str]:
    """The names of metrics; for a histogram its base name."""
    return {_family(name) for expression in expressions() for name in _METRIC.findall(_without_labels(expression))}


def metrics_in(text: str) -> set[str]:
    """The names in an exposition, with or without samples; for a histogram its base name."""
    typed = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    sampled = re.findall(r"^([a-zA-Z_:][\w:]*)[ {]", text, re.MULTILINE)
    return {*typed, *(_family(name) for name in sampled), *sampled}


def _without_labels(expression: str) -> str:
    return re.sub(r"\{[^}]*\}|by \([^)]*\)|switchyard:\S+", "", expression)


def _family(name: str) -> str:
    return next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)
