"""The fields of TGI's own requests: their types, and TGI's rules in TGI's words and order.

Two descriptions are served. TGI's router (v3) is one; MindIE's TGI interface, which describes TGI 0.9, is the other.
Where they differ, a `Profile` has the difference; the configuration chooses it.

Unknown fields are ignored, as both servers do: their clients send fields of later versions.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.dialects.validation import first_problem
from app.errors import BadRequest

MAX_TOP_N_TOKENS = 5


class _Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Grammar(_Strict):
    """`grammar`, and `response_format` in TGI's form."""

    type: Literal["json", "json_object", "json_schema", "regex"]
    value: Any


class Parameters(_Strict):
    """`parameters`: the types. `broken_rule` has the bounds."""

    adapter_id: str | None = None
    best_of: int = 1
    decoder_input_details: bool = False
    details: bool = False
    do_sample: bool | None = None
    frequency_penalty: float | None = None
    grammar: Grammar | None = None
    max_new_tokens: int | None = None
    repetition_penalty: float | None = None
    return_full_text: bool | None = None
    seed: int | None = None
    stop: list[str] = Field(default_factory=list)
    temperature: float | None = None
    top_k: int | None = None
    top_n_tokens: int = 0
    top_p: float | None = None
    truncate: int | None = None
    typical_p: float | None = None
    watermark: bool = False


class RequestBody(_Strict):
    """A request, but for what is in `parameters`: `read` leaves the nulls out of these first."""

    inputs: str
    parameters: dict[str, Any] | None = None
    stream: bool = False


class Question(_Strict):
    """A request as a whole, for those who want to know what it may be."""

    inputs: str
    parameters: Parameters | None = None
    stream: bool = False


def unreadable(error: ValidationError, prefix: str = "") -> BadRequest:
    """A field of the wrong JSON type. TGI refuses these before it looks at anything else."""
    problem = first_problem(error)
    path = prefix + problem.path
    return BadRequest(f"`{path}`{problem.message.removeprefix(problem.path)}", param=path)


def read(body: Mapping[str, Any]) -> tuple[str, Parameters | None]:
    """`inputs` and `parameters`. Raises BadRequest, naming the field, where a type is wrong."""
    try:
        request = RequestBody.model_validate(body)
    except ValidationError as error:
        raise unreadable(error) from None
    if request.parameters is None:
        return request.inputs, None
    named = {name: value for name, value in request.parameters.items() if value is not None}
    try:
        return request.inputs, Parameters.model_validate(named)
    except ValidationError as error:
        raise unreadable(error, "parameters.") from None
