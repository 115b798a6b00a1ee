"""Drives Friendli's dialect in its unit tests."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.dialects.base import Call, EngineRequest, Request, ServingContext
from app.dialects.bodies import dump
from app.dialects.friendli.dialect import Friendli
from tests.support.clients import samples
from tests.support.clients.dialect_calls import outcome
from tests.support.clients.samples import CONTEXT, MODEL, SERVED

EXTENDED = replace(samples.EXTENDED, hidden_size=4)
DEPLOYED = ServingContext("blue", SERVED.settings, EXTENDED)
PLAIN = ServingContext("blue", SERVED.settings, MODEL)

SDK = {"user-agent": "speakeasy-sdk/python 0.16.3 2.950.2 0.1.0 friendli-core"}
CLASSIC: dict[str, str] = {}

PROMPT = "say hello"
MESSAGES = [{"role": "user", "content": "hi"}]

REQUIRED: dict[str, dict[str, Any]] = {
    "completions": {"prompt": PROMPT},
    "chat": {"messages": MESSAGES},
    "render": {"messages": MESSAGES},
    "tokenize": {"prompt": PROMPT},
    "detokenize": {"tokens": [1, 2]},
    "embeddings": {"input": "hi"},
}


def parse_bytes(operation: str, body: bytes, headers: dict[str, str] = CLASSIC) -> Call:
    return Friendli().parse(operation, Request("POST", "/x", body, headers=headers), CONTEXT)


def parse(operation: str, headers: dict[str, str] = CLASSIC, **fields: Any) -> Call:
    """A request with the required fields, and `fields`."""
    required = {} if "tokens" in fields and operation != "detokenize" else REQUIRED[operation]
    return parse_bytes(operation, json.dumps({**required, **fields}).encode(), headers)


def result(
    operation: str = "completions",
    headers: dict[str, str] = CLASSIC,
    serving: ServingContext = DEPLOYED,
    answers: Sequence[Sequence[Any]] = (),
    **fields: Any,
) -> dict[str, Any]:
    """The body of the main engine request, or of the finished reply; `answers` are those to the lookups."""
    end = outcome(parse(operation, headers, **fields), serving, *answers)
    body: dict[str, Any] = json.loads(dump(end.body) if isinstance(end, EngineRequest) else end.body)
    return body


def reply(call: Call, answer: bytes, serving: ServingContext = DEPLOYED) -> Any:
    """The client's answer, parsed, for the engine's."""
    return json.loads(call.translation.reply(answer, serving).body)
