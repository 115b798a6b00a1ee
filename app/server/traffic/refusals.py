"""Reasons to refuse a change of a plan, and their error bodies."""

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request as HTTPRequest

from app.dialects.base import Reply
from app.dialects.bodies import dump
from app.errors import BadRequest, PreconditionFailed, PreconditionRequired, SwitchyardError
from app.server.api_operation import openai_words


class InvalidDocument(BadRequest):
    """An invalid document. `problems` lists every fault, one line each: ``path: what is wrong; the fix``."""

    longest_message = 4096

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems), param=problems[0].partition(":")[0])
        self.problems = problems


def require_match(if_match: str | None) -> None:
    """Raises PreconditionRequired without the header."""
    if if_match is None:
        raise PreconditionRequired(
            "If-Match: missing; send the ETag of the plan that you saw, so that no other change is lost",
            param="If-Match",
        )


def check_match(if_match: str | None, present: Mapping[str, Any]) -> None:
    """Raises PreconditionFailed if the header names other plans than the present one (RFC 9110, section 13.1.1)."""
    if if_match is None or if_match.strip() == "*":
        return
    if f'"{present["plan"]}"' not in [tag.strip() for tag in if_match.split(",")]:
        message = f"If-Match: the plan is {present['plan']} now; look at it, then repeat the request with its ETag"
        raise PreconditionFailed(message, current=present)


def error_words(error: SwitchyardError, request: HTTPRequest, request_id: str) -> Reply:
    """OpenAI's form, with all problems of a document or the present plan added."""
    reply = openai_words(error, request, request_id)
    if isinstance(error, InvalidDocument):
        return replace(reply, body=dump({**json.loads(reply.body), "problems": error.problems}))
    if isinstance(error, PreconditionFailed):
        headers = {**reply.headers, "etag": f'"{error.current["plan"]}"'}
        return replace(reply, body=dump({**json.loads(reply.body), "current": error.current}), headers=headers)
    return reply
