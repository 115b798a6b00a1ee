"""Azure's errors: every one has the header `x-ms-error-code`, and a body of the documented shape for its status.

Several shapes are in circulation; these bodies hold the union, which each known client reads.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from app.dialects.base import Reply
from app.dialects.json_body import dump
from app.errors import SwitchyardError, Unprocessable, shortened

_TITLES: Mapping[int, str] = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Payload Too Large",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}

_CODES: Mapping[int, str] = {
    400: "invalid_input",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    413: "PayloadTooLarge",
    422: "parameter_not_supported",
    429: "TooManyRequests",
}


_LONGEST_VALUE = 100
"""Characters of a client's value in an error."""


def error_reply(error: SwitchyardError) -> Reply:
    """The error as Azure's SDK reads it."""
    code = error.code or _CODES.get(error.status, "InternalServerError")
    body: dict[str, Any] = {
        "error": _TITLES.get(error.status, "Error"),
        "message": error.message,
        "status": error.status,
        "code": code,
    }
    if error.code in ("MissingApiVersionParameter", "InvalidApiVersionParameter"):
        body["error"] = {"code": code, "message": error.message}
    elif error.code == "content_filter":
        body["param"] = error.param
    elif error.status == 400:
        body["detail"] = error.message
    elif isinstance(error, Unprocessable):
        text = _text(error.value)
        value = error.value if len(text) <= _LONGEST_VALUE else shortened(text, _LONGEST_VALUE)
        detail = {"loc": _location(error.param), "value": shortened(text, _LONGEST_VALUE), "input": value}
        body |= {"detail": detail, "details": [detail]}
    return Reply(dump(body), error.status, headers={"x-ms-error-code": code})


def _location(path: str | None) -> list[str]:
    """``messages[0].role`` as ``["body", "messages", "0", "role"]``."""
    return ["body", *(part for part in re.split(r"[.\[\]]+", path or "") if part)]


def _text(value: Any) -> str:
    """A value in the words of JSON; a long one's beginning, and some more."""
    if isinstance(value, str):
        return value
    text = ""
    for piece in json.JSONEncoder(default=str).iterencode(value):  # a long value is not written out
        text += piece
        if len(text) > _LONGEST_VALUE:
            break
    return text
