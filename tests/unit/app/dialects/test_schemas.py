"""The documented support of every dialect's fields matches its translation, as far as generic tests can tell."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field

from app.config.schema import parse as parse_config
from app.dialects.base import Dialect, ParseContext, Request, ServingContext
from app.dialects.common.fields import RECORDS
from app.dialects.registry import DIALECTS
from app.dialects.schemas import NOT_USED, REJECTED, VLLM, Body, dialect_support, field_support
from app.errors import ClientError
from tests.support.clients.dialect_calls import engine_body
from tests.support.clients.samples import CONTEXT, MODEL, SERVED

BY_NAME: Mapping[str, Dialect] = {dialect.name: dialect for dialect in DIALECTS}
SUPPORT = {name: dialect_support(dialect.bodies) for name, dialect in BY_NAME.items()}
OPERATIONS = [(name, operation) for name, operations in SUPPORT.items() for operation in operations]


class Inner(BaseModel):
    typical_p: float | None = None


class Outer(BaseModel):
    refused: ClassVar[Mapping[str, str]] = {"gone": "never"}

    model: str = Field(description="an endpoint")
    schema_: str = Field(alias="schema")
    parameters: Inner | None = Field(default=None, description="an object")


def test_a_fields_support_is_its_description_and_vllms_without_one() -> None:
    body = Body(Outer, passed=frozenset({"top_k", "model"}), nested={"parameters": Inner})
    assert field_support([body]) == {
        "model": "an endpoint",
        "schema": VLLM,
        "parameters": "an object",
        "typical_p": VLLM,
        "top_k": VLLM,
        "gone": "rejected: never",
    }


def test_fields_that_an_operation_only_checks_change_nothing() -> None:
    body = Body(Outer, used=frozenset({"model"}), nested={"parameters": Inner})
    support = field_support([body])
    assert support["model"] == "an endpoint"
    assert support["schema"] == support["typical_p"] == NOT_USED


def test_an_operation_with_the_bodies_of_earlier_ones_is_left_out() -> None:
    chat, text = Body(Outer), Body(Inner)
    assert list(dialect_support({"chat": [chat], "same": [chat], "text": [text], "both": [chat, text]})) == [
        "chat",
        "text",
    ]


MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

REQUIRED: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "openai": {
        "chat": {"messages": MESSAGES},
        "completions": {"prompt": "hi"},
        "embeddings": {"input": "hi"},
        "rerank": {"query": "hi", "documents": ["hi"]},
        "score": {"queries": "hi", "documents": ["hi"]},
        "pooling": {"input": "hi"},
        "classify": {"input": "hi"},
        "cohere_embed": {"texts": ["hi"]},
        "responses": {"input": "hi"},
        "tokenize": {"prompt": "hi"},
        "detokenize": {"tokens": [1]},
        "input_tokens": {"input": "hi"},
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
        "embed": {"inputs": "hello"},
        "embed_all": {"inputs": "hello"},
        "similarity": {"inputs": {"source_sentence": "hello", "sentences": ["hi"]}},
        "rerank": {"query": "hello", "texts": ["hi"]},
        "predict": {"inputs": "hello"},
        "chat_tokenize": {"messages": MESSAGES},
    },
    "friendli": {
        "completions": {"prompt": "hello"},
        "chat": {"messages": MESSAGES},
        "render": {"messages": MESSAGES},
        "tokenize": {"prompt": "hello"},
        "detokenize": {"tokens": [1]},
        "embeddings": {"input": "hi"},
        "classify": {"input": "hi"},
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
    "task": "embed",
    "tokens": [1],
    "tool_choice": "auto",
    "tools": TOOLS,
    "truncation": "auto",
    "usage_context": {"a": "b"},
}
TEXTS = ("client_request_id", "query", "input", "prompt_cache_key", "prompt_cache_retention", "service_tier")

COMPANIONS: Mapping[tuple[str, str], dict[str, Any]] = {
    ("chat", "tool_choice"): {"tools": TOOLS},
    ("chat", "top_logprobs"): {"logprobs": True},
}

TASKS = ["chat", "completions", "embeddings", "rerank", "classify", "responses"]
EVERY_TASK = parse_config(
    {
        "endpoints": {"chat": {"tasks": TASKS, "traffic": {"blue": 100}}},
        "deployments": {"blue": {"url": "http://blue", "model": "m", "tasks": TASKS}},
    }
)


def value_of(field: str, operation: str) -> Any:
    if (field, operation) == ("logprobs", "chat"):
        return True
    if field == "tools" and operation in ("messages", "count_tokens"):
        return [{"name": "f", "input_schema": {"type": "object"}}]
    return VALUES.get(field, "x" if field in TEXTS else 1)


def engine_request(dialect: str, operation: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the engine's request, as far as it is known before the engine answers."""
    required = {} if operation == "tokenize" and "messages" in fields else REQUIRED[dialect][operation]
    nested = {name for name in fields if dialect == "tgi" and operation == "generate" and name != "inputs"}
    outer = {name: value for name, value in fields.items() if name not in nested}
    inner = {"parameters": {name: fields[name] for name in nested}} if nested else {}
    request = Request(
        "POST",
        "/x",
        json.dumps({**required, **outer, **inner}).encode(),
        query={"api-version": "2024-05-01-preview"},
    )
    call = BY_NAME[dialect].parse(operation, request, ParseContext(EVERY_TASK, CONTEXT.random))
    return dict(engine_body(call, ServingContext("blue", SERVED.settings, MODEL)))


def fields_with(*sentences: str, prefix: str | None = None) -> list[tuple[str, str, str]]:
    """Dialect, operation and field wherever the support is one of `sentences` or begins with `prefix`."""
    return [
        (dialect, operation, field)
        for dialect, operation in OPERATIONS
        for field, sentence in sorted(SUPPORT[dialect][operation].items())
        if sentence in sentences or (prefix is not None and sentence.startswith(prefix))
    ]


@pytest.mark.parametrize(("dialect", "operation", "field"), fields_with(VLLM))
def test_a_field_of_vllms_reaches_the_engine_unchanged(dialect: str, operation: str, field: str) -> None:
    value = value_of(field, operation)
    body = engine_request(dialect, operation, {**COMPANIONS.get((operation, field), {}), field: value})
    assert body[field] == value


@pytest.mark.parametrize(("dialect", "operation", "field"), fields_with(RECORDS))
def test_a_field_for_records_does_not_change_the_engine_request(dialect: str, operation: str, field: str) -> None:
    body = engine_request(dialect, operation, {field: value_of(field, operation)})
    body.pop("prompt_cache_key", None)  # vLLM has the field, and no use for it
    assert body == engine_request(dialect, operation, {})


@pytest.mark.parametrize(("dialect", "operation", "field"), fields_with(prefix=REJECTED))
def test_a_rejected_field_is_rejected_by_name(dialect: str, operation: str, field: str) -> None:
    with pytest.raises(ClientError) as raised:
        engine_request(dialect, operation, {field: 1})
    assert raised.value.param == field


@pytest.mark.parametrize(("dialect", "operation"), OPERATIONS)
def test_an_unknown_field_is_rejected_by_name_or_ignored_by_tgi(dialect: str, operation: str) -> None:
    if dialect == "tgi":
        assert engine_request(dialect, operation, {"zzz": 1}) == engine_request(dialect, operation, {})
        return
    with pytest.raises(ClientError) as raised:
        engine_request(dialect, operation, {"zzz": 1})
    assert "zzz" in raised.value.message
