"""The fields of TGI's own requests and their types. Bounds are in their schemas here; `rules` checks them.

Contract: TGI's router (v3) and MindIE's TGI interface, which describes TGI 0.9; `profile` has where they differ.
Unknown fields are ignored, as both servers do: their clients send fields of later versions.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from app.dialects.bodies import Problem, check_large_numbers, nested_json, validated
from app.dialects.common.fields import NonEmpty, Schema, absent, both, described_by, either, given, is_true, values
from app.engine.pieces import MOST_CHARACTERS
from app.errors import BadRequest, Unprocessable

MAX_BEST_OF = 2
MAX_STOP_SEQUENCES = 4
MAX_TOP_N_TOKENS = 5
MAX_TOP_K, MAX_NEW_TOKENS, MAX_SEED = 2**31 - 1, 2**32 - 1, 2**64 - 1
_Model = TypeVar("_Model", bound=BaseModel)
_SAMPLED = "vLLM's, if the engine samples"


class Strict(BaseModel):
    """The base of requests and their parts."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Grammar(Strict):
    """`grammar`, and `response_format` in TGI's form."""

    model_config = described_by(
        either(
            given("value", {"type": "string", "minLength": 1}),
            both(
                values({"type": ["json", "json_object", "json_schema"]}),
                given("value", {"type": "object", "required": ["properties"]}),
            ),
        )
    )

    type: Literal["json", "json_object", "json_schema", "regex"]
    value: Any


_POSITIVE: Schema = {"exclusiveMinimum": 0}
_SHARE: Schema = {"exclusiveMinimum": 0, "exclusiveMaximum": 1}


class Parameters(Strict):
    """`parameters`. The descriptions state how each field is supported."""

    # Without `do_sample` these decide whether the engine samples, and only samples can be the best of several.
    model_config = described_by(
        either(
            values({"best_of": [None, 1]}),
            both(
                absent("seed"),
                either(
                    is_true("do_sample"),
                    *(
                        both(absent("do_sample"), given(name))
                        for name in ("temperature", "top_k", "top_p", "typical_p")
                    ),
                ),
            ),
        )
    )

    adapter_id: str | None = Field(
        default=None, description="the endpoint's deployment with that name or model; an error if there is none"
    )
    best_of: int = Field(
        default=1,
        description=f"done here: at most {MAX_BEST_OF}; the likeliest is the answer, the other is in the details",
        json_schema_extra={"minimum": 1, "maximum": MAX_BEST_OF},
    )
    decoder_input_details: bool = Field(
        default=False, description="the details, with the prompt's tokens; not in streams"
    )
    details: bool = Field(default=False, description="made here from vLLM's log-probabilities")
    do_sample: bool | None = Field(
        default=None, description="decides whether the engine samples; without it the other fields do, as in TGI"
    )
    frequency_penalty: float | None = Field(default=None, json_schema_extra={"minimum": -2, "maximum": 2})
    grammar: Grammar | None = Field(default=None, description="vLLM's structured outputs")
    max_new_tokens: int | None = Field(
        default=None,
        description="vLLM's `max_tokens`; the default is the profile's",
        json_schema_extra={"minimum": 1, "maximum": MAX_NEW_TOKENS},
    )
    repetition_penalty: float | None = Field(default=None, json_schema_extra=_POSITIVE)
    return_full_text: bool | None = Field(default=None, description="done here: puts the prompt before the text")
    seed: int | None = Field(
        default=None,
        description="vLLM's, any unsigned 64-bit number; drawn here if there is none",
        json_schema_extra={"minimum": 1, "maximum": MAX_SEED},  # TGI's own clients may send 0
    )
    stop: list[NonEmpty] = Field(
        default_factory=list,
        description=f"vLLM's; at most {MAX_STOP_SEQUENCES}, kept in the text",
        json_schema_extra={"maxItems": MAX_STOP_SEQUENCES},
    )
    temperature: float | None = Field(
        default=None, description=f"{_SAMPLED}; above 2 by a logits processor", json_schema_extra=_POSITIVE
    )
    top_k: int | None = Field(
        default=None, description=_SAMPLED, json_schema_extra={"minimum": 1, "maximum": MAX_TOP_K}
    )
    top_n_tokens: int = Field(
        default=0,
        description=f"vLLM's log-probabilities, in the details; at most {MAX_TOP_N_TOKENS}",
        json_schema_extra={"minimum": 0, "maximum": MAX_TOP_N_TOKENS},
    )
    top_p: float | None = Field(default=None, description=_SAMPLED, json_schema_extra=_SHARE)
    truncate: int | None = Field(default=None, description="done here: keeps the last tokens of the prompt")
    typical_p: float | None = Field(
        default=None, description="by a logits processor, if the engine samples", json_schema_extra=_SHARE
    )
    watermark: bool = Field(default=False, description="by a logits processor")


def _without_nulls(parameters: Any) -> Any:
    """`json_object` keeps these nulls: `request_style` looks at which fields were sent."""
    if not isinstance(parameters, dict):
        raise ValueError("Input should be a valid dictionary")
    return {name: value for name, value in parameters.items() if value is not None}


class GenerateRequest(Strict):
    """A request in TGI's own form."""

    inputs: NonEmpty = Field(
        description="tokenized here; `/tokenize` returns the tokens with their places in the text",
        json_schema_extra={"maxLength": MOST_CHARACTERS},
    )
    stream: bool = Field(default=False, description="at `/` and `/invocations`; elsewhere the path decides")
    parameters: Annotated[Parameters, BeforeValidator(_without_nulls)] | None = Field(
        default=None, description="an object: the other fields of the request"
    )


def read(body: Mapping[str, Any]) -> GenerateRequest:
    """`body` with its types checked. Raises BadRequest, naming the field: TGI checks types before anything else."""
    return checked(GenerateRequest, body)


def checked(model: type[_Model], body: Mapping[str, Any]) -> _Model:
    """The same with the types of `model`."""
    return validated(model, body, _wrong_type)


def _wrong_type(problem: Problem) -> BadRequest:
    return BadRequest(f"`{problem.path}`{problem.message.removeprefix(problem.path)}", param=problem.path)


def structured_outputs(grammar: Grammar, param: str) -> dict[str, Any]:
    """vLLM's `structured_outputs` for a grammar, which the engine compiles and may reject.

    Raises Unprocessable, about `param`.
    """
    value = grammar.value
    if grammar.type == "regex":
        if not isinstance(value, str) or not value:
            raise _invalid(param, "the value of a regex must be a string")
        return {"regex": value}
    if isinstance(value, str):
        try:
            value = nested_json(value)
        except ValueError as error:
            raise _invalid(param, str(error)) from None
        check_large_numbers({param: value}, with_tools=True)
    if grammar.type == "json_schema" and isinstance(value, dict) and "schema" in value:
        value = value["schema"]
    if not isinstance(value, dict) or "properties" not in value:
        raise _invalid(param, "Grammar must have a 'properties' field")
    # TGI takes a schema with properties for an object's; JSON Schema needs the `type` too.
    return {"json": {"type": "object", **value}}


def _invalid(param: str, reason: str) -> Unprocessable:
    return Unprocessable(f"grammar is not valid: {reason}", param=param)
