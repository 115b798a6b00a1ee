"""The metrics of every part of the real application, through its ingress."""

import httpx

from tests.real.conftest import Application
from tests.support.processes.scraper import Scraper


def test_every_part_is_scraped(application: Application) -> None:
    """vLLM's own numbers without the internal key, HAProxy's, the router's, the controller's."""
    question = {"model": "smollm2-blue", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    httpx.post(f"{application.url}/v1/chat/completions", json=question, timeout=60).raise_for_status()
    scraper = Scraper(application.url)
    components = [it["labels"]["component"] for it in scraper.targets()]
    assert {it: components.count(it) for it in components} == {
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
    assert counted == {(it, 0.0) for it in ("router", "experiments", "smollm2-blue", "smollm2-green", "minilm")}
    sessions = [value for (name, _), value in samples.items() if name == "haproxy_frontend_sessions_total"]
    assert max(sessions) >= 1
    running = {
        dict(labels)["application"]: value
        for (name, labels), value in samples.items()
        if name == "switchyard_replicas" and dict(labels)["state"] == "RUNNING"
    }
    assert running["router"] == running["experiments"] == running["minilm"] == 1.0


DRAINING = "switchyard_draining"


def test_an_engine_says_the_same_as_at_its_own_metrics(application: Application) -> None:
    name = "vllm:cache_config_info"
    (engine,) = [
        it["labels"]["__metrics_path__"]
        for it in Scraper(application.url).targets()
        if it["labels"].get("deployment") == "smollm2-green"
    ]
    answer = httpx.get(application.url + engine).text
    assert any(line.startswith(name) for line in answer.splitlines())
    assert application.engine_metric("smollm2-green", name) == 1.0
