"""Friendli's request fields: valid values, values out of bounds, and every contradictory combination."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.base import Request, ServingContext
from app.dialects.friendli.chat import Detokenize, Render, Tokenize
from app.dialects.friendli.dialect import Friendli
from app.dialects.friendli.embeddings import Embeddings
from app.dialects.friendli.fields import Completions, ExactFields
from app.dialects.friendli.rules import Chat
from app.errors import BadRequest, ClientError, Unprocessable
from tests.support import cpu_time
from tests.support.clients.dialect_calls import engine_body
from tests.support.clients.friendli_calls import (
    DEPLOYED,
    EXTENDED,
    MESSAGES,
    PLAIN,
    REQUIRED,
    SDK,
    parse,
    parse_bytes,
    result,
)
from tests.support.clients.samples import MODEL, SERVED

MODELS: dict[str, type[ExactFields]] = {
    "completions": Completions,
    "chat": Chat,
    "render": Render,
    "tokenize": Tokenize,
    "detokenize": Detokenize,
    "embeddings": Embeddings,
}


Sample = tuple[dict[str, Any], dict[str, Any]]
"""Fields of the client's request, and the fields of the engine's that follow from them."""

HELLO = MODEL.encode("hello", special=False)
WORLD = MODEL.encode(" world", special=False)
PROMPT = MODEL.encode("say hello")
REST = 100 - len(PROMPT)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
WHOLE = {**SCHEMA, "required": ["a", "b"], "additionalProperties": False}
BEAM: dict[str, Any] = {"num_beams": 3, "seed": 7}
SEARCH = {"width": 3, "type": "DETERMINISTIC", "seed": 7}
EMBEDDING = {"token_index_to_replace": [1, 0], "embedding_to_replace": [0.5] * 8}

COMMON: dict[str, list[Sample]] = {
    "eos_token": [({"eos_token": [3, 5]}, {"ignore_eos": True, "stop_token_ids": [3, 5]}), ({"eos_token": []}, {})],
    "frequency_penalty": [({"frequency_penalty": v}, {"frequency_penalty": v}) for v in (-2, 0, 2)],
    "min_p": [({"min_p": v}, {"min_p": v}) for v in (0, 0.5, 1)],
    "min_tokens": [({"min_tokens": 2}, {"min_tokens": 2})],
    "model": [({"model": "chat"}, {})],
    "n": [({"n": 2, "seed": 7}, {"n": 2, "seed": 7})],
    "presence_penalty": [({"presence_penalty": v}, {"presence_penalty": v}) for v in (-2, 0, 2)],
    "repetition_penalty": [({"repetition_penalty": v}, {"repetition_penalty": v}) for v in (1, 1.5)],
    "response_format": [
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}),
        (
            {"response_format": {"type": "json_object", "schema": json.dumps(SCHEMA)}},
            {"structured_outputs": {"json": WHOLE}},
        ),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"structured_outputs": {"json": WHOLE}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "name": "n"}}},
            {"structured_outputs": {"json": SCHEMA}},
        ),
        (
            {"response_format": {"type": "regex", "schema": "[^a-z$]\\^+"}},
            {"structured_outputs": {"regex": "[^a-z$]\\^+"}},
        ),
    ],
    "seed": [
        ({"seed": 0}, {"seed": 0}),
        ({"seed": 2**63}, {"seed": -(2**63)}),
        ({"seed": [5]}, {"seed": 5}),
        ({"seed": [5, 6, 7], "n": 3}, {"seed": 5, "n": 3}),
    ],
    "stop": [({"stop": ["a", "b"]}, {"stop": ["a", "b"]})],
    "stream": [({"stream": True}, {"stream": True})],
    "stream_options": [({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True})],
    "temperature": [
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"temperature": 0}, {"temperature": 0.0, "top_p": 1.0}),
        ({"temperature": 3}, {"temperature": 2.0, "vllm_xargs": {"temperature": 3}}),
        ({"temperature": 0, "n": 2, "seed": 7}, {"n": 2, "temperature": 1.0, "top_k": 1, "top_p": 1.0}),
    ],
    "timeout": [({"timeout": 1_500_000}, {})],
    "timeout_microseconds": [({"timeout_microseconds": 1_500_000}, {})],
    "top_k": [({"top_k": v}, {"top_k": v}) for v in (0, 1, MODEL.vocab_size)],
    "top_p": [({"top_p": v}, {"top_p": v}) for v in (0.01, 1)],
    "user": [({"user": "u"}, {})],
    "xtc_probability": [({"xtc_probability": 0.5}, {})],
    "xtc_threshold": [
        (
            {"xtc_threshold": 0.1, "xtc_probability": 0.5},
            {"vllm_xargs": {"xtc_threshold": 0.1, "xtc_probability": 0.5}},
        ),
        ({"xtc_threshold": 0.1, "xtc_probability": 0.5, "temperature": 0}, {"temperature": 0.0, "top_p": 1.0}),
    ],
}

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

SUPPORT: dict[str, dict[str, list[Sample]]] = {
    "completions": {
        **COMMON,
        "bad_word_tokens": [
            (
                {"bad_word_tokens": [{"tokens": [7, 8]}, {"tokens": [9]}, {"tokens": None}]},
                {"vllm_xargs": {"bad_word_tokens": [7, 8, -1, 9]}},
            ),
            (
                {**BEAM, "bad_word_tokens": [{"tokens": [7, 8]}]},
                {"beam": {**SEARCH, "bad_word_tokens": [[7, 8]]}},
            ),
        ],
        "bad_words": [
            ({"bad_words": ["hello", " world"]}, {"vllm_xargs": {"bad_word_tokens": [*HELLO, -1, *WORLD]}}),
            (
                {"bad_words": ["hello"], "bad_word_tokens": [{"tokens": [9]}], "no_repeat_ngram": 2},
                {"vllm_xargs": {"no_repeat_ngram": 2, "bad_word_tokens": [*HELLO, -1, 9]}},
            ),
        ],
        "beam_compat_no_post_normalization": [
            (
                {**BEAM, "beam_compat_pre_normalization": True, "beam_compat_no_post_normalization": True},
                {"beam": SEARCH},
            )
        ],
        "beam_compat_pre_normalization": [({**BEAM, "beam_compat_pre_normalization": True}, {"beam": SEARCH})],
        "beam_search_type": [
            (
                {**BEAM, "beam_search_type": kind, "top_k": 5, "top_p": 0.9, "temperature": 0.7},
                {"beam": {**SEARCH, "type": kind}, "top_k": 5, "top_p": 0.9, "temperature": 0.7},
            )
            for kind in ("NAIVE_SAMPLING", "STOCHASTIC")
        ]
        + [({"beam_search_type": "STOCHASTIC"}, {})],
        "early_stopping": [({**BEAM, "early_stopping": True}, {"beam": {**SEARCH, "early_stopping": True}})],
        "embedding_to_replace": [
            (EMBEDDING, {"replace_embeddings": {"indices": [1, 0], "values": [0.5] * 8}}),
        ],
        "encoder_no_repeat_ngram": [({"encoder_no_repeat_ngram": 1}, {})],
        "encoder_repetition_penalty": [({"encoder_repetition_penalty": 1.0}, {})],
        "eos_token": [*COMMON["eos_token"], ({**BEAM, "eos_token": [5]}, {"beam": {**SEARCH, "eos_token_ids": [5]}})],
        "forced_output_tokens": [
            (
                {"forced_output_tokens": [7, 8, 9]},
                {"ignore_eos": True, "max_tokens": 3, "vllm_xargs": {"forced_output_tokens": [7, 8, 9]}},
            ),
            (
                {"forced_output_tokens": [7, 8, 9], "max_tokens": 2},
                {"ignore_eos": True, "max_tokens": 2, "vllm_xargs": {"forced_output_tokens": [7, 8, 9]}},
            ),
        ],
        "generation_offset": [({"generation_offset": None}, {})],
        "include_output_logits": [({"include_output_logits": False}, {})],
        "include_output_logprobs": [
            ({"include_output_logprobs": True}, {"logprobs": 0, "return_tokens_as_token_ids": True})
        ],
        "length_penalty": [({**BEAM, "length_penalty": 0.5}, {"beam": {**SEARCH, "length_penalty": 0.5}})],
        "logprobs": [({"logprobs": 3}, {"logprobs": 3, "return_tokens_as_token_ids": True})],
        "max_tokens": [({"max_tokens": v}, {"max_tokens": v}) for v in (1, REST)],
        "max_total_tokens": [
            ({"max_total_tokens": v}, {"max_tokens": v - len(PROMPT)}) for v in (len(PROMPT) + 1, 100)
        ],
        "min_total_tokens": [
            ({"min_total_tokens": len(PROMPT) + 3}, {"min_tokens": 3}),
            ({"min_total_tokens": len(PROMPT)}, {}),
        ],
        "no_repeat_ngram": [
            ({"no_repeat_ngram": 3}, {"vllm_xargs": {"no_repeat_ngram": 3}}),
            ({"no_repeat_ngram": 1}, {}),
            ({**BEAM, "no_repeat_ngram": 3}, {"beam": {**SEARCH, "no_repeat_ngram": 3}}),
        ],
        "num_beams": [({**BEAM, "num_beams": v}, {"beam": {**SEARCH, "width": v}}) for v in (1, 31)],
        "position_ids": [({"position_ids": None}, {})],
        "prompt": [
            ({"prompt": "hello"}, {"prompt": MODEL.encode("hello"), "max_tokens": 100 - len(MODEL.encode("hello"))})
        ],
        "seed": [
            *COMMON["seed"],
            ({"seed": [5, 7], "n": 2}, {"seeds": [5, 7]}),
            ({"seed": [2**64 - 2, 2**64 - 1], "n": 2}, {"seeds": [2**64 - 2, 2**64 - 1]}),
            ({"seed": 2**64 - 1, "n": 2}, {"seeds": [2**64 - 1, 0]}),
            ({"seed": [5, 7], "n": 2, "temperature": 0}, {"seeds": [5, 7], "temperature": 0.0, "top_p": 1.0}),
        ],
        "soft_prompts": [({"soft_prompts": None}, {})],
        "stop_tokens": [
            ({"stop_tokens": [{"tokens": [9, 7]}, {"tokens": [7]}]}, {"stop_token_ids": [7, 9]}),
            ({**BEAM, "stop_tokens": [{"tokens": [9, 7]}]}, {"beam": {**SEARCH, "stop_tokens": [[7], [9]]}}),
            (
                {"stop_tokens": [{"tokens": [9]}], "eos_token": [5]},
                {"ignore_eos": True, "stop_token_ids": [5, 9]},
            ),
        ],
        "token_index_to_replace": [
            (EMBEDDING, {"replace_embeddings": {"indices": [1, 0], "values": [0.5] * 8}}),
            (
                {**EMBEDDING, **BEAM},
                {"replace_embeddings": {"indices": [1, 0], "values": [0.5] * 8}, "beam": SEARCH},
            ),
        ],
        "tokens": [({"tokens": [5, 6]}, {"prompt": [5, 6], "max_tokens": 98})],
    },
    "chat": {
        **COMMON,
        "chat_template_kwargs": [({"chat_template_kwargs": {"a": None}}, {"chat_template_kwargs": {"a": None}})],
        "include_reasoning": [({"include_reasoning": False}, {"include_reasoning": False})],
        "logit_bias": [({"logit_bias": {"5": 1}}, {"logit_bias": {"5": 1}})],
        "logprobs": [({"logprobs": True}, {"logprobs": True})],
        "max_completion_tokens": [({"max_completion_tokens": 5}, {"max_completion_tokens": 5})],
        "max_tokens": [({"max_tokens": 5}, {"max_tokens": 5})],
        "messages": [({"messages": MESSAGES}, {"messages": MESSAGES})],
        "parallel_tool_calls": [({"parallel_tool_calls": True}, {"parallel_tool_calls": True})],
        "parse_reasoning": [({"parse_reasoning": True}, {})],
        "reasoning_budget": [({"reasoning_budget": 5}, {"thinking_token_budget": 5})],
        "reasoning_effort": [({"reasoning_effort": "low"}, {"reasoning_effort": "low"})],
        "stop": [*COMMON["stop"], ({"stop": "a"}, {"stop": "a"})],
        "stream": [({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}})],
        "stream_options": [
            (
                {"stream": True, "stream_options": {"include_usage": False}},
                {"stream": True, "stream_options": {"include_usage": True}},
            )
        ],
        "tool_choice": [
            ({"tool_choice": "auto", "tools": None}, {}),
            ({"tool_choice": "none", "tools": []}, {}),
            ({"tool_choice": "required", "tools": [TOOL]}, {"tool_choice": "required", "tools": [TOOL]}),
        ],
        "tools": [({"tools": [TOOL]}, {"tools": [TOOL]})],
        "top_logprobs": [({"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 20})],
    },
    "render": {
        "chat_template_kwargs": [({"chat_template_kwargs": {"a": 1}}, {"chat_template_kwargs": {"a": 1}})],
        "messages": [({"messages": MESSAGES}, {"messages": MESSAGES})],
        "model": [({"model": "chat"}, {})],
        "tools": [({"tools": [TOOL]}, {"tools": [TOOL]}), ({"tools": []}, {})],
    },
    "tokenize": {
        "model": [({"model": "chat"}, {})],
        "prompt": [({"prompt": "hello"}, {"tokens": MODEL.encode("hello")})],
    },
    "detokenize": {
        "model": [({"model": "chat"}, {})],
        "tokens": [({"tokens": [*HELLO, 0]}, {"text": "hello<|end|>"}), ({"tokens": []}, {"text": ""})],
    },
    "embeddings": {
        "encoding_format": [({"encoding_format": "base64"}, {"encoding_format": "base64"})],
        "input": [({"input": ["a", "b"]}, {"input": ["a", "b"]})],
        "model": [({"model": "chat"}, {})],
        "tokens": [({"tokens": [5, 6]}, {"input": [[5, 6]]})],
    },
}

CASES = [
    pytest.param(operation, fields, engine_fields, id=f"{operation}-{name}-{index}")
    for operation, samples in SUPPORT.items()
    for name, cases in samples.items()
    for index, (fields, engine_fields) in enumerate(cases)
]


@pytest.mark.parametrize("operation", MODELS)
def test_every_field_has_samples(operation: str) -> None:
    assert set(SUPPORT[operation]) == set(MODELS[operation].model_fields)


@pytest.mark.parametrize(("operation", "fields", "engine_fields"), CASES)
def test_a_field_changes_just_this_of_the_engines_request(
    operation: str, fields: dict[str, Any], engine_fields: dict[str, Any]
) -> None:
    seeded: dict[str, Any] = {"seed": 7} if "seed" in MODELS[operation].model_fields else {}
    least = result(operation, **seeded)
    replaced = {"seeds": {"seed"}, "beam": {"seed", "temperature"}}
    gone = {name for key, names in replaced.items() if key in engine_fields for name in names}
    expected = {**{name: value for name, value in least.items() if name not in gone}, **engine_fields}
    assert result(operation, **{"seed": 7, **fields} if "seed" in least else fields) == expected


INVALID: dict[str, list[tuple[dict[str, Any], str]]] = {
    "both": [
        *[({name: value}, name) for name in ("frequency_penalty", "presence_penalty") for value in (-2.1, 2.1)],
        *[
            ({name: value}, name)
            for name in ("min_p", "top_p", "xtc_probability", "xtc_threshold")
            for value in (-0.1, 1.1)
        ],
        *[({name: 0}, name) for name in ("max_tokens", "n", "repetition_penalty", "timeout", "timeout_microseconds")],
        *[({name: -1}, name) for name in ("min_tokens", "seed", "temperature", "top_k")],
        ({"eos_token": [-1]}, "eos_token[0]"),
        ({"n": 129}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"seed": [1, -1], "n": 2}, "seed[1]"),
        ({"seed": [1, 2]}, "seed"),
        ({"seed": [1], "n": 2}, "seed"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"more": True}}, "stream_options.more"),
        ({"timeout": 1, "timeout_microseconds": 1}, "timeout"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "text", "schema": "{}"}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "value": {}}}, "response_format.value"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "schema": "{"}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "schema": "[]"}}, "response_format.schema"),
        ({"response_format": {"type": "regex"}}, "response_format.schema"),
        ({"response_format": {"type": "regex", "schema": ""}}, "response_format.schema"),
        *[
            ({"response_format": {"type": "regex", "schema": pattern}}, "response_format.schema")
            for pattern in (
                "^a",
                "a$",
                r"\Aa",
                r"a\Z",
                r"a\z",
                "(?=a)",
                "(?!a)",
                "(?<=a)",
                "(?<!a)",
                r"\N",
                r"\pL",
                r"[\P]",
            )
        ],
        ({"min_tokens": 1, "response_format": {"type": "json_object"}}, "min_tokens"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
    "completions": [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "tokens": [1]}, "prompt"),
        ({"prompt": None, "tokens": []}, "prompt"),
        ({"tokens": [-1]}, "tokens[0]"),
        ({"max_tokens": 1, "max_total_tokens": 50}, "max_total_tokens"),
        ({"min_tokens": 0, "min_total_tokens": 0}, "min_total_tokens"),
        ({"min_total_tokens": 50, "response_format": {"type": "json_object"}}, "min_total_tokens"),
        ({"repetition_penalty": 0.9}, "repetition_penalty"),
        ({"top_p": 0}, "top_p"),
        ({"no_repeat_ngram": 0}, "no_repeat_ngram"),
        ({"encoder_no_repeat_ngram": 2}, "encoder_no_repeat_ngram"),
        ({"encoder_repetition_penalty": 1.2}, "encoder_repetition_penalty"),
        ({"soft_prompts": []}, "soft_prompts"),
        ({"position_ids": [1]}, "position_ids"),
        ({"generation_offset": 0}, "generation_offset"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": ["a"] * 4097}, "bad_words"),
        ({"bad_word_tokens": [{"tokens": [9]}] * 4097}, "bad_word_tokens"),
        ({"bad_word_tokens": [{"ids": [1]}]}, "bad_word_tokens[0].ids"),
        ({"stop_tokens": [{"tokens": [-1]}]}, "stop_tokens[0].tokens[0]"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 1, "include_output_logprobs": True}, "include_output_logprobs"),
        ({"include_output_logits": True, "logprobs": 1}, "include_output_logits"),
        ({"include_output_logits": True, "include_output_logprobs": True}, "include_output_logits"),
        ({"forced_output_tokens": [1], "response_format": {"type": "json_object"}}, "forced_output_tokens"),
        ({"token_index_to_replace": [0]}, "embedding_to_replace"),
        ({"embedding_to_replace": [0.5] * 4}, "token_index_to_replace"),
        ({"token_index_to_replace": [0, 0], "embedding_to_replace": [0.5] * 8}, "token_index_to_replace"),
        *[({"num_beams": value}, "num_beams") for value in (0, 32)],
        *[({name: value}, name) for name, value in (("early_stopping", False), ("length_penalty", 1.0))],
        ({**BEAM, "length_penalty": 11}, "length_penalty"),
        ({**BEAM, "beam_compat_no_post_normalization": True}, "beam_compat_no_post_normalization"),
        ({**BEAM, "beam_search_type": "GREEDY"}, "beam_search_type"),
        ({**BEAM, "stream": True}, "stream"),
        ({**BEAM, "n": 2}, "n"),
        ({**BEAM, "stop": ["a"]}, "stop"),
        ({**BEAM, "min_p": 0.1}, "min_p"),
        ({**BEAM, "xtc_threshold": 0.1}, "xtc_threshold"),
        ({**BEAM, "xtc_probability": 0.1}, "xtc_probability"),
        ({**BEAM, "forced_output_tokens": [1]}, "forced_output_tokens"),
        ({**BEAM, "response_format": {"type": "json_object"}}, "response_format"),
        ({**BEAM, "top_k": 0}, "top_k"),
        ({**BEAM, "top_p": 1.0}, "top_p"),
        ({**BEAM, "beam_search_type": "STOCHASTIC", "temperature": 0}, "temperature"),
        ({**BEAM, "beam_search_type": "STOCHASTIC", "temperature": 2.1}, "temperature"),
    ],
    "chat": [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"tools": [{"type": "math:calculator"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [TOOL], "min_tokens": 1}, "min_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "perhaps", "tools": [TOOL]}, "tool_choice"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_completion_tokens"),
        ({"parse_reasoning": False}, "parse_reasoning"),
        ({"reasoning_budget": 0}, "reasoning_budget"),
        ({"seed": [1, 3], "n": 2, "stream": True}, "seed"),
    ],
    "render": [({"messages": []}, "messages"), ({"temperature": 1}, "temperature")],
    "tokenize": [({"prompt": None}, "prompt"), ({"tokens": [1]}, "tokens")],
    "detokenize": [({"tokens": [-1]}, "tokens[0]"), ({"tokens": None}, "tokens")],
    "embeddings": [
        ({"input": None}, "input"),
        ({"input": "a", "tokens": [1]}, "input"),
        ({"input": ""}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
    ],
}


def cases(*groups: str) -> list[Any]:
    return [
        pytest.param(operation, fields, param, id=f"{operation}-{json.dumps(fields)[:60]}")
        for group in groups
        for operation in (("completions", "chat") if group == "both" else (group,))
        for fields, param in INVALID[group]
    ]


@pytest.mark.parametrize(("operation", "fields", "param"), cases(*INVALID))
def test_a_value_out_of_bounds_and_a_contradiction_are_a_400_that_names_the_field(
    operation: str, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(operation, **{**REQUIRED[operation], **fields})
    assert raised.value.param == param
    assert raised.value.message.startswith(f"{param}:")


OBJECTS = "chat_template_kwargs logit_bias response_format stream_options tool_choice".split()
WRONG: dict[str, Any] = {**dict.fromkeys(OBJECTS, 1), "bad_word_tokens": [[1]]}


@pytest.mark.parametrize("operation", MODELS)
def test_a_wrong_json_type_is_a_422_that_names_the_field(operation: str) -> None:
    for name in MODELS[operation].model_fields:
        if name in ("soft_prompts", "position_ids", "generation_offset"):
            continue
        with pytest.raises(Unprocessable) as raised:
            parse(operation, **{**REQUIRED[operation], name: WRONG.get(name, {"a": [{}]})})
        assert raised.value.param is not None
        assert raised.value.param.startswith(name)


BEYOND: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "x " * 200}, "prompt"),
    ({"tokens": [5] * 100}, "tokens"),
    ({"tokens": [MODEL.vocab_size]}, "tokens"),
    ({"max_tokens": REST + 1}, "max_tokens"),
    ({"max_total_tokens": 101}, "max_total_tokens"),
    ({"max_total_tokens": len(PROMPT)}, "max_total_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"min_total_tokens": len(PROMPT) + 5, "max_tokens": 4}, "min_total_tokens"),
    ({"forced_output_tokens": [5] * 100}, "forced_output_tokens"),
    ({"forced_output_tokens": [MODEL.vocab_size]}, "forced_output_tokens"),
    ({"forced_output_tokens": [5], "min_tokens": 2}, "min_tokens"),
    ({"stop_tokens": [{"tokens": [MODEL.vocab_size]}]}, "stop_tokens"),
    ({"eos_token": [MODEL.vocab_size]}, "eos_token"),
    ({"bad_word_tokens": [{"tokens": [MODEL.vocab_size]}]}, "bad_word_tokens"),
    ({"top_k": MODEL.vocab_size + 1}, "top_k"),
    ({"token_index_to_replace": [len(PROMPT)], "embedding_to_replace": [0.5] * 4}, "token_index_to_replace"),
    ({"token_index_to_replace": [0], "embedding_to_replace": [0.5] * 5}, "embedding_to_replace"),
    ({"include_output_logits": True}, "include_output_logits"),
]


@pytest.mark.parametrize(("fields", "param"), BEYOND, ids=lambda value: str(value)[:60])
def test_a_value_beyond_the_deployments_model_is_a_400_that_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        result(**fields)
    assert raised.value.param == param
    assert raised.value.message.startswith(f"{param}:")


def test_an_unknown_id_cannot_be_detokenized() -> None:
    with pytest.raises(BadRequest, match="tokens: "):
        result("detokenize", tokens=[MODEL.vocab_size])


@pytest.mark.parametrize(
    ("operation", "fields", "param"),
    [
        ("completions", {"no_repeat_ngram": 2}, "no_repeat_ngram"),
        ("completions", {"bad_words": ["a"]}, "bad_words"),
        ("completions", {"bad_word_tokens": [{"tokens": [5]}]}, "bad_word_tokens"),
        ("completions", {"forced_output_tokens": [5]}, "forced_output_tokens"),
        ("completions", {"temperature": 2.1}, "temperature"),
        ("completions", {"xtc_threshold": 0.1, "xtc_probability": 0.5}, "xtc_threshold"),
        ("completions", BEAM, "num_beams"),
        ("completions", {"seed": [1, 3], "n": 2}, "seed"),
        ("completions", {"token_index_to_replace": [0], "embedding_to_replace": [0.5] * 4}, "token_index_to_replace"),
        ("chat", {"temperature": 2.1}, "temperature"),
        ("chat", {"xtc_threshold": 0.1, "xtc_probability": 0.5}, "xtc_threshold"),
    ],
)
def test_a_plain_server_is_not_sent_what_it_would_ignore(operation: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest, match=f"{param}: deployment 'blue' is a plain vLLM server") as raised:
        result(operation, serving=PLAIN, **fields)
    assert raised.value.param == param
    result(operation, serving=DEPLOYED, **fields)


def test_an_application_is_not_sent_fields_of_a_logits_processor_that_it_lacks() -> None:
    without = ServingContext("blue", SERVED.settings, replace(EXTENDED, processors=frozenset({"temperature"})))
    assert result(serving=without, temperature=2.5)["vllm_xargs"] == {"temperature": 2.5}
    assert "beam" in result(serving=without, num_beams=2)
    with pytest.raises(BadRequest, match="no_repeat_ngram: deployment 'blue' runs without the logits processor"):
        result(serving=without, no_repeat_ngram=2)
    with pytest.raises(BadRequest, match="bad_words: deployment 'blue' runs without the logits processor"):
        result(serving=without, bad_words=["x"])


@pytest.mark.parametrize("words", [["a" * 16_000] * 9, ["a" * 16_385]])
def test_forbidden_words_that_take_long_to_tokenize_are_rejected(words: list[str]) -> None:
    with pytest.raises(BadRequest, match="characters") as raised:
        result(bad_words=words)
    assert raised.value.param == "bad_words"


def test_a_plain_server_serves_everything_else() -> None:
    fields: dict[str, Any] = {"n": 2, "seed": [5, 6], "stop": ["a"], "stop_tokens": [{"tokens": [5]}], "logprobs": 1}
    assert result(serving=PLAIN, **fields)["n"] == 2


@pytest.mark.parametrize("fields", [{"repetition_penalty": 0.5}, {"top_p": 0}])
def test_the_current_sdk_may_set_lower_values(fields: dict[str, Any]) -> None:
    assert result(headers=SDK, **fields)
    with pytest.raises(BadRequest):
        result(**fields)


def test_top_p_0_is_greedy() -> None:
    assert {"temperature": 0.0, "top_p": 1.0}.items() <= result(headers=SDK, top_p=0).items()


RECURSIVE: list[dict[str, Any]] = [
    {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"next": {"$ref": "#/$defs/a"}}}}},
    {"properties": {"a": {"$ref": "#"}}},
    {
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}},
    },
]


@pytest.mark.parametrize("schema", RECURSIVE)
def test_a_recursive_schema_is_rejected(schema: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"response_format\.schema: recursion is not supported"):
        parse("completions", response_format={"type": "json_object", "schema": json.dumps(schema)})


def test_a_definition_under_many_spellings_is_followed_once() -> None:
    many = [{"$ref": "#" + "/" * (number + 1) + "$defs/a"} for number in range(1000)]
    schema = {"anyOf": many, "$defs": {"a": {"anyOf": [{}] * 6_000}}}
    text = json.dumps(schema)
    asked = {"type": "json_object", "schema": text}
    assert cpu_time.least_s(lambda: parse("completions", response_format=asked), 1) < 1


@pytest.mark.parametrize(("kind", "schema"), [("regex", "a" * 8193), ("json_object", {"const": "a" * 1024**2})])
def test_a_constraint_is_measured_before_it_is_read(kind: str, schema: Any) -> None:
    with pytest.raises(BadRequest, match=r"response_format\.schema: an? \w+ has at most"):
        parse("completions", response_format={"type": kind, "schema": schema})


def test_every_property_is_required_at_every_depth() -> None:
    inner = {"properties": {"x": {"type": "integer"}, "required": {"type": "string"}}, "required": ["x"]}
    schema = {
        "properties": {"a": {"items": inner}, "b": {"anyOf": [inner, {"$ref": "#/$defs/c"}]}},
        "$defs": {"c": inner},
    }
    form = {"type": "json_object", "schema": json.dumps(schema)}
    got = result(response_format=form)["structured_outputs"]["json"]
    whole = {**inner, "required": ["x", "required"], "additionalProperties": False}
    assert got["properties"]["a"]["items"] == whole
    assert got["properties"]["b"]["anyOf"] == [whole, {"$ref": "#/$defs/c"}]
    assert got["$defs"]["c"] == whole
    assert got["required"] == ["a", "b"]


def test_a_long_chain_of_references_is_followed() -> None:
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**links, "d5000": {"type": "integer"}}}
    assert result(response_format={"type": "json_object", "schema": schema})["structured_outputs"]


# Any values of fields, right or wrong.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 40) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["tokens", "type", "schema", "role", "content", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def rejection(operation: str, body: bytes, headers: dict[str, str]) -> ClientError | None:
    """The reason that a request is rejected; None if it can be sent to the engine."""
    try:
        json.dumps(engine_body(parse_bytes(operation, body, headers), DEPLOYED))
    except ClientError as error:
        return error
    return None


@given(st.data(), st.sampled_from(list(MODELS)), st.sampled_from([SDK, {}]))
def test_any_fields_are_a_request_or_a_client_error(data: st.DataObject, operation: str, headers: Any) -> None:
    names = st.sampled_from([*MODELS[operation].model_fields, "unheard_of"])
    right = st.sampled_from([fields for cases in SUPPORT[operation].values() for fields, _ in cases])
    fields = {**REQUIRED[operation]}
    for part in data.draw(st.lists(right | st.dictionaries(names, VALUES, max_size=3), max_size=4)):
        fields |= part
    error = rejection(operation, json.dumps(fields).encode(), headers)
    assert error is None or error.param is None or error.param in error.message


@given(st.sampled_from(list(MODELS)), st.binary(max_size=40) | VALUES.map(lambda v: json.dumps(v).encode()))
def test_any_bytes_are_a_request_or_a_client_error(operation: str, body: bytes) -> None:
    if (error := rejection(operation, body, {})) is not None:
        reply = Friendli().render_error(error, operation, Request("POST", "/x", body))
        assert reply.status == error.status
        assert json.loads(reply.body)["detail"]
