"""Friendli's dialect as its unit tests ask it."""

import json
from dataclasses import replace
from typing import Any

from app.dialects.base import Request, ServingContext
from app.dialects.friendli.dialect import Friendli
from app.dialects.legacy import Call
from tests.support import samples as given
from tests.support.samples import CONTEXT, MODEL, SERVED

EXTENDED = replace(given.EXTENDED, hidden_size=4)
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
    """A request with the fields that it must have, and `fields`."""
    required = {} if "tokens" in fields and operation != "detokenize" else REQUIRED[operation]
    return parse_bytes(operation, json.dumps({**required, **fields}).encode(), headers)


def question(
    operation: str = "completions", headers: dict[str, str] = CLASSIC, served: ServingContext = DEPLOYED, **fields: Any
) -> dict[str, Any]:
    """What the engine is asked."""
    call = parse(operation, headers, **fields)
    return call.fit(call.body, served) if call.fit else call.body
