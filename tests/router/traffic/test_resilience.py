"""Retries stay within their budget, and a deployment that keeps failing is not called for a while."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse, PlainTextResponse, Response

from app.access.keys import append, create
from app.routing.resilience import FAULTS_IN_A_ROW, RESERVE, SHARE
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import chat, chunk, frame, refuse, stream
from tests.support.waiting import wait_until

QUESTION = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def open_breakers(client: httpx.Client) -> list[str]:
    names: list[str] = client.get("/ready").json()["open_breakers"]
    return names


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


def counted(client: httpx.Client, begins: str) -> dict[str, float]:
    """A metric's values by its other labels."""
    lines = [line.removeprefix(begins) for line in client.get("/metrics").text.splitlines() if line.startswith(begins)]
    return {label: float(value) for label, _, value in (line.partition("} ") for line in lines)}


def test_in_a_storm_of_failures_retries_add_a_tenth(rig: Rig, client: httpx.Client) -> None:
    rig.chat_endpoint(fallback=[])
    rig.blue.answer = refuse(500, "out of memory")
    count = 150
    assert {ask(client).status_code for _ in range(count)} == {502}
    calls = len([path for path in rig.blue.paths if path == "/v1/chat/completions"])  # the rest are the router's checks
    assert count < calls <= count + RESERVE + SHARE * count
    retried = counted(client, 'switchyard_retries_total{deployment="blue",endpoint="chat",error_type="broken",outcome=')
    # The check finds blue failing after some requests; until then blue itself is called again.
    assert retried.keys() == {'"same"', '"withheld"'}
    assert retried['"same"'] == calls - count
    assert sum(retried.values()) == count


def test_a_request_that_the_only_deployment_serves_closes_its_breaker_whatever_the_router_checks(
    rig: Rig, client: httpx.Client
) -> None:
    """The router checks what a deployment's `tasks` say, and a server at a `url` may serve less."""
    rig.chat_endpoint(fallback=[])
    rig.blue.answer = refuse(500, "out of memory")
    for _ in range(FAULTS_IN_A_ROW):
        ask(client)
    wait_until(lambda: open_breakers(client) == ["blue"])

    def chat_alone(body: dict[str, Any]) -> Response:
        return chat(body) if "messages" in body else refuse(404, "Not Found")(body)

    rig.blue.answer = chat_alone
    assert ask(client).status_code == 200
    assert open_breakers(client) == []


def test_a_deployment_that_keeps_failing_is_not_called_for_a_while(rig: Rig, client: httpx.Client) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = refuse(500, "out of memory")
    answers = [ask(client) for _ in range(FAULTS_IN_A_ROW)]
    wait_until(lambda: open_breakers(client) == ["blue"])
    calls = len(rig.blue.requests)
    answers += [ask(client) for _ in range(10)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["azureml-model-deployment"] for answer in answers} == {"green"}
    assert len(rig.blue.requests) == calls == FAULTS_IN_A_ROW + 1, "the last one is the router's own check"
    retried = counted(client, 'switchyard_retries_total{deployment="blue",endpoint="chat",error_type="broken",outcome=')
    assert retried == {'"other"': FAULTS_IN_A_ROW}
    fell_back = counted(client, 'switchyard_fallbacks_total{deployment="blue",endpoint="chat",fallback=')
    assert fell_back == {'"green"': len(answers)}, "also those for which blue was no longer called"


