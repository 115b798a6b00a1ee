"""Recognises the dialects whose documented error format a body has."""

import json
from collections.abc import Iterator
from typing import Any

from tests.router.hostile.client import Reply


def dialects(reply: Reply) -> set[str]:
    """The dialects whose error format `reply` has; empty if there are none."""
    if not reply.body:  # TGI answers unauthorized requests, and its health check always, with a status alone
        return {"tgi"}
    try:
        body = json.loads(reply.body)
    except ValueError:
        return set()
    return set(_forms(body)) if isinstance(body, dict) else set()


def _forms(body: dict[str, Any]) -> Iterator[str]:
    error = body.get("error")
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        if body.get("type") == "error" and "type" in error:
            yield "anthropic"
        if error.keys() == {"message", "type", "param", "code"}:
            yield "friendli" if "detail" in body else "openai"
    if isinstance(error, str) and "error_type" in body:
        yield "tgi"
    if "status" in body and "code" in body and isinstance(body.get("message"), str):
        yield "azure"
    if "error_code" in body and isinstance(body.get("message"), str):
        yield "databricks"
