"""Every dialect's lines about its fields: none is missing, none is too many, and the plain ones are true."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from app.config.schema import parse as parse_config
from app.dialects.anthropic.fields import FIELDS as anthropic_FIELDS
from app.dialects.azure import fields as azure_fields
from app.dialects.base import ParseContext, Request, ServingContext
from app.dialects.common.support import RECORDS, VLLMS
from app.dialects.databricks import fields as databricks_fields
from app.dialects.databricks.responses import fields as response_fields
from app.dialects.databricks.responses import translate as databricks_responses
from app.dialects.field_table import DIALECTS
from app.dialects.friendli import fields as friendli_fields
from app.dialects.friendli import tokens as friendli_extras
from app.dialects.friendli.chat_fields import Chat as friendli_chat_Chat
from app.dialects.friendli.embeddings import Embeddings as friendli_extras_Embeddings
from app.dialects.openai import fields as openai_fields
from app.dialects.openai.vllm_fields import CHAT as openai_fields_CHAT
from app.dialects.openai.vllm_fields import COMPLETIONS as openai_fields_COMPLETIONS
from app.dialects.openai.vllm_fields import EMBEDDINGS as openai_fields_EMBEDDINGS
from app.dialects.openai.vllm_fields import ENGINE_TOKENIZE as openai_fields_ENGINE_TOKENIZE
from app.dialects.openai.vllm_fields import RESPONSES as openai_fields_RESPONSES
from app.dialects.openai.vllm_fields import UNSUPPORTED as openai_fields_UNSUPPORTED
from app.dialects.registry import DIALECTS as SERVED_DIALECTS
from app.dialects.tgi import fields as tgi_fields
from app.dialects.tgi.chat.fields import Chat as tgi_chat_Chat
from app.dialects.tgi.chat.fields import Completions as tgi_chat_Completions
from app.errors import ClientError
from tests.support.dialect_calls import engine_body, parse
from tests.support.samples import CONTEXT, MODEL, SERVED

_UNSUPPORTED = openai_fields_UNSUPPORTED
_GENERATE = {*tgi_fields.GenerateRequest.model_fields, *tgi_fields.Parameters.model_fields}
_DATABRICKS = {*databricks_fields.NOT_FOR_LANGUAGE_MODELS, "extra_params"}

KNOWN: Mapping[str, Mapping[str, Iterable[str]]] = {
    "openai": {
        "chat": {*openai_fields_CHAT, *openai_fields.Chat.model_fields, *_UNSUPPORTED},
        "completions": {*openai_fields_COMPLETIONS, *openai_fields.Completions.model_fields, *_UNSUPPORTED},
        "embeddings": {*openai_fields_EMBEDDINGS, *openai_fields.Embeddings.model_fields, *_UNSUPPORTED},
        "responses": {*openai_fields_RESPONSES, *openai_fields.Responses.model_fields, *_UNSUPPORTED},
        "tokenize": {*openai_fields_ENGINE_TOKENIZE, *_UNSUPPORTED},
    },
    "anthropic": anthropic_FIELDS,
    "azure": {
        "chat": azure_fields.Chat.model_fields,
        "completions": azure_fields.Completions.model_fields,
        "embeddings": azure_fields.Embeddings.model_fields,
    },
    "databricks": {
        "chat": {*databricks_fields.Chat.model_fields, *_DATABRICKS},
        "completions": {*databricks_fields.Completions.model_fields, *_DATABRICKS},
        "embeddings": {*databricks_fields.Embeddings.model_fields, *_DATABRICKS},
        "responses": {*response_fields.Responses.model_fields, *databricks_responses.REFUSED, *_DATABRICKS},
    },
    "tgi": {
        "generate": _GENERATE,
        "chat": tgi_chat_Chat.model_fields,
        "completions": tgi_chat_Completions.model_fields,
        "vertex": {"instances"},
        "tokenize": _GENERATE,
        "chat_tokenize": tgi_chat_Chat.model_fields,
    },
    "friendli": {
        "completions": friendli_fields.Completions.model_fields,
        "chat": friendli_chat_Chat.model_fields,
        "render": friendli_extras.Render.model_fields,
        "tokenize": friendli_extras.Tokenize.model_fields,
        "detokenize": friendli_extras.Detokenize.model_fields,
        "embeddings": friendli_extras_Embeddings.model_fields,
    },
}
"""What each parser knows, by dialect and operation."""

SAME_AS_OTHERS = {
    "openai": {"invocations", "stored_response"},
    "azure": {"images"},
    "databricks": {"invocations"},
    "tgi": {"root", "generate_stream", "invocations"},
}
"""Operations whose fields are another's, or are not read."""

HONOURED = {dialect.name.lower(): dialect.honoured for dialect in DIALECTS}
OPERATIONS = [(dialect, operation) for dialect, operations in KNOWN.items() for operation in operations]


def test_every_dialect_is_told() -> None:
    assert set(HONOURED) == {dialect.name for dialect in SERVED_DIALECTS}


@pytest.mark.parametrize("dialect", SERVED_DIALECTS, ids=lambda dialect: dialect.name)
def test_every_request_with_fields_is_told(dialect: Any) -> None:
    asked = {route.operation for route in dialect.routes if route.method == "POST"}
    assert set(HONOURED[dialect.name]) == asked - SAME_AS_OTHERS.get(dialect.name, set())


@pytest.mark.parametrize(("dialect", "operation"), OPERATIONS)
def test_every_field_and_no_other_is_told(dialect: str, operation: str) -> None:
    assert set(HONOURED[dialect][operation]) == set(KNOWN[dialect][operation])


