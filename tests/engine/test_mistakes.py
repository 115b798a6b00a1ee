"""A small mistake in a request is refused with the name of a field, by the router or in the words of vLLM's types."""

import asyncio
import copy
import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.exception_handling.handlers.validation import validation_exception_handler
from vllm.exceptions import VLLMValidationError

from app.dialects.base import Request
from app.dialects.registry import DIALECTS
from app.engine.errors import engine_error, field_named_in
from app.errors import ClientError, Rejected
from tests.support.clients.samples import CONTEXT

pytestmark = pytest.mark.real

PARAMETERS = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
FUNCTION = {"name": "times", "description": "d", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"id": "c", "type": "function", "function": {"name": "times", "arguments": "{}"}}
SCHEMA = {"name": "s", "schema": PARAMETERS}
CHAT: Mapping[str, Any] = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "5"},
    ],
    "max_tokens": 50,
    "temperature": 0.5,
    "top_p": 0.5,
    "stop": ["a"],
    "seed": 1,
}
CHOSEN = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "times"}}}
FORMATTED = {"response_format": {"type": "json_schema", "json_schema": SCHEMA}}
RESPONSE: Mapping[str, Any] = {
    "model": "chat",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "times", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "5"},
    ],
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": {"type": "function", "name": "times"},
    "text": {"format": {"type": "json_schema", **SCHEMA}},
    "reasoning": {"effort": "low"},
    "max_output_tokens": 50,
    "temperature": 0.5,
}
MESSAGES: Mapping[str, Any] = {
    "model": "chat",
    "max_tokens": 5000,
    "system": [{"type": "text", "text": "hi"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "times", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "5"}]},
    ],
    "tools": [{"name": "times", "description": "d", "input_schema": PARAMETERS}],
    "tool_choice": {"type": "tool", "name": "times"},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"format": {"type": "json_schema", "schema": PARAMETERS}},
    "stop_sequences": ["a"],
    "temperature": 0.5,
}
AZURES = {"api-version": "2024-05-01-preview"}
REQUESTS: list[tuple[str, str, str, Mapping[str, Any], type[BaseModel]]] = [
    ("openai", "chat", "/v1/chat/completions", {**CHAT, **CHOSEN, **FORMATTED}, ChatCompletionRequest),
    ("azure", "chat", "/models/chat/completions", {**CHAT, **CHOSEN, **FORMATTED}, ChatCompletionRequest),
    ("databricks", "chat", "/serving-endpoints/chat/invocations", {**CHAT, **CHOSEN}, ChatCompletionRequest),
    ("friendli", "chat", "/serverless/v1/chat/completions", {**CHAT, **CHOSEN}, ChatCompletionRequest),
    ("tgi", "chat", "/tgi/v1/chat/completions", {**CHAT, **CHOSEN, **FORMATTED}, ChatCompletionRequest),
    ("openai", "responses", "/v1/responses", RESPONSE, ResponsesRequest),
    ("databricks", "responses", "/serving-endpoints/chat/invocations", RESPONSE, ResponsesRequest),
    ("anthropic", "messages", "/v1/messages", MESSAGES, AnthropicMessagesRequest),
]


def mistakes(value: Any) -> Iterator[Any]:
    """The value with one mistake: a member that is missing or misspelt, a value of another type, or an empty one."""
    if isinstance(value, dict):
        for name, member in value.items():
            others = {other: inner for other, inner in value.items() if other != name}
            yield others
            yield {**others, name[:1] + name[2:]: member}
            yield from ({**value, name: wrong} for wrong in mistakes(member))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from ([*value[:number], wrong, *value[number + 1 :]] for wrong in mistakes(item))
    yield from (other for other in ("", "x", 5, -5, True, [], ["x"], {}, {"x": 5}) if other != value)


def refused(form: type[BaseModel], body: Mapping[str, Any]) -> Rejected | None:
    """The error of vLLM's types, as its server says it; None if they take the body."""
    try:
        form.model_validate(copy.deepcopy(dict(body)))
    except VLLMValidationError as error:
        return Rejected(str(error), status=400, param=error.parameter)
    except ValidationError as error:
        problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors()]
        server: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(args=SimpleNamespace())))
        server.app.state.args.log_error_stack = False
        answer = asyncio.run(validation_exception_handler(server, RequestValidationError(problems)))
        found = engine_error(bytes(answer.body)[: 64 * 1024], answer.status_code)
        assert isinstance(found, Rejected)
        return found
    return None


@pytest.mark.parametrize(
    ("name", "operation", "path", "body", "form"), [pytest.param(*case, id=f"{case[0]} {case[1]}") for case in REQUESTS]
)
def test_no_small_mistake_is_refused_without_a_field(
    name: str, operation: str, path: str, body: Mapping[str, Any], form: type[BaseModel]
) -> None:
    (dialect,) = (dialect for dialect in DIALECTS if dialect.name == name)

    def sent(body: Mapping[str, Any]) -> Mapping[str, Any]:
        request = Request("POST", path, json.dumps(body).encode(), {"name": "chat"}, AZURES)
        return dialect.parse(operation, request, CONTEXT).body

    assert refused(form, sent(body)) is None
    unnamed = []
    for wrong in mistakes(body):
        if not isinstance(wrong, dict):
            continue
        try:
            engine_body = sent(wrong)
        except ClientError as error:
            if not error.param and " field" not in error.message:  # Databricks' words
                unnamed.append((wrong, error.message))
            continue
        refusal = refused(form, engine_body)
        if refusal is not None and not (refusal.param or field_named_in(refusal.message, engine_body)):
            unnamed.append((wrong, refusal.message))
    assert unnamed == []
