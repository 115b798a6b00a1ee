"""Databricks' error object, as its SDK reads it."""

import io
import json
from typing import Any

import pytest
import requests
from databricks.sdk.errors import platform
from databricks.sdk.errors.base import DatabricksError
from databricks.sdk.errors.parser import _Parser

from app import errors
from app.dialects.databricks.errors import NO_SUCH_RESOURCE, NOT_OFFERED, error_reply
from app.errors import (
    AtCapacity,
    BadRequest,
    Blocked,
    Broken,
    Conflict,
    ContextExceeded,
    DeadlinePassed,
    Forbidden,
    HeadersTooLarge,
    Incomplete,
    InternalError,
    LimitExceeded,
    MalformedAnswer,
    MethodNotAllowed,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    Queued,
    Rejected,
    Suspected,
    SwitchyardError,
    TimedOut,
    TooLarge,
    TooManyRefusals,
    TooSlow,
    Unanswered,
    Unauthorized,
    Unavailable,
    Unprocessable,
    Unreachable,
    UnsupportedMediaType,
    UnsupportedRoute,
    WrongTask,
)

CASES: list[tuple[SwitchyardError, int, str, type[DatabricksError]]] = [
    (BadRequest("m"), 400, "BAD_REQUEST", platform.BadRequest),
    (BadRequest("m", param="n"), 400, "INVALID_PARAMETER_VALUE", platform.InvalidParameterValue),
    (BadRequest("m", code=NOT_OFFERED), 400, "FEATURE_DISABLED", platform.BadRequest),
    (Blocked("m", param="n"), 400, "INVALID_PARAMETER_VALUE", platform.InvalidParameterValue),
    (WrongTask("m", param="model"), 400, "INVALID_PARAMETER_VALUE", platform.InvalidParameterValue),
    (Unprocessable("m", param="tools"), 400, "INVALID_PARAMETER_VALUE", platform.InvalidParameterValue),
    (Suspected("m"), 400, "BAD_REQUEST", platform.BadRequest),
    (Rejected("m", status=404), 400, "BAD_REQUEST", platform.BadRequest),
    (Rejected("m", status=422, param="n"), 400, "INVALID_PARAMETER_VALUE", platform.InvalidParameterValue),
    (ContextExceeded(100, 101, 5, is_exact=True), 400, "BAD_REQUEST", platform.BadRequest),
    (Unauthorized("m"), 401, "UNAUTHENTICATED", platform.Unauthenticated),
    (Forbidden("m", param="model"), 403, "PERMISSION_DENIED", platform.PermissionDenied),
    (LimitExceeded("m", retry_after=3), 429, "REQUEST_LIMIT_EXCEEDED", platform.RequestLimitExceeded),
    (TooManyRefusals("m", retry_after=3), 429, "REQUEST_LIMIT_EXCEEDED", platform.RequestLimitExceeded),
    (NotFound("m", param="model"), 404, "ENDPOINT_NOT_FOUND", platform.NotFound),
    (UnsupportedRoute("n", "m"), 404, "FEATURE_DISABLED", platform.NotFound),
    (NotFound("m", code=NO_SUCH_RESOURCE), 404, "RESOURCE_DOES_NOT_EXIST", platform.ResourceDoesNotExist),
    (MethodNotAllowed("m"), 405, "BAD_REQUEST", DatabricksError),
    (Conflict("m"), 409, "RESOURCE_CONFLICT", platform.ResourceConflict),
    (PreconditionFailed("m", current={}), 412, "BAD_REQUEST", DatabricksError),
    (PreconditionRequired("m"), 428, "BAD_REQUEST", DatabricksError),
    (TooSlow("m"), 408, "BAD_REQUEST", DatabricksError),
    (HeadersTooLarge("m"), 431, "BAD_REQUEST", DatabricksError),
    (UnsupportedMediaType("m"), 415, "BAD_REQUEST", DatabricksError),
    (TooLarge("m"), 413, "BAD_REQUEST", DatabricksError),
    (InternalError("m"), 500, "INTERNAL_ERROR", platform.InternalError),
    (Broken("m"), 500, "INTERNAL_ERROR", platform.InternalError),
    (Incomplete("m"), 500, "INTERNAL_ERROR", platform.InternalError),
    (MalformedAnswer("m"), 500, "INTERNAL_ERROR", platform.InternalError),
    (Unavailable("m"), 503, "TEMPORARILY_UNAVAILABLE", platform.TemporarilyUnavailable),
    (Unanswered("m"), 503, "TEMPORARILY_UNAVAILABLE", platform.TemporarilyUnavailable),
    (Unreachable("m"), 503, "TEMPORARILY_UNAVAILABLE", platform.TemporarilyUnavailable),
    (AtCapacity("m"), 503, "TEMPORARILY_UNAVAILABLE", platform.TemporarilyUnavailable),
    (Queued("m"), 503, "TEMPORARILY_UNAVAILABLE", platform.TemporarilyUnavailable),
    (DeadlinePassed("m"), 504, "DEADLINE_EXCEEDED", platform.DeadlineExceeded),
    (TimedOut("m"), 504, "DEADLINE_EXCEEDED", platform.DeadlineExceeded),
]


def read_by_the_sdk(body: bytes, status: int) -> Any:
    response = requests.Response()
    response.status_code, response.raw = status, io.BytesIO(body)
    response.request = requests.Request("GET", "http://x/api/2.0/serving-endpoints/x").prepare()
    return _Parser().get_api_error(response)


@pytest.mark.parametrize(("error", "status", "code", "raised"), CASES)
def test_every_error_becomes_the_sdks_exception(
    error: SwitchyardError, status: int, code: str, raised: type[DatabricksError]
) -> None:
    reply = error_reply(error, request_id="r-1")
    body = json.loads(reply.body)
    assert (reply.status, body["error_code"]) == (status, code)
    assert body.keys() == {"error_code", "message", "details"}
    read = read_by_the_sdk(reply.body, reply.status)
    assert type(read) is raised
    assert str(read).endswith(error.message)
    info = read.get_error_details().request_info
    assert info is not None
    assert info.request_id == "r-1"


def test_every_class_of_error_has_a_case() -> None:
    classes = {
        error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, SwitchyardError)
    }
    bases = {errors.SwitchyardError, errors.ClientError, errors.UpstreamError}
    assert {type(error) for error, *_ in CASES} == classes - bases


def test_an_unknown_endpoint_has_the_data_planes_message() -> None:
    body = json.loads(error_reply(NotFound("The model 'x' does not exist", param="model"), request_id="r").body)
    assert body["message"] == ("The given endpoint does not exist, please check its name. The model 'x' does not exist")


@pytest.mark.parametrize("code", ["invalid_api_key", "400", "content_filter"])
def test_another_dialects_code_does_not_leak(code: str) -> None:
    assert json.loads(error_reply(BadRequest("m", code=code), request_id="r").body)["error_code"] == "BAD_REQUEST"