def test_an_open_breaker_is_visible(rig: Rig, client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = refuse(500, "out of memory")
    for _ in range(FAULTS_IN_A_ROW):
        ask(client)
    wait_until(lambda: open_breakers(client) == ["blue"])
    assert 'switchyard_breaker_open{deployment="blue"} 1.0' in client.get("/metrics").text
    assert any(getattr(line, "event", "") == "breaker_opened" for line in caplog.records)
    ask(client)
    counted = client.get("/metrics").text
    labels = 'deployment="green",dialect="openai",endpoint="chat",reason="failover",status="200"'
    assert f"switchyard_requests_total{{{labels}}}" in counted


def is_full(body: dict[str, Any]) -> Response:
    """The rejection that Ray Serve sends when a replica is full."""
    return PlainTextResponse("Request dropped due to backpressure", 503)


def test_a_deployment_that_is_full_counts_as_healthy(rig: Rig, client: httpx.Client) -> None:
    rig.chat_endpoint(fallback=[])
    rig.blue.answer = is_full
    for _ in range(2 * FAULTS_IN_A_ROW):
        answer = ask(client)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert open_breakers(client) == []
    assert rig.router.state.unserved.demand()["blue"] >= 1, "to an autoscaler it is demand"
    refused = counted(client, "switchyard_deployment_refused_total{deployment=")
    assert refused == {'"blue",endpoint="chat"': float(len(rig.blue.requests))}
    assert ask(client, model="green").status_code == 200
    assert "green" not in rig.router.state.unserved.demand()


POISON = "no engine survives this"


def answers_all_but_poison(body: dict[str, Any]) -> Response:
    poisoned = POISON in json.dumps(body)
    return refuse(500, "Internal server error", kind="InternalServerError")(body) if poisoned else chat(body)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
WAYS: list[tuple[dict[str, Any], int]] = [
    ({}, 502),
    ({"stream": True}, 502),
    ({"structured_outputs": {"regex": "a+"}}, 400),
    ({"structured_outputs": {"regex": "a+"}, "stream": True}, 400),
    ({"tools": [TOOL], "tool_choice": "required", "max_tokens": 5}, 400),
    ({"temperature": 7}, 400),
]
"""Further fields of a body, and the status: the engine fails on its text, on its constraint, or never sees it."""


@pytest.fixture
def bearers(rig: Rig, tmp_path: Path) -> Sequence[dict[str, str]]:
    """The headers of two callers."""
    keys = [create(name) for name in ("attacker", "victim")]
    for _, record in keys:
        append(tmp_path / "keys.yaml", record.line)
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml")})
    return [{"authorization": f"Bearer {key}"} for key, _ in keys]


@given(st.lists(st.tuples(st.sampled_from(WAYS), st.booleans()), max_size=14))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_sequence_of_one_callers_bodies_changes_who_serves_another(
    rig: Rig,
    client: httpx.Client,
    bearers: Sequence[dict[str, str]],
    attack: list[tuple[tuple[dict[str, Any], int], bool]],
) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = rig.green.answer = answers_all_but_poison
    attacker, victim = bearers
    for (fields, status), names_it in attack:
        headers = {**attacker, "azureml-model-deployment": "blue"} if names_it else attacker
        body = {"model": "chat", "messages": [{"role": "user", "content": POISON}], **fields}
        assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == status
    answer = client.post("/v1/chat/completions", json=QUESTION, headers=victim)
    assert answer.headers["azureml-model-deployment"] == "blue"
    assert open_breakers(client) == []


def test_one_callers_failing_bodies_leave_retries_for_another(
    rig: Rig, client: httpx.Client, bearers: Sequence[dict[str, str]]
) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = rig.green.answer = answers_all_but_poison
    attacker, victim = bearers
    poison = {"model": "chat", "messages": [{"role": "user", "content": POISON}]}
    for _ in range(round(RESERVE)):
        assert client.post("/v1/chat/completions", json=poison, headers=attacker).status_code == 502
    withheld = 'switchyard_retries_total{deployment="blue",endpoint="chat",error_type="broken",outcome="withheld"'
    assert counted(client, withheld), "the attacker has used up its part"
    rig.blue.answer = refuse(500, "out of memory")
    answer = client.post("/v1/chat/completions", json=QUESTION, headers=victim)
    assert (answer.status_code, answer.headers["azureml-model-deployment"]) == (200, "green")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}),
        ("structured_outputs", {"regex": r"[^\s\S]"}),
        ("structured_outputs", {"grammar": "root ::= root"}),
    ],
)
def test_a_constraint_that_admits_nothing_is_rejected_before_the_engine_is_called(
    rig: Rig, client: httpx.Client, field: str, value: Any, streamed: bool
) -> None:
    answer = ask(client, stream=streamed, **{field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert rig.blue.requests == rig.green.requests == []


def fails_after_the_role(body: dict[str, Any]) -> Response:
    if "structured_outputs" not in body:
        return chat(body)
    error = {"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}}
    if not body.get("stream"):
        return JSONResponse(error, status_code=500)
    return stream([chunk(""), 0.01, frame(error), "data: [DONE]\n\n"])


@pytest.mark.parametrize("streamed", [False, True])
def test_a_constraint_that_a_healthy_engine_fails_on_is_the_clients_fault(
    rig: Rig, client: httpx.Client, streamed: bool
) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = fails_after_the_role
    for _ in range(2 * FAULTS_IN_A_ROW):
        answer = ask(client, stream=streamed, structured_outputs={"regex": "(?!)"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "structured_outputs")
    assert rig.green.requests == [], "another deployment would fail as well"
    assert open_breakers(client) == []


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


def test_a_busy_deployment_opens_no_breaker_and_its_requests_go_elsewhere(rig: Rig, client: httpx.Client) -> None:
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
    error = answer.json()["error"]
    assert (error["code"], "than the 0.2 s that the request allows" in error["message"]) == ("timeout", True)
    assert len(rig.blue.requests) == 1
    assert 'error_type="client_timeout"' in client.get("/metrics").text, "no failure of the deployment's"


@pytest.mark.parametrize("wish", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_timeout_header_that_is_not_a_time_is_rejected_by_name(client: httpx.Client, wish: str) -> None:
    answer = client.post("/v1/chat/completions", json=QUESTION, headers={"x-request-timeout-s": wish})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-request-timeout-s"


def test_a_constrained_stream_that_stalls_after_its_role_is_a_timeout(rig: Rig, client: httpx.Client) -> None:
    rig.chat_endpoint(fallback=[])
    rig.change(timeouts={"idle_s": 0.2})
    rig.blue.answer = lambda body: stream([chunk(""), 60.0])
    answer = ask(client, stream=True, structured_outputs={"regex": "a+"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
