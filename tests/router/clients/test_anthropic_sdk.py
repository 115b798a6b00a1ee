"""The official Anthropic SDK against the real router and fake deployments."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import anthropic
import pytest
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.engine.other_answers import HELLO, message, message_with

USER: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {"name": "add", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture
def client(rig: Rig) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=rig.url, api_key="k", max_retries=0) as sdk:
        yield sdk


def calls_a_tool(body: dict[str, Any]) -> Response:
    """vLLM's answer when `tool_choice` names the tool: it has `end_turn`."""
    return message_with(body, {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}})


def test_an_answer_that_calls_the_named_tool_stops_with_tool_use(rig: Rig, client: anthropic.Anthropic) -> None:
    rig.blue.answer = calls_a_tool
    fields: Any = {"model": "chat", "max_tokens": 5, "messages": USER, "tools": [TOOL]}
    fields["tool_choice"] = {"type": "tool", "name": "add"}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as events:
        streamed = events.get_final_message()
    for answer in (whole, streamed):
        assert (answer.stop_reason, answer.content[0].type) == ("tool_use", "tool_use")


@anthropic.beta_tool
def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    return str(a + b)


def calls_a_tool_once(body: dict[str, Any]) -> Response:
    """A call of `add`, and a text once there is a result."""
    if len(body["messages"]) > 1:
        return message(body)
    return message_with(body, {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}})


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner_needs_no_argument_to_send_whole_conversations(
    rig: Rig, client: anthropic.Anthropic, stream: bool
) -> None:
    rig.blue.answer = calls_a_tool_once
    runner: Any = client.beta.messages.tool_runner(
        model="chat", max_tokens=5, messages=USER, tools=[add], stream=stream
    )
    assert runner.until_done().content[0].text == HELLO
    assert [len(request["messages"]) for request in rig.blue.requests] == [1, 3]
    assert rig.blue.requests[1]["messages"][2]["content"][0]["content"] == "3"


def test_a_thread_continues_without_one_where_its_caller_allows_that(rig: Rig, client: anthropic.Anthropic) -> None:
    rig.blue.answer = message
    fields: Any = {"model": "chat", "max_tokens": 5}
    with pytest.raises(anthropic.BadRequestError, match="continue_unthreaded"):
        client.beta.messages.thread(**fields).send(USER[0])
    thread = client.beta.messages.thread(**fields, unsupported_request_behavior="continue_unthreaded")
    for _ in range(2):
        thread.send(USER[0])
    assert [len(request["messages"]) for request in rig.blue.requests] == [1, 3]


def test_answers_streams_and_errors_have_the_request_id(rig: Rig, client: anthropic.Anthropic) -> None:
    rig.blue.answer = calls_a_tool
    fields: Any = {"model": "chat", "max_tokens": 5, "messages": USER, "extra_headers": {"x-request-id": "req_1"}}
    assert client.messages.create(**fields)._request_id == "req_1"  # noqa: SLF001  documented
    with client.messages.stream(**fields) as events:
        assert events.response.headers["request-id"] == "req_1"
    rig.blue.answer = lambda body: JSONResponse({"input_tokens": 3})
    assert client.messages.with_raw_response.count_tokens(model="chat", messages=USER).request_id
    with pytest.raises(anthropic.NotFoundError) as raised:
        client.messages.create(**{**fields, "model": "gone"})
    assert raised.value.request_id == "req_1"
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["request_id"] == "req_1"


def test_the_models_are_the_endpoints_and_the_deployments(rig: Rig, client: anthropic.Anthropic) -> None:
    names = ["chat", "embed", "blue", "green", "mini"]
    assert [model.id for model in client.models.list()] == names
    assert [model.id for model in client.models.list(limit=2)] == names
    page = client.models.list(limit=2, before_id="green")
    assert ([model.id for model in page.data], page.has_more) == (["embed", "blue"], True)
    model = client.models.retrieve("green")
    assert (model.type, model.display_name, model.to_dict()["kind"]) == ("model", "green", "deployment")
    assert abs((datetime.now(UTC) - model.created_at).total_seconds()) < 60
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("gone")
    with pytest.raises(anthropic.BadRequestError, match="limit"):
        client.models.list(limit=0)


def test_the_beta_methods_are_served_at_foundrys_base_too(rig: Rig) -> None:
    rig.blue.answer = message
    for base in (rig.url, f"{rig.url}/anthropic"):
        with anthropic.Anthropic(base_url=base, api_key="k", max_retries=0) as client:
            answer = client.beta.messages.create(model="chat", max_tokens=5, messages=USER)
            assert answer.content[0].type == "text"
            assert {model.id for model in client.beta.models.list()} >= {"chat", "blue"}
