"""The metrics of every part of the real application, through its ingress: those of dashboards and alerts among them."""

import json
from pathlib import Path

import httpx

from app.experiments.contract.series import METRICS
from deployments.local import processes
from tests.real.conftest import Application
from tests.support.processes.monitoring import WHERE_CONFIGURED, metrics_asked_for, metrics_in
from tests.support.processes.scraper import Scraper

DRAINING = "switchyard_draining"


def test_every_part_is_scraped(application: Application) -> None:
    """Metrics of vLLM (without the internal key), HAProxy, the router and the controller."""
    question = {"model": "smollm2-blue", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    httpx.post(f"{application.url}/v1/chat/completions", json=question, timeout=60).raise_for_status()
    scraper = Scraper(application.url)
    components = [target["labels"]["component"] for target in scraper.targets()]
    assert {component: components.count(component) for component in components} == {
        "cluster": 1,
        "engine": 3,
        "experiments": 1,
        "proxy": 1,
        "router": 1,
    }
    samples = scraper.scrape()
    by_name = {(name, dict(labels).get("deployment", "")): dict(labels) for name, labels in samples}
    engine = by_name["vllm:request_success_total", "smollm2-blue"]
    assert (engine["component"], engine["endpoint"], engine["node"]) == ("engine", "chat", "127.0.0.1")
    router = by_name["switchyard_requests_total", "smollm2-blue"]
    assert (router["component"], router["application"]) == ("router", "router")
    counted = {(dict(labels)["application"], value) for (name, labels), value in samples.items() if name == DRAINING}
    assert counted == {
        (component, 0.0) for component in ("router", "experiments", "smollm2-blue", "smollm2-green", "minilm")
    }
    sessions = [value for (name, _), value in samples.items() if name == "haproxy_frontend_sessions_total"]
    assert max(sessions) >= 1
    running = {
        dict(labels)["application"]: value
        for (name, labels), value in samples.items()
        if name == "switchyard_replicas" and dict(labels)["state"] == "RUNNING"
    }
    assert running["router"] == running["experiments"] == running["minilm"] == 1.0


def test_an_engines_metrics_equal_those_on_its_own_port(application: Application) -> None:
    name = "vllm:cache_config_info"
    (engine,) = [
        target["labels"]["__metrics_path__"]
        for target in Scraper(application.url).targets()
        if target["labels"].get("deployment") == "smollm2-green"
    ]
    answer = httpx.get(application.url + engine).text
    assert any(line.startswith(name) for line in answer.splitlines())
    assert application.engine_metric("smollm2-green", name) == 1.0


def of_rays_agents(run: processes.Run) -> str:
    """The metrics of Ray's own agents, which Prometheus finds through a file."""
    found = json.loads((Path(run.directory) / "ray/prom_metrics_service_discovery.json").read_text())
    return "\n".join(httpx.get(f"http://{target}/metrics").text for entry in found for target in entry["targets"])


def test_every_metric_of_the_dashboards_and_alerts_exists(application: Application) -> None:
    assert application.sdk.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "Hi"}], max_tokens=4
    ).choices
    targets = httpx.get(f"{application.url}/metrics/targets").json()
    paths = [target["labels"]["__metrics_path__"] for target in targets]
    texts = [httpx.get(f"{application.url}{path}").raise_for_status().text for path in paths]
    run = processes.record(application.directory)
    assert run is not None
    there = metrics_in("\n".join([*texts, of_rays_agents(run)]))
    calls = metrics_asked_for()
    # Metrics of experiments and queues exist only if these are configured: tests/router/experiments/test_monitoring.py
    assert sorted(calls - there - METRICS.keys() - WHERE_CONFIGURED) == []
    assert {name.partition("_")[0] for name in calls} >= {"gen", "haproxy", "process", "ray", "switchyard"}
    assert any(name.startswith("vllm:") for name in calls)
