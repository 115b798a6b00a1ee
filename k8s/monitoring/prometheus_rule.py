"""Writes alerts as the Prometheus operator's PrometheusRule: `python -m k8s.monitoring.prometheus_rule FROM TO`."""

import sys
from pathlib import Path

import yaml

_HEADER = "# Written by `make monitoring` from alerts.yaml.\n"


def prometheus_rule(alerts: str) -> str:
    """The resource with the groups of a file of rules. Contract: monitoring.coreos.com/v1."""
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "switchyard"},
        "spec": yaml.safe_load(alerts),
    }
    return _HEADER + yaml.safe_dump(resource, sort_keys=False, width=120)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(prometheus_rule(Path(sys.argv[1]).read_text()))
