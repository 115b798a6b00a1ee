"""The fields of TGI's own requests and their types; `rules` has the bounds.

Contract: TGI's router (v3) and MindIE's TGI interface, which describes TGI 0.9; `profile` has where they differ.
Unknown fields are ignored, as both servers do: their clients send fields of later versions.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from app.dialects.validation import Problem, validated
from app.errors import BadRequest

MAX_TOP_N_TOKENS = 5


class _Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Grammar(_Strict):
    """`grammar`, and `response_format` in TGI's form."""

    type: Literal["json", "json_object", "json_schema", "regex"]
    value: Any


class Parameters(_Strict):
    """`parameters`."""

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


def _without_nulls(parameters: Any) -> Any:
    """`json_object` keeps these nulls: `request_style` looks at which fields were sent."""
    if not isinstance(parameters, dict):
        raise ValueError("Input should be a valid dictionary")
    return {name: value for name, value in parameters.items() if value is not None}


class GenerateRequest(_Strict):
    """A request in TGI's own form."""

    inputs: str
    stream: bool = False
    parameters: Annotated[Parameters, BeforeValidator(_without_nulls)] | None = None


def read(body: Mapping[str, Any]) -> GenerateRequest:
    """`body` with its types checked. Raises BadRequest, naming the field: TGI checks types before anything else."""
    return validated(GenerateRequest, body, _wrong_type)


def _wrong_type(problem: Problem) -> BadRequest:
    return BadRequest(f"`{problem.path}`{problem.message.removeprefix(problem.path)}", param=problem.path)
