"""Every item that OpenAI's SDK knows reaches the engine as one that vLLM has, or is left out or refused by name."""

import json
from typing import Any

import pytest

from app.dialects.base import Request
from app.dialects.openai.dialect import OpenAI
from app.errors import BadRequest
from tests.support.clients.response_items import ITEMS, sample
from tests.support.clients.samples import CONTEXT
from tests.unit.app.dialects.openai.test_tools import REFUSING

FIRST = {"role": "user", "content": "hi"}
KNOWN = {"message", "function_call", "function_call_output", "reasoning"}


def parsed(*items: Any, operation: str = "responses", context: Any = CONTEXT) -> list[dict[str, Any]]:
    body = json.dumps({"model": "chat", "input": [FIRST, *items]}).encode()
    call = OpenAI().parse(operation, Request("POST", "/v1/responses", body), context)
    sent: list[dict[str, Any]] = call.body["input"][1:]
    return sent


@pytest.mark.parametrize("operation", ["responses", "input_tokens"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", ITEMS)
def test_an_item_of_the_sdk_is_one_that_vllm_has_or_is_refused_by_name(name: str, whole: bool, operation: str) -> None:
    item = sample(ITEMS[name], whole=whole)
    sent: list[Any] = []
    refused = BadRequest(str(item.get("type", "")), param="input[1]")
    try:
        sent = parsed(item, operation=operation)
    except BadRequest as error:
        refused = error
    assert str(refused.param).startswith("input[1]")
    assert str(item.get("type", "")) in refused.message
    assert len(sent) <= 1
    assert {one.get("type", "message") for one in sent} <= KNOWN
    assert all("role" in one for one in sent if one.get("type", "message") == "message")


def test_calls_of_the_clients_own_tools_and_their_results_are_those_of_functions() -> None:
    shell = {"command": ["ls"], "env": {}, "type": "exec"}
    stdout = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    operation = {"type": "delete_file", "path": "a"}
    sent = parsed(
        {"type": "custom_tool_call", "id": "1", "call_id": "c", "name": "patch", "input": "x", "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        {"type": "local_shell_call", "id": "2", "call_id": "d", "action": shell, "status": "completed"},
        {"type": "local_shell_call_output", "id": "d", "output": "a"},
        {"type": "shell_call", "call_id": "e", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "e", "output": [stdout]},
        {"type": "apply_patch_call", "call_id": "f", "operation": operation, "status": "completed"},
        {"type": "apply_patch_call_output", "call_id": "f", "status": "completed"},
    )
    calls = [{**call, "arguments": json.loads(call["arguments"])} for call in sent[::2]]
    assert calls == [
        {"type": "function_call", "call_id": "c", "name": "patch", "arguments": {"input": "x"}},
        {"type": "function_call", "call_id": "d", "name": "local_shell", "arguments": {"action": shell}},
        {"type": "function_call", "call_id": "e", "name": "shell", "arguments": {"action": {"commands": ["ls"]}}},
        {"type": "function_call", "call_id": "f", "name": "apply_patch", "arguments": {"operation": operation}},
    ]
    assert {result["type"] for result in sent[1::2]} == {"function_call_output"}
    assert [result["call_id"] for result in sent[1::2]] == ["c", "d", "e", "f"]
    listing = json.dumps([stdout], separators=(",", ":"))
    assert [result["output"] for result in sent[1::2]] == ["done", "a", listing, "completed"]


@pytest.mark.parametrize("kind", ["web_search_call", "mcp_list_tools"])
def test_what_a_servers_tool_was_asked_is_left_out_as_its_definition_is(kind: str) -> None:
    assert parsed({"type": kind, "id": "1"}) == []
    with pytest.raises(BadRequest, match=kind):
        parsed({"type": kind, "id": "1"}, context=REFUSING)


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ("hi", ""),
        ({"type": 5}, ".type"),
        ({"id": "msg_1"}, ""),
        ({"type": "message", "content": "hi"}, ".role"),
        ({"role": ["user"], "content": "hi"}, ".role"),
        ({"role": "tool", "content": "hi"}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, ".content[0]"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, ".content[0]"),
        ({"role": "assistant", "content": [{"type": "input_image", "image_url": "u"}]}, ".content[0]"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, ".arguments"),
        ({"type": "function_call_output", "call_id": "c"}, ".output"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, ".input"),
        ({"type": "custom_tool_call", "call_id": "c", "input": "x"}, ".name"),
    ],
)
def test_an_item_that_is_none_is_refused_by_the_place_of_the_fault(item: Any, path: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parsed(item)
    assert raised.value.param == f"input[1]{path}"


def test_every_text_of_the_models_message_reaches_the_prompt() -> None:
    texts = [{"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "b"}]
    message = {"type": "message", "id": "m", "status": "completed", "role": "assistant"}
    assert parsed({**message, "content": texts}) == [{**message, "content": "ab"}]
    assert parsed({**message, "content": texts[1:]}) == [{**message, "content": "b"}]
    assert parsed({**message, "content": texts[:1]}) == [{**message, "content": texts[:1]}]


def test_an_input_without_anything_for_the_model_is_refused() -> None:
    body = json.dumps({"model": "chat", "input": [{"type": "reasoning", "summary": []}]}).encode()
    with pytest.raises(BadRequest) as raised:
        OpenAI().parse("responses", Request("POST", "/v1/responses", body), CONTEXT)
    assert raised.value.param == "input"