def test_azures_documented_fields_are_its_models() -> None:
    assert {name: set(known) for name, known in KNOWN["azure"].items()} == azure_fields.KNOWN


MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

REQUIRED: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "openai": {
        "chat": {"messages": MESSAGES},
        "completions": {"prompt": "hi"},
        "embeddings": {"input": "hi"},
        "responses": {"input": "hi"},
        "tokenize": {"prompt": "hi"},
    },
    "anthropic": {
        "messages": {"model": "chat", "messages": MESSAGES, "max_tokens": 5},
        "count_tokens": {"model": "chat", "messages": MESSAGES},
    },
    "azure": {"chat": {"messages": MESSAGES}, "completions": {"prompt": "hi"}, "embeddings": {"input": "hi"}},
    "databricks": {
        "chat": {"messages": MESSAGES},
        "completions": {"prompt": "hi"},
        "embeddings": {"input": "hi"},
        "responses": {"input": "hi"},
    },
    "tgi": {
        "generate": {"inputs": "hello"},
        "chat": {"messages": MESSAGES},
        "completions": {"prompt": "hello"},
        "vertex": {"instances": [{"inputs": "hello"}]},
        "tokenize": {"inputs": "hello"},
        "chat_tokenize": {"messages": MESSAGES},
    },
    "friendli": {
        "completions": {"prompt": "hello"},
        "chat": {"messages": MESSAGES},
        "render": {"messages": MESSAGES},
        "tokenize": {"prompt": "hello"},
        "detokenize": {"tokens": [1]},
        "embeddings": {"input": "hi"},
    },
}

VALUES: Mapping[str, Any] = {
    "chat_template_kwargs": {"a": 1},
    "echo": True,
    "encoding_format": "base64",
    "include": ["message.output_text.logprobs"],
    "include_reasoning": True,
    "instructions": "be brief",
    "logit_bias": {"5": 1.0},
    "messages": MESSAGES,
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "prompt": "hi",
    "reasoning_effort": "low",
    "response_format": {"type": "json_object"},
    "stop": ["a"],
    "stop_sequences": ["a"],
    "store": True,
    "stream": True,
    "system": "be brief",
    "tool_choice": "auto",
    "tools": TOOLS,
    "truncation": "auto",
    "usage_context": {"a": "b"},
}
TEXTS = ("client_request_id", "input", "prompt_cache_key", "prompt_cache_retention", "service_tier")

COMPANIONS: Mapping[tuple[str, str], dict[str, Any]] = {
    ("chat", "tool_choice"): {"tools": TOOLS},
    ("chat", "top_logprobs"): {"logprobs": True},
}

TASKS = ["chat", "completions", "embeddings", "responses"]
EVERY_TASK = parse_config(
    {
        "endpoints": {"chat": {"tasks": TASKS, "traffic": {"blue": 100}}},
        "deployments": {"blue": {"url": "http://blue", "model": "m", "tasks": TASKS}},
    }
)


def value_of(field: str, operation: str) -> Any:
    if (field, operation) == ("logprobs", "chat"):
        return True
    return VALUES.get(field, "x" if field in TEXTS else 1)


def asked(dialect: str, operation: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine is asked, as far as it is known before the engine answers."""
    required = {} if operation == "tokenize" and "messages" in fields else REQUIRED[dialect][operation]
    of_tgis = {"parameters": dict(fields)} if dialect == "tgi" and operation == "generate" else fields
    request = Request(
        "POST",
        "/x",
        json.dumps({**required, **of_tgis}).encode(),
        query={"api-version": "2024-05-01-preview"},
    )
    (speaks,) = (one for one in SERVED_DIALECTS if one.name == dialect)
    call = parse(speaks, operation, request, ParseContext(EVERY_TASK, CONTEXT.random))
    return dict(engine_body(call, ServingContext("blue", SERVED.settings, MODEL)))


def lines(kind: str) -> list[tuple[str, str, str]]:
    return [
        (dialect, operation, field)
        for dialect, operations in HONOURED.items()
        for operation, told in operations.items()
        for field, line in told.items()
        if line == kind or (line.startswith(kind) and kind.endswith(": "))
    ]


@pytest.mark.parametrize(("dialect", "operation", "field"), lines(VLLMS))
def test_what_is_vllms_reaches_it_as_it_is(dialect: str, operation: str, field: str) -> None:
    value = value_of(field, operation)
    question = asked(dialect, operation, {**COMPANIONS.get((operation, field), {}), field: value})
    assert question[field] == value


@pytest.mark.parametrize(("dialect", "operation", "field"), lines(RECORDS))
def test_what_is_for_records_changes_no_question(dialect: str, operation: str, field: str) -> None:
    question = asked(dialect, operation, {field: value_of(field, operation)})
    question.pop("prompt_cache_key", None)  # vLLM's own, which it has no use for
    assert question == asked(dialect, operation, {})


@pytest.mark.parametrize(("dialect", "operation", "field"), lines("refused: "))
def test_what_is_refused_is_refused_by_name(dialect: str, operation: str, field: str) -> None:
    with pytest.raises(ClientError) as raised:
        asked(dialect, operation, {field: 1})
    assert raised.value.param == field


@pytest.mark.parametrize(("dialect", "operation"), OPERATIONS)
def test_a_field_that_nobody_knows_is_refused_or_ignored(dialect: str, operation: str) -> None:
    if dialect == "tgi":
        assert asked(dialect, operation, {"zzz": 1}) == asked(dialect, operation, {})
        return
    with pytest.raises(ClientError) as raised:
        asked(dialect, operation, {"zzz": 1})
    assert "zzz" in raised.value.message
