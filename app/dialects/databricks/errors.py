"""Databricks' errors: one flat object on every route; its SDK reads `error_code` before the status.

Contract: https://docs.databricks.com/api/workspace/introduction (errors), and `databricks.sdk.errors`. The object has
no key `error` or `detail`: the SDK would read the first as the message and the second as SCIM's.
"""

from collections.abc import Mapping
from typing import Any

from app.dialects.base import Reply
from app.dialects.bodies import dump
from app.errors import NotFound, Rejected, SwitchyardError, UnsupportedRoute
from app.sse import encode

NO_SUCH_RESOURCE = "RESOURCE_DOES_NOT_EXIST"
"""The management API's code for an unknown endpoint; on the data plane it is ENDPOINT_NOT_FOUND."""

NOT_OFFERED = "FEATURE_DISABLED"
"""The code of a documented call that only Databricks' own service has. The management API's status is 400, since
clients that clean up treat a 404 as "already deleted"."""

_CODES: Mapping[int, str] = {
    400: "BAD_REQUEST",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "ENDPOINT_NOT_FOUND",
    409: "RESOURCE_CONFLICT",
    429: "REQUEST_LIMIT_EXCEEDED",
    500: "INTERNAL_ERROR",
    503: "TEMPORARILY_UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}

_OWN_CODES = frozenset(
    {NO_SUCH_RESOURCE, NOT_OFFERED, "INVALID_STATE", "RESOURCE_ALREADY_EXISTS", "RESOURCE_EXHAUSTED"}
)
"""Values of an error's `code` that replace the code of its status."""

_STATUSES: Mapping[int, int] = {422: 400, 502: 500}
"""Statuses that Databricks does not use, and the documented ones that its clients expect instead."""


def error_reply(error: SwitchyardError, *, request_id: str) -> Reply:
    """The error for Databricks' clients, on the data plane and in the management API."""
    return Reply(dump(error_body(error, request_id=request_id)), _status(error))


def error_body(error: SwitchyardError, *, request_id: str) -> dict[str, Any]:
    """The error object."""
    info = {"@type": "type.googleapis.com/google.rpc.RequestInfo", "request_id": request_id, "serving_data": ""}
    return {"error_code": _code(error, _status(error)), "message": _message(error), "details": [info]}


def error_frames(error: SwitchyardError, *, request_id: str) -> bytes:
    """The error as the last event of a stream of chunks, with the key `error` on which OpenAI's SDK raises."""
    body = error_body(error, request_id=request_id)
    code = body["error_code"]
    body["error"] = {"message": body["message"], "type": code, "param": error.param, "code": code}
    return encode(dump(body))


def _status(error: SwitchyardError) -> int:
    return 400 if isinstance(error, Rejected) else _STATUSES.get(error.status, error.status)


def _code(error: SwitchyardError, status: int) -> str:
    if error.code in _OWN_CODES:
        return error.code
    if isinstance(error, UnsupportedRoute):
        return NOT_OFFERED
    if status == 400 and error.param is not None:
        return "INVALID_PARAMETER_VALUE"
    return _CODES.get(status) or ("BAD_REQUEST" if status < 500 else "INTERNAL_ERROR")


def _message(error: SwitchyardError) -> str:
    if isinstance(error, NotFound) and error.param == "model" and error.code != NO_SUCH_RESOURCE:
        return f"The given endpoint does not exist, please check its name. {error.message}"
    return error.message
