"""Health, readiness, metrics and the access log."""

import json
import logging
from collections.abc import Iterator
from random import Random

import httpx
import pytest

from app.config.base import ConfigError
from app.control_plane import Replicas
from app.server.application import Router
from app.telemetry.logs import JsonFormatter
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "a secret prompt"}]}


def test_health_is_about_the_router_alone(rig: Rig) -> None:
    rig.blue.healthy = rig.green.healthy = rig.mini.healthy = False
    assert httpx.get(f"{rig.url}/health").status_code == 200


def test_ready_needs_a_healthy_deployment_with_traffic_for_every_endpoint(rig: Rig) -> None:
    assert httpx.get(f"{rig.url}/ready").json()["endpoints"] == {"chat": True, "embed": True}


def test_an_endpoint_whose_deployments_are_down_is_not_ready(rig: Rig) -> None:
    rig.blue.healthy = False
    answer = httpx.get(f"{rig.url}/ready")
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "not ready",
        "endpoints": {"chat": False, "embed": True},
        "deployments": {"blue": False, "green": True, "mini": True},
        "open_breakers": [],
    }


def test_ready_says_that_the_latest_configuration_is_refused(rig: Rig) -> None:
    with pytest.raises(ConfigError):
        rig.router.reconfigure({**rig.config, "access": {"keys_file": "/nowhere/keys.yaml"}})
    refused = httpx.get(f"{rig.url}/ready")
    assert (refused.status_code, refused.json()["configuration"]) == (200, "refused")
    rig.router.reconfigure(rig.config)
    assert "configuration" not in httpx.get(f"{rig.url}/ready").json()


def test_ready_wakes_no_application(rig: Rig, servers: ServerPool) -> None:
    """Nothing listens where the applications are, so a probed one is not healthy."""
    applications = {name: {"app": name, "model": "m"} for name in ("blue", "green")}
    config = {**rig.config, "deployments": {**rig.config["deployments"], **applications}}
    control = MemoryControl(config, lambda config: None)
    control.running = Replicas({"blue": {"RUNNING": 2}, "green": {}}, {"RUNNING": 1}, asleep={"green"})
    router = Router(RuntimeEnvironment("http://127.0.0.1:1"), random=Random(1), control=control)
    router.reconfigure(config)
    with servers.host(router.app) as url:
        answer = httpx.get(f"{url}/ready")
    assert answer.status_code == 200
    assert answer.json()["deployments"] == {"blue": True, "green": True, "mini": True}
    assert answer.json()["asleep"] == ["green"]


def test_demand_for_applications_without_a_replica_is_reported_to_the_control_plane(
    rig: Rig, servers: ServerPool
) -> None:
    config = {**rig.config, "deployments": {**rig.config["deployments"], "blue": {"app": "llama", "model": "m"}}}
    control = MemoryControl(config, lambda config: None)
    router = Router(RuntimeEnvironment("http://127.0.0.1:1"), random=Random(1), control=control)
    router.reconfigure(config)
    router.state.unserved.refused("blue")
    with servers.host(router.app):
        wait_until(lambda: control.unserved)
    assert control.unserved[:1] == [{"llama": 1}]


def test_a_router_without_a_configuration_answers_503(servers: ServerPool) -> None:
    with servers.host(Router(RuntimeEnvironment(), random=Random(1)).app) as url:
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/ready").status_code == 503
        answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_metrics_count_requests_tokens_and_latencies_by_deployment(rig: Rig) -> None:
    httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT)
    httpx.post(f"{rig.url}/v1/chat/completions", json={**CHAT, "stream": True})
    httpx.post(f"{rig.url}/v1/chat/completions", json={**CHAT, "model": "gone"})
    lines = set(httpx.get(f"{rig.url}/metrics").text.splitlines())
    labels = 'deployment="blue",dialect="openai",endpoint="chat"'
    assert f'switchyard_requests_total{{{labels},reason="traffic",status="200"}} 2.0' in lines
    assert f'gen_ai_server_request_duration_seconds_count{{{labels},status="200"}} 2.0' in lines
    assert f'gen_ai_server_time_to_first_token_seconds_count{{{labels},status="200"}} 1.0' in lines
    assert any(line.startswith(f"gen_ai_server_time_per_output_token_seconds_count{{{labels}") for line in lines)
    tokens = f"gen_ai_client_token_usage_tokens_sum{{{labels.replace('endpoint', 'endpoint')},gen_ai_token_type="
    assert f'{tokens}"input",status="200"}} 18.0' in lines
    assert f'{tokens}"output",status="200"}} 6.0' in lines
    assert any('error_type="not_found"' in line and 'status="404"' in line for line in lines)


@pytest.fixture
def access_log() -> Iterator[list[str]]:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(JsonFormatter().format(record))

    logger = logging.getLogger("switchyard.access")
    handler = Keep()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(level)
    logger.removeHandler(handler)


def test_the_access_log_names_the_deployment_and_never_the_prompt_or_the_key(rig: Rig, access_log: list[str]) -> None:
    headers = {"authorization": "Bearer sk-secret", "x-request-id": "mine-1"}
    httpx.post(f"{rig.url}/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers)
    wait_until(lambda: access_log)  # it is written after the last byte
    (line,) = access_log
    record = json.loads(line)
    assert record["request_id"] == "mine-1"
    assert (record["endpoint"], record["deployment"], record["reason"]) == ("chat", "blue", "traffic")
    assert (record["status"], record["stream"], record["prompt_tokens"], record["completion_tokens"]) == (
        200,
        True,
        9,
        3,
    )
    assert "secret" not in line
