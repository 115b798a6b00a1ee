"""The fields of TGI's own requests: their types, and TGI's rules in TGI's words and order.

Two descriptions are served. TGI's router (v3) is one; MindIE's TGI interface, which describes TGI 0.9, is the other.
Where they differ, a `Profile` has the difference; the configuration chooses it.

Unknown fields are ignored, as both servers do: their clients send fields of later versions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.dialects.base import first_problem
from app.errors import BadRequest, Unprocessable

MAX_BEST_OF = 2
MAX_STOP_SEQUENCES = 4
MAX_TOP_N_TOKENS = 5
MAX_INPUT_CHARACTERS = 512 * 1024

_MAX_I32, _MAX_U32, _MAX_U64 = 2**31 - 1, 2**32 - 1, 2**64 - 1


@dataclass(frozen=True, slots=True)
class Profile:
    """What a request gets that does not say. `max_new_tokens` None is the rest of the context."""

    max_new_tokens: int | None
    samples_without_parameters: bool
    answers_with_lists: bool
    shows_the_prompt: bool
    tells_greedy_seeds: bool
    largest_typical_p_is_off: bool


PROFILES: Mapping[str, Profile] = {
    "mindie": Profile(20, False, False, False, True, True),
    "tgi": Profile(None, True, True, True, False, False),
}


@dataclass(frozen=True, slots=True)
class Manner:
    """How a request came, as far as its fields mean other things by it.

    `at_root`: at `POST /` and its synonyms, where the descriptions differ most. `is_tgis`: the route is TGI's, or what
    its client sends. `fills_in`: the client sends every field, with defaults of its own for those its user did not set.
    """

    profile: Profile
    stream: bool = False
    at_root: bool = False
    is_tgis: bool = False
    fills_in: bool = False


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


class Body(_Strict):
    """A request, but for what is in `parameters`: `read` leaves the nulls out of these first."""

    inputs: str
    parameters: dict[str, Any] | None = None
    stream: bool = False


class Question(_Strict):
    """A request as a whole, for those who want to know what it may be."""

    inputs: str
    parameters: Parameters | None = None
    stream: bool = False


# TGI's Python client sends all of these with every request, whatever its user said.
_EVERY_FIELD = frozenset(
    "best_of decoder_input_details details do_sample max_new_tokens repetition_penalty return_full_text seed stop "
    "temperature top_k top_p truncate typical_p watermark".split()
)

# MindIE's description has none of these.
_TGIS_OWN = frozenset({"adapter_id", "best_of", "frequency_penalty", "grammar", "stop", "top_n_tokens"})


def manner(body: Mapping[str, Any], user_agent: str, profile: Profile, *, stream: bool, at_root: bool) -> Manner:
    """Reads off a request who speaks. `body` still has the nulls below `parameters`."""
    named = body.get("parameters")
    names = set(named) if isinstance(named, dict) else set()
    is_tgis = profile.answers_with_lists or not at_root or "hf_hub" in user_agent or bool(names & _TGIS_OWN)
    return Manner(profile, stream, at_root, is_tgis, names >= _EVERY_FIELD)


def unreadable(error: ValidationError, prefix: str = "") -> BadRequest:
    """A field of the wrong JSON type. TGI refuses these before it looks at anything else."""
    problem = first_problem(error)
    path = prefix + problem.path
    return BadRequest(f"`{path}`{problem.message.removeprefix(problem.path)}", param=path)


def read(body: Mapping[str, Any]) -> tuple[str, Parameters | None]:
    """`inputs` and `parameters`. Raises BadRequest, naming the field, where a type is wrong."""
    try:
        request = Body.model_validate(body)
    except ValidationError as error:
        raise unreadable(error) from None
    if request.parameters is None:
        return request.inputs, None
    named = {name: value for name, value in request.parameters.items() if value is not None}
    try:
        return request.inputs, Parameters.model_validate(named)
    except ValidationError as error:
        raise unreadable(error, "parameters.") from None


_Rule = tuple[str, Callable[[Parameters, Manner], bool], str]


def _within(low: float, high: float, value: float | None) -> bool:
    return value is None or low <= value <= high


def _positive(value: float | None) -> bool:
    return value is None or value > 0


def _open_unit(value: float | None) -> bool:
    return value is None or 0 < value < 1


# In TGI's order. A rule is kept where its function says so, else the text is the error.
_RULES: Sequence[_Rule] = (
    ("best_of", lambda p, m: 1 <= p.best_of <= MAX_BEST_OF, f"must be > 0 and <= {MAX_BEST_OF}. Given: {{best_of}}"),
    ("best_of", lambda p, m: p.best_of == 1 or not m.stream, "!= 1 is not supported when streaming tokens"),
    (
        "decoder_input_details",
        lambda p, m: not (p.decoder_input_details and m.stream),
        "== true is not supported when streaming tokens",
    ),
    ("best_of", lambda p, m: p.best_of == 1 or samples(p, m), "you must use sampling when `best_of` is > 1"),
    ("temperature", lambda p, m: _positive(p.temperature), "must be strictly positive"),
    ("repetition_penalty", lambda p, m: _positive(p.repetition_penalty), "must be strictly positive"),
    ("frequency_penalty", lambda p, m: _within(-2, 2, p.frequency_penalty), "must be >= -2.0 and <= 2.0"),
    ("top_p", lambda p, m: _open_unit(p.top_p), "must be > 0.0 and < 1.0"),
    (
        "typical_p",
        lambda p, m: _open_unit(p.typical_p) or (p.typical_p == 1 and m.profile.largest_typical_p_is_off),
        "must be > 0.0 and < 1.0",
    ),
    ("top_k", lambda p, m: _positive(p.top_k), "must be strictly positive"),
    ("top_k", lambda p, m: _within(1, _MAX_I32, p.top_k), f"must be <= {_MAX_I32}. Given: {{top_k}}"),
    ("max_new_tokens", lambda p, m: _positive(p.max_new_tokens), "must be strictly positive"),
    (
        "max_new_tokens",
        lambda p, m: _within(1, _MAX_U32, p.max_new_tokens),
        f"must be <= {_MAX_U32}. Given: {{max_new_tokens}}",
    ),
    (
        "stop",
        lambda p, m: len(p.stop) <= MAX_STOP_SEQUENCES,
        f"supports up to {MAX_STOP_SEQUENCES} stop sequences. Given: {{stops}}",
    ),
    ("stop", lambda p, m: all(p.stop), "must not hold an empty stop sequence"),
    ("seed", lambda p, m: p.seed is None or p.best_of == 1, "must not be set when `best_of` > 1"),
    (
        "seed",
        lambda p, m: _within(0 if m.is_tgis else 1, _MAX_U64, p.seed),
        f"must be > 0 and <= {_MAX_U64}. Given: {{seed}}",
    ),
    (
        "top_n_tokens",
        lambda p, m: 0 <= p.top_n_tokens <= MAX_TOP_N_TOKENS,
        f"must be >= 0 and <= {MAX_TOP_N_TOKENS}. Given: {{top_n_tokens}}",
    ),
)


def check(inputs: str, parameters: Parameters, manner: Manner) -> None:
    """Raises Unprocessable with TGI's text for the first rule that is broken."""
    for name, is_kept, text in _RULES:
        if not is_kept(parameters, manner):
            given = {**dict(parameters), "stops": len(parameters.stop)}
            told = text.format(**given) if text.startswith("you ") else f"`{name}` {text.format(**given)}"
            raise Unprocessable(told, param=f"parameters.{name}", value=given[name])
    check_inputs(inputs)


def check_inputs(inputs: str) -> None:
    """Raises Unprocessable where it is empty, or longer than is worth counting its tokens."""
    if not inputs:
        raise Unprocessable("`inputs` cannot be empty", param="inputs")
    if len(inputs) > MAX_INPUT_CHARACTERS:
        raise Unprocessable(
            f"`inputs` must have at most {MAX_INPUT_CHARACTERS} characters. Given: {len(inputs)}", param="inputs"
        )


def samples(parameters: Parameters, manner: Manner) -> bool:
    """Whether tokens are drawn, not the likeliest taken.

    `do_sample` decides where its user set it: false is greedy, whatever else is set. Where it is absent other fields
    decide, as in TGI. TGI's Python client sends false for a user who said nothing: that is as good as absent.
    """
    if parameters.do_sample or (parameters.do_sample is False and not manner.fills_in):
        return parameters.do_sample
    if parameters.temperature is not None and (parameters.temperature != 1 or parameters.best_of > 1):
        return True
    return any(value is not None and value != 1 for value in (parameters.top_p, parameters.typical_p)) or (
        parameters.top_k is not None
    )
