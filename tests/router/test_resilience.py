"""Retries stay within their budget, and a deployment that keeps failing is left alone for a while."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from app.routing.circuit_breaker import FAULTS_IN_A_ROW
from app.routing.retry_budget import RESERVE, SHARE
from tests.router.conftest import Rig
from tests.support.fake_engine import chat, refuse, stream

QUESTION = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def client(rig: Rig) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=rig.url, timeout=30) as client:
        yield client


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={**QUESTION, **fields})


@pytest.mark.parametrize("streamed", [False, True])
def test_without_another_deployment_another_replica_is_called(rig: Rig, client: httpx.Client, streamed: bool) -> None:
    rig.chat_endpoint(fallback=[])

    def fail_once(body: dict[str, Any]) -> Response:
        rig.blue.answer = chat
        return refuse(500, "out of memory")(body)

    rig.blue.answer = fail_once
    answer = ask(client, stream=streamed)
    assert answer.status_code == 200
    assert "lo " in answer.text
    assert len(rig.blue.requests) == 2
    assert rig.green.requests == []


def test_in_a_storm_of_failures_retries_add_a_tenth(rig: Rig, client: httpx.Client) -> None:
    rig.chat_endpoint(fallback=[])
    rig.blue.answer = refuse(500, "out of memory")
    count = 150
    assert {ask(client).status_code for _ in range(count)} == {502}
    assert count < len(rig.blue.requests) <= count + RESERVE + SHARE * count


def test_a_deployment_that_keeps_failing_is_left_alone(rig: Rig, client: httpx.Client) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = refuse(500, "out of memory")
    answers = [ask(client) for _ in range(FAULTS_IN_A_ROW + 10)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["azureml-model-deployment"] for answer in answers} == {"green"}
    assert len(rig.blue.requests) == FAULTS_IN_A_ROW


def test_the_last_deployment_is_called_however_often_it_failed(rig: Rig, client: httpx.Client) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = rig.green.answer = refuse(500, "out of memory")
    assert {ask(client).status_code for _ in range(3 * FAULTS_IN_A_ROW)} == {502}
    rig.blue.answer = rig.green.answer = chat
    assert ask(client).status_code == 200


def test_a_deployment_named_by_the_caller_is_called_even_with_an_open_breaker(rig: Rig, client: httpx.Client) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = refuse(500, "out of memory")
    for _ in range(FAULTS_IN_A_ROW):
        ask(client)
    rig.blue.answer = chat
    answer = client.post("/v1/chat/completions", json=QUESTION, headers={"azureml-model-deployment": "blue"})
    assert (answer.status_code, answer.headers["azureml-model-deployment"]) == (200, "blue")


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_clients_fault_opens_nothing(rig: Rig, client: httpx.Client, status: int) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = refuse(status, "temperature must be at most 2", "temperature")
    for _ in range(2 * FAULTS_IN_A_ROW):
        ask(client)
    rig.blue.answer = chat
    assert ask(client).headers["azureml-model-deployment"] == "blue"
    assert len(rig.blue.requests) == 2 * FAULTS_IN_A_ROW + 1


def test_being_busy_opens_nothing_and_goes_elsewhere(rig: Rig, client: httpx.Client) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = refuse(503, "too many requests in flight")
    served = [ask(client).headers["azureml-model-deployment"] for _ in range(FAULTS_IN_A_ROW + 2)]
    assert set(served) == {"green"}
    rig.blue.answer = chat
    assert ask(client).headers["azureml-model-deployment"] == "blue"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_may_wait_less_than_the_configuration_allows(rig: Rig, client: httpx.Client, streamed: bool) -> None:
    rig.chat_endpoint(fallback=[])
    rig.blue.answer = lambda body: stream([60.0])
    answer = client.post(
        "/v1/chat/completions", json={**QUESTION, "stream": streamed}, headers={"x-request-timeout-s": "0.2"}
    )
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "timeout"
    assert len(rig.blue.requests) == 1


@pytest.mark.parametrize("wish", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_timeout_header_that_is_not_a_time_is_rejected_by_name(client: httpx.Client, wish: str) -> None:
    answer = client.post("/v1/chat/completions", json=QUESTION, headers={"x-request-timeout-s": wish})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-request-timeout-s"
