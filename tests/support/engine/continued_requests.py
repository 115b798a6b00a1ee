"""Requests of every kind whose streams are continued, for vLLM's own routes."""

from collections.abc import Mapping
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"

LENGTH = 32
"""Tokens of an answer, at most."""

QUESTION = "Tell me a story about a lighthouse."

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 8, "maxLength": 40},
        "tags": {
            "type": "array",
            "items": {"type": "string", "minLength": 2, "maxLength": 12},
            "minItems": 3,
            "maxItems": 6,
        },
        "n": {"type": "integer"},
    },
    "required": ["name", "tags", "n"],
    "additionalProperties": False,
}
JSON = {"type": "json_schema", "json_schema": {"name": "note", "schema": SCHEMA, "strict": True}}
FUNCTION: Mapping[str, Any] = {"name": "save_note", "description": "Saves a note.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
PENALTIES: Mapping[str, Any] = {"presence_penalty": 1.0, "frequency_penalty": 0.7, "repetition_penalty": 1.2}


def chat(**fields: Any) -> dict[str, Any]:
    """A stream of chat completions, greedy unless `fields` say otherwise."""
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": LENGTH,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


def seeded(seed: int, **fields: Any) -> dict[str, Any]:
    return chat(temperature=1.0, seed=seed, **fields)


CHATS: Mapping[str, Mapping[str, Any]] = {
    "greedy": chat(ignore_eos=True),
    "seed": seeded(1234, ignore_eos=True),
    "top-p and top-k": seeded(99, top_p=0.9, top_k=50, ignore_eos=True),
    "JSON": chat(response_format=JSON),
    "JSON with a seed": seeded(5, response_format=JSON),
    "one tool": chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "save_note"}}),
    "any tool": seeded(3, tools=TOOLS, tool_choice="required"),
    "penalties": chat(**PENALTIES, ignore_eos=True, allowed_token_ids=list(range(40, 70))),
    "penalties with a seed": seeded(77, **PENALTIES, ignore_eos=True, allowed_token_ids=list(range(40, 70))),
    "at least some tokens": seeded(3, min_tokens=20, logit_bias={"2": 12}),
    "log-probabilities": chat(logprobs=True, top_logprobs=2, ignore_eos=True),
    "parts of characters": seeded(11, structured_outputs={"regex": "(😀|🎉|日本|é|ñ|漢){10}"}),
    "bad words": seeded(8, bad_words=["the", " a"], ignore_eos=True),
}
"""Kinds of chat completions, by what the engine must know of the tokens before."""


def completion(**fields: Any) -> dict[str, Any]:
    """A seeded stream of completions."""
    return {
        "model": "tiny",
        "prompt": QUESTION,
        "max_tokens": LENGTH,
        "temperature": 1.0,
        "seed": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


def response(**fields: Any) -> dict[str, Any]:
    """A seeded stream of a response."""
    return {
        "model": "tiny",
        "input": QUESTION,
        "max_output_tokens": LENGTH,
        "temperature": 1.0,
        "seed": 4,
        "stream": True,
        **fields,
    }


def message(**fields: Any) -> dict[str, Any]:
    """A stream of a message."""
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": LENGTH,
        "temperature": 0,
        "stream": True,
        **fields,
    }
