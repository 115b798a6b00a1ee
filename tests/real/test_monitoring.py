"""Every metric that a dashboard or an alert asks for is on a live server."""

import json
from pathlib import Path

import httpx

from app.experiments.series import METRICS
from deployments.local import processes
from tests.real.conftest import Application
from tests.support.processes.monitoring import WHERE_CONFIGURED, metrics_asked_for, metrics_in


def of_rays_agents(run: processes.Run) -> str:
    """What Ray's own agents export: Prometheus finds them by a file."""
    found = json.loads((Path(run.directory) / "ray/prom_metrics_service_discovery.json").read_text())
    return "\n".join(httpx.get(f"http://{it}/metrics").text for entry in found for it in entry["targets"])


def test_every_metric_of_the_dashboards_and_alerts_is_there(application: Application) -> None:
    assert application.sdk.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "Hi"}], max_tokens=4
    ).choices
    targets = httpx.get(f"{application.url}/metrics/targets").json()
    paths = [it["labels"]["__metrics_path__"] for it in targets]
    texts = [httpx.get(f"{application.url}{path}").raise_for_status().text for path in paths]
    run = processes.record(application.directory)
    assert run is not None
    there = metrics_in("\n".join([*texts, of_rays_agents(run)]))
    calls = metrics_asked_for()
    # Experiments and queues are there where they are configured: tests/router/experiments/test_monitoring.py
    assert sorted(calls - there - METRICS.keys() - WHERE_CONFIGURED) == []
    assert {name.partition("_")[0] for name in calls} >= {"gen", "haproxy", "process", "ray", "switchyard"}
    assert any(name.startswith("vllm:") for name in calls)
