"""The official Anthropic SDK against the real router and fake deployments."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.fake_engine import frame, stream

USER: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
MESSAGE: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "blue-model"}
USAGE = {"input_tokens": 9, "output_tokens": 3}


@pytest.fixture
def client(rig: Rig) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=rig.url, api_key="k", max_retries=0) as sdk:
        yield sdk


def event(value: dict[str, Any]) -> str:
    """One event as vLLM sends it."""
    return f"event: {value['type']}\n{frame(value)}"


def calls_a_tool(body: dict[str, Any]) -> Response:
    """What vLLM answers where `tool_choice` names the tool: `end_turn`."""
    block = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
    if not body.get("stream"):
        return JSONResponse({**MESSAGE, "content": [block], "stop_reason": "end_turn", "usage": USAGE})
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None, "usage": USAGE}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE},
        {"type": "message_stop"},
    ]
    return stream([event(value) for value in events])


def test_an_answer_that_calls_the_named_tool_stops_with_tool_use(rig: Rig, client: anthropic.Anthropic) -> None:
    rig.blue.answer = calls_a_tool
    fields: Any = {"model": "chat", "max_tokens": 5, "messages": USER, "tools": [TOOL]}
    fields["tool_choice"] = {"type": "tool", "name": "add"}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as events:
        streamed = events.get_final_message()
    for message in (whole, streamed):
        assert (message.stop_reason, message.content[0].type) == ("tool_use", "tool_use")
