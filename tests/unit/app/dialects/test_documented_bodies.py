"""The OpenAPI document and the router accept the same bodies, for bounds and for rules over several fields."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.config.schema import parse as parse_config
from app.dialects.base import ParseContext, Request
from app.dialects.registry import DIALECTS
from app.errors import ClientError
from app.server.openapi import document, operations
from tests.support.clients.samples import CONTEXT

HI = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
NAMED = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
USAGE = {"include_usage": True}
WIDE = {"name": "f", "parameters": {"type": "object", "properties": {f"p{n}": {} for n in range(16)}}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://h/i.png"}}
GRAMMAR = {"type": "json", "value": {"properties": {}}}
REGEX = {"type": "regex", "schema": "a+"}

STREAMING = ({"stream": True, "stream_options": USAGE}, {"stream_options": None})
BEST_OF = {"prompt": "hi", "stream": True, "best_of": 1}
STREAMED_BEST_OF = {"prompt": "hi", "stream": True, "best_of": 2}
NOT_STREAMING = ({"stream_options": USAGE}, {"stream": False, "stream_options": USAGE})


def said(**message: Any) -> dict[str, Any]:
    return {"messages": [message]}


Fields = Sequence[Mapping[str, Any]]

BODIES: Mapping[tuple[str, str], tuple[Mapping[str, Any], Fields, Fields]] = {
    ("openai", "chat"): (
        {"messages": HI},
        (
            *STREAMING,
            {"logprobs": True, "top_logprobs": 3},
            {"tool_choice": "none"},
            {"tool_choice": "auto", "tools": TOOLS},
            {"tool_choice": NAMED, "tools": TOOLS},
            {"functions": [FUNCTION], "function_call": {"name": "f"}},
            {"functions": [], "function_call": "none"},
            said(role="user", content=[{"type": "text", "text": "hi"}, IMAGE]),
            said(role="assistant", function_call={"name": "f", "arguments": "{}"}),
            said(role="assistant", content=None, tool_calls=[CALL]),
            said(role="function", name="f", content=None),
        ),
        (
            *NOT_STREAMING,
            {"top_logprobs": 3},
            {"logprobs": False, "top_logprobs": 0},
            {"tool_choice": "auto"},
            {"tool_choice": NAMED},
            {"functions": [FUNCTION], "tools": TOOLS},
            {"function_call": "auto"},
            said(role="assistant", function_call={"name": "f", "arguments": "{}"}, tool_calls=[CALL]),
            {"messages": []},
            {"zzz": 1},
            said(role="user", content=[{"type": "text"}]),
            said(role="user", content=None),
            said(role="system"),
            said(role="tool", tool_call_id="1", content=None),
        ),
    ),
    ("openai", "completions"): (
        {},
        ({"prompt": "hi"}, {"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"prompt_embeds": "x"}, {"prompt": ""}, BEST_OF),
        (
            {},
            {"prompt": None},
            {"prompt": []},
            {"prompt": "hi", "stream_options": USAGE},
            {"prompt": "a", "suffix": "b"},
            STREAMED_BEST_OF,
        ),
    ),
    ("openai", "embeddings"): (
        {},
        ({"input": "hi"}, {"input": ["a"]}, {"input": [[1]]}, {"messages": HI}),
        ({}, {"input": ""}, {"input": []}, {"input": None}, {"messages": []}),
    ),
    ("openai", "pooling"): (
        {"input": "hi"},
        ({}, {"task": "token_embed"}),
        ({"input": []}, {"task": "classify"}, {"task": 5}, {"data": {}}),
    ),
    ("openai", "classify"): (
        {},
        ({"input": "hi"}, {"input": ["a"]}, {"messages": HI}),
        ({}, {"input": ""}, {"input": []}, {"messages": []}),
    ),
    ("openai", "cohere_embed"): (
        {"texts": ["a"]},
        ({}, {"max_tokens": 3}, {"max_tokens": 3, "truncate": "START"}, {"embedding_types": ["int8", "binary"]}),
        ({"texts": []}, {"max_tokens": 3, "truncate": "NONE"}, {"embedding_types": ["int4"]}, {"images": ["x"]}),
    ),
    ("openai", "detokenize"): ({}, ({"tokens": []}, {"tokens": [1]}), ({}, {"tokens": ["a"]}, {"tokens": [-1]})),
    ("openai", "tokenize"): ({}, ({"prompt": ""}, {"messages": HI}), ({}, {"prompt": "hi", "messages": HI})),
    ("openai", "rerank"): (
        {"query": "q"},
        ({"documents": ["a", {"text": "b"}]}, {"documents": {"content": [{"type": "text", "text": "c"}]}}),
        ({}, {"documents": []}, {"documents": [{}]}, {"documents": [{"text": "a", "content": [IMAGE]}]}),
    ),
    ("openai", "score"): (
        {},
        ({"queries": "q", "documents": ["a", "b"]}, {"queries": "q", "items": "a"}, {"text_1": "a", "text_2": "b"}),
        ({}, {"queries": "q"}, {"queries": "q", "text_2": "b"}, {"queries": "q", "documents": "a", "items": "b"}),
    ),
    ("openai", "responses"): ({"input": "hi"}, ({}, {"background": False}), ({"input": ""}, {"background": True})),
    ("anthropic", "messages"): (
        {"model": "chat", "messages": HI, "max_tokens": 5},
        ({}, {"thinking": {"type": "disabled"}}, {"thinking": None}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"thinking": {}}, {"messages": []}, {"zzz": 1}),
    ),
    ("azure", "chat"): (
        {"messages": HI},
        (
            *STREAMING,
            {"max_tokens": 1},
            {"tool_choice": "none", "tools": []},
            {"tool_choice": "auto", "tools": TOOLS},
            {"response_format": SCHEMA},
            {"response_format": {"type": "text"}},
            said(role="user", content=[{"type": "text", "content": "hi"}, {"type": "image", "content": "https://h"}]),
            said(role="tool", tool_call_id="1"),
            said(role="assistant", tool_calls=[CALL]),
        ),
        (
            *NOT_STREAMING,
            {"max_tokens": 0},
            {"n": 2},
            {"tool_choice": "auto"},
            {"tool_choice": NAMED, "tools": []},
            {"response_format": {"type": "json_schema"}},
            {"response_format": {**SCHEMA, "type": "text"}},
            said(role="user", content=[{"type": "text"}]),
            said(role="user", content=[{"type": "image"}]),
            said(role="user", content=None),
        ),
    ),
    ("azure", "completions"): ({"prompt": "hi"}, ({}, {"prompt": ["a"]}), ({"max_tokens": 0}, {"echo": True})),
    ("azure", "embeddings"): ({"input": "hi"}, ({}, {"input_type": "query"}), ({"input": ""}, {"user": "u"})),
    ("databricks", "chat"): (
        {"messages": HI},
        (
            *STREAMING,
            {"messages": [{"role": "system", "content": "s"}, *HI]},
            {"messages": [*HI, {"role": "assistant", "content": "c", "tool_calls": [CALL]}]},
            {"messages": [*HI, {"role": "tool", "content": "c", "tool_call_id": "1"}]},
            said(role="user", content=[{"type": "text", "text": "hi"}, IMAGE]),
            {"logprobs": True, "top_logprobs": 3},
            {"tool_choice": NAMED, "tools": TOOLS},
        ),
        (
            *NOT_STREAMING,
            {"messages": [*HI, {"role": "system", "content": "s"}]},
            said(role="assistant"),
            said(role="user"),
            said(role="user", content="c", tool_calls=[CALL]),
            said(role="user", content="c", tool_call_id="1"),
            said(role="tool", content="c"),
            said(role="tool", tool_call_id="1", tool_calls=[CALL]),
            said(role="user", content=[{"type": "text"}]),
            said(role="user", content=[{**IMAGE, "text": "hi"}]),
            {"top_logprobs": 3},
            {"tool_choice": "required"},
            {"tools": [{"type": "function", "function": WIDE}]},
        ),
    ),
    ("databricks", "completions"): (
        {"prompt": "hi"},
        ({"logprobs": 1}, {"echo": True}, {"logprobs": 1, "echo": False}, BEST_OF, {"extra_params": {"top_p": "0.5"}}),
        (
            {"logprobs": 1, "echo": True},
            {"stream_options": USAGE},
            {"prompt": []},
            {"extra_params": {"zzz": "1"}},
            STREAMED_BEST_OF,
        ),
    ),
    ("databricks", "responses"): (
        {"input": "hi"},
        (
            {"tool_choice": "auto"},
            {"tool_choice": "required", "tools": [{"type": "function", **FUNCTION}]},
            {"text": {"format": {"type": "json_schema", "name": "s", "schema": {}}}},
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "aGk="}]}]},
            {"input": [{"type": "function_call_output", "call_id": "c", "output": [1]}]},
        ),
        (
            {"tool_choice": "required"},
            {"tool_choice": {"type": "function", "name": "f"}},
            {"stream_options": USAGE},
            {"text": {"format": {"type": "json_schema", "name": "s"}}},
            {"text": {"format": {"type": "text", "name": "s", "schema": {}}}},
            {"input": [{"role": "user", "content": [{"type": "input_file", "filename": "a"}]}]},
            {"input": [{"type": "function_call_output", "call_id": "c", "output": None}]},
            {"store": False},
        ),
    ),
    ("tgi", "generate"): (
        {"inputs": "hi"},
        (
            {"parameters": {}},
            {"parameters": {"best_of": 2, "do_sample": True}},
            {"parameters": {"best_of": 2, "top_k": 5}},
            {"parameters": {"grammar": GRAMMAR}},
            {"parameters": {"grammar": {"type": "regex", "value": "a+"}}},
            {"parameters": {"seed": 2**64 - 1, "top_n_tokens": 5, "stop": ["a"] * 4, "top_p": 0.9, "zzz": 1}},
        ),
        (
            {"inputs": ""},
            {"inputs": "a" * (256 * 1024 + 1)},
            {"parameters": {"best_of": 0}},
            {"parameters": {"best_of": 2}},
            {"parameters": {"best_of": 2, "do_sample": False}},
            {"parameters": {"best_of": 2, "do_sample": True, "seed": 5}},
            {"parameters": {"best_of": 3, "do_sample": True}},
            {"parameters": {"frequency_penalty": 3}},
            {"parameters": {"grammar": {"type": "json", "value": {}}}},
            {"parameters": {"grammar": {"type": "regex", "value": ""}}},
            {"parameters": {"max_new_tokens": 0}},
            {"parameters": {"repetition_penalty": 0}},
            {"parameters": {"seed": 2**64}},
            {"parameters": {"stop": [""]}},
            {"parameters": {"stop": ["a"] * 5}},
            {"parameters": {"temperature": 0}},
            {"parameters": {"top_k": 0}},
            {"parameters": {"top_n_tokens": 6}},
            {"parameters": {"top_p": 1.0}},
            {"parameters": {"typical_p": 0}},
        ),
    ),
    ("tgi", "completions"): ({"prompt": "hi"}, ({}, {"prompt": ["a"] * 4}), ({"prompt": ["a"] * 5}, {"suffix": "s"})),
    ("friendli", "chat"): (
        {"messages": HI},
        (
            *STREAMING,
            {"logprobs": True, "top_logprobs": 3},
            {"max_tokens": 3, "max_completion_tokens": None},
            {"response_format": {"type": "text"}, "tools": TOOLS, "min_tokens": 0},
            {"tool_choice": "auto"},
            {"response_format": REGEX},
            said(role="assistant", content=None, tool_calls=[CALL]),
        ),
        (
            *NOT_STREAMING,
            said(role="user", content=None),
            {"top_logprobs": 3},
            {"max_tokens": 3, "max_completion_tokens": 3},
            {"min_tokens": 2, "response_format": REGEX},
            {"min_tokens": 2, "tools": TOOLS},
            {"parse_reasoning": False},
            {"response_format": REGEX, "tools": TOOLS},
            {"response_format": {"type": "regex"}},
            {"response_format": {"type": "text", "schema": "a"}},
            {"timeout": 5, "timeout_microseconds": 5},
            {"tool_choice": "required"},
        ),
    ),
    ("friendli", "completions"): (
        {},
        (
            {"prompt": "hi"},
            {"tokens": [1], "prompt": None},
            {"prompt": "hi", "tokens": []},
            {"prompt": "hi", "num_beams": 2, "early_stopping": True, "stream": False, "n": 1, "stop": []},
            {
                "prompt": "hi",
                "num_beams": 2,
                "beam_search_type": "STOCHASTIC",
                "top_k": 3,
                "top_p": 0.5,
                "temperature": 2,
            },
            {"prompt": "hi", "embedding_to_replace": [0.5], "token_index_to_replace": [0]},
            {"prompt": "hi", "beam_compat_pre_normalization": True, "beam_compat_no_post_normalization": True},
            {"prompt": "hi", "encoder_no_repeat_ngram": 1},
        ),
        (
            {},
            {"prompt": ""},
            {"prompt": "hi", "tokens": [1]},
            {"prompt": "hi", "max_tokens": 1, "max_total_tokens": 1},
            {"prompt": "hi", "min_tokens": 1, "min_total_tokens": 1},
            {"prompt": "hi", "min_total_tokens": 1, "response_format": REGEX},
            {"prompt": "hi", "forced_output_tokens": [1], "response_format": REGEX},
            {"prompt": "hi", "encoder_repetition_penalty": 2},
            {"prompt": "hi", "embedding_to_replace": [0.5]},
            {"prompt": "hi", "token_index_to_replace": [0]},
            {"prompt": "hi", "embedding_to_replace": [0.5], "token_index_to_replace": [0, 0]},
            {"prompt": "hi", "logprobs": 1, "include_output_logprobs": True},
            {"prompt": "hi", "logprobs": 0, "include_output_logits": True},
            {"prompt": "hi", "early_stopping": True},
            {"prompt": "hi", "beam_compat_no_post_normalization": True},
            {"prompt": "hi", "num_beams": 2, "stream": True},
            {"prompt": "hi", "num_beams": 2, "n": 2},
            {"prompt": "hi", "num_beams": 2, "stop": ["a"]},
            {"prompt": "hi", "num_beams": 2, "min_p": 0.5},
            {"prompt": "hi", "num_beams": 2, "response_format": REGEX},
            {"prompt": "hi", "num_beams": 2, "top_k": 3},
            {"prompt": "hi", "num_beams": 2, "beam_search_type": "STOCHASTIC", "top_p": 0},
            {"prompt": "hi", "num_beams": 2, "beam_search_type": "STOCHASTIC", "temperature": 3},
            {"prompt": "hi", "soft_prompts": "x"},
        ),
    ),
    ("friendli", "embeddings"): ({}, ({"input": "hi"}, {"tokens": [1]}), ({}, {"input": "hi", "tokens": [1]})),
}

TASKS = ["chat", "completions", "embeddings", "rerank", "responses"]
CONFIG = parse_config(
    {
        "endpoints": {"chat": {"tasks": TASKS, "traffic": {"blue": 100}}},
        "deployments": {"blue": {"url": "http://blue", "model": "m", "tasks": TASKS}},
    }
)


def cases() -> Iterator[Any]:
    for (dialect, operation), (least, valid, invalid) in BODIES.items():
        for fields, is_valid in [*((body, True) for body in valid), *((body, False) for body in invalid)]:
            name = f"{dialect}-{operation}-{json.dumps(fields)[:60]}-{'valid' if is_valid else 'invalid'}"
            yield pytest.param(dialect, operation, {**least, **fields}, is_valid, id=name)


@cache
def validator(dialect: str, operation: str) -> Draft202012Validator:
    described = document(operations(DIALECTS))
    model = next(candidate for candidate in DIALECTS if candidate.name == dialect).bodies[operation][0].model
    reference = f"#/components/schemas/{dialect}.{model.__name__}"
    return Draft202012Validator({"$ref": reference, "components": described["components"]})


def accepted(dialect: str, operation: str, body: Mapping[str, Any]) -> bool:
    request = Request("POST", "/x", json.dumps(body).encode(), query={"api-version": "2024-05-01-preview"})
    try:
        next(candidate for candidate in DIALECTS if candidate.name == dialect).parse(
            operation, request, ParseContext(CONFIG, CONTEXT.random)
        )
    except ClientError:
        return False
    return True


@pytest.mark.parametrize(("dialect", "operation", "body", "valid"), list(cases()))
def test_the_schema_and_the_router_agree(dialect: str, operation: str, body: dict[str, Any], valid: bool) -> None:
    assert validator(dialect, operation).is_valid(body) == valid
    assert accepted(dialect, operation, body) == valid
