"""The official Anthropic SDK against the real router and fake deployments."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import anthropic
import pytest
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.engine.other_answers import message_with

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
    for message in (whole, streamed):
        assert (message.stop_reason, message.content[0].type) == ("tool_use", "tool_use")


def test_answers_streams_and_errors_have_the_request_id(rig: Rig, client: anthropic.Anthropic) -> None:
    rig.blue.answer = calls_a_tool
    fields: Any = {"model": "chat", "max_tokens": 5, "messages": USER, "extra_headers": {"x-request-id": "req_1"}}
    assert client.messages.create(**fields)._request_id == "req_1"
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
