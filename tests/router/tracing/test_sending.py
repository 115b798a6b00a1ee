"""Sending spans to the collector: when it is away, when the configuration changes, and when the router stops."""

import socket
from typing import Any

import httpx
import pytest

from app.config.base import ConfigError
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.processes.log_lines import log_lines
from tests.support.processes.servers import ServerPool
from tests.support.telemetry.otlp_receiver import OtlpReceiver, receiving
from tests.support.waiting import wait_until

CHAT: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def ask(url: str) -> str:
    answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
    assert answer.status_code == 200
    return answer.headers["x-request-id"]


def counted(rig: Rig, outcome: str) -> float:
    labels = {"outcome": outcome}
    return rig.router.state.telemetry.registry.get_sample_value("switchyard_traced_requests_total", labels) or 0


def test_requests_are_served_while_the_collector_is_away(traced: Rig, collector: OtlpReceiver) -> None:
    collector.status = 400
    with log_lines() as lines:
        ask(traced.url)
        wait_until(lambda: counted(traced, "failed") == 1)
        ask(traced.url)
        wait_until(lambda: counted(traced, "failed") == 2)
        collector.status = 200
        collector.of(ask(traced.url))
        wait_until(lambda: counted(traced, "exported") == 1)
        wait_until(lambda: any('"spans_sent_again"' in line for line in lines))
    assert len({line for line in lines if '"spans_not_sent"' in line}) == 1, "a line for each change, not each batch"


def test_spans_that_do_not_fit_into_the_queue_are_dropped_and_counted(
    traced: Rig, collector: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1000000")
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # connects, and never answers
        traced.change(tracing={"endpoint": f"http://127.0.0.1:{hanging.getsockname()[1]}"})
        for _ in range(12):
            ask(traced.url)
        assert counted(traced, "dropped") >= 12 - 2 - 2, "two are on their way, two wait"
        assert counted(traced, "exported") == 0
        traced.change(tracing=None)  # or the router's end would wait for the collector


def test_a_new_configuration_holds_from_the_next_request_on(traced: Rig, collector: OtlpReceiver) -> None:
    collector.of(ask(traced.url))
    with receiving() as (other, url):
        traced.change(tracing={"endpoint": url})
        other.of(ask(traced.url))
        traced.change(tracing=None)
        ask(traced.url)
        assert len(traced.blue.requests) == 3
        assert "traceparent" not in traced.blue.headers[-1]
        assert [len(receiver.spans) for receiver in (collector, other)] == [2, 2]


def test_the_last_spans_are_sent_before_the_router_ends(
    rig: Rig, collector: OtlpReceiver, running_receiver: tuple[OtlpReceiver, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1000000")
    router = Router(RuntimeEnvironment(internal_key="internal"))
    router.reconfigure({**rig.config, "tracing": {"endpoint": running_receiver[1], "percent": 100}})
    pool = ServerPool()
    with pool.host(router.app) as url:
        calls = ask(url)
        assert collector.spans == []
    pool.close()
    assert collector.spans[0].attributes["switchyard.request_id"] == calls


def test_the_standard_variables_complete_the_configuration(
    traced: Rig, running_receiver: tuple[OtlpReceiver, str], collector: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running_receiver[1])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20collectors-key")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-router")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    del traced.config["tracing"]
    traced.change(tracing={})
    span, _ = collector.of(ask(traced.url))
    assert span.resource.items() >= {"service.name": "my-router", "deployment.environment": "test"}.items()
    assert collector.headers["authorization"] == "Bearer collectors-key"


def test_a_variable_that_cannot_be_right_is_refused_and_the_last_configuration_stays(
    traced: Rig, collector: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")
    with pytest.raises(ConfigError, match="OTEL_BSP_MAX_QUEUE_SIZE"):
        traced.change(tracing={"percent": 0})
    collector.of(ask(traced.url))
