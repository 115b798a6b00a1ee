"""Recognises the dialects whose documented error format a body or a stream has."""

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


def in_events(body: bytes) -> set[str]:
    """The dialects whose error event is the last one of this stream, as far as it is whole."""
    frames = body.split(b"\n\n")
    if frames.pop():
        return set()
    last = json.loads(frames.pop().rpartition(b"data: ")[2])
    failed = last.get("type") == "error" or last.get("type") == "response.failed"
    if failed and "sequence_number" in last:  # of Responses, which two dialects have
        return {"openai", "databricks"}
    return set(_forms(last)) | ({"tgi"} if "error_type" in last else set())


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
