"""The fields of Friendli's requests: types, bounds, and what excludes what. `HONOURED` says what becomes of each.

Contract: Friendli's API reference (`/v1/completions` of its model APIs, dedicated endpoints and containers), and what
its two SDKs send. Null is absent, and so is an empty list. Where the two differ, the `Form` of the request decides.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from app.dialects.base import first_problem, value_at
from app.dialects.friendli_speaker import Form
from app.dialects.limits import LARGEST_SEED
from app.errors import BadRequest, ClientError, Unprocessable

MAX_CHOICES = 128
MAX_BEAMS = 31
MAX_STOP_STRINGS = 64
MAX_BEAM_TEMPERATURE = 2.0  # vLLM's own limit: processors do not act on beams

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]
Phrase = Annotated[str, Field(min_length=1)]
Microseconds = Annotated[int, Field(ge=1, lt=2**63)]


class Strict(BaseModel):
    """Fields of the exact JSON type, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


_Fields = TypeVar("_Fields", bound=Strict)


class TokenSequence(Strict):
    """``{"tokens": [1, 2]}``."""

    tokens: list[TokenId] = []


class JsonSchema(Strict):
    """The schema of type `json_schema`, as OpenAI nests it; OpenAI's other members change nothing."""

    model_config = ConfigDict(extra="ignore")

    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Strict):
    """`response_format`. `schema` is a JSON schema, as text or as an object, or a regular expression."""

    type: Literal["text", "json_object", "json_schema", "regex"]
    schema_: str | dict[str, Any] | None = Field(default=None, alias="schema")
    json_schema: JsonSchema | None = None


class StreamOptions(Strict):
    """`stream_options`."""

    include_usage: bool = False


class Generation(Strict):
    """What completions and chat have in common."""

    eos_token: list[TokenId] = []
    frequency_penalty: Penalty | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    min_p: Share | None = None
    min_tokens: int | None = Field(default=None, ge=0)
    model: str | None = None
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    presence_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(default=None, gt=0)
    response_format: ResponseFormat | None = None
    seed: Seed | list[Seed] = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0)
    timeout: Microseconds | None = None
    timeout_microseconds: Microseconds | None = None
    top_k: int | None = Field(default=None, ge=0, lt=2**31)
    top_p: Share | None = None
    user: str | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None

    @property
    def is_formatted(self) -> bool:
        """Whether a grammar shapes the answer."""
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0 or self.top_p == 0

    @property
    def shows_usage(self) -> bool:
        """Whether a stream of OpenAI's chunks tells the counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def timeout_s(self) -> float | None:
        """How long the client waits."""
        wanted = self.timeout_microseconds or self.timeout
        return None if wanted is None else wanted / 1e6


class Completions(Generation):
    """POST …/v1/completions."""

    bad_word_tokens: list[TokenSequence] = Field(default=[])
    bad_words: list[Phrase] = Field(default=[])
    beam_compat_no_post_normalization: bool = False
    beam_compat_pre_normalization: bool = False
    beam_search_type: Literal["DETERMINISTIC", "NAIVE_SAMPLING", "STOCHASTIC"] = "DETERMINISTIC"
    early_stopping: bool | None = None
    embedding_to_replace: list[float] = Field(default=[])
    encoder_no_repeat_ngram: int = Field(default=1, ge=1)
    encoder_repetition_penalty: float = Field(default=1.0, gt=0)
    forced_output_tokens: list[TokenId] = Field(default=[])
    generation_offset: Any = None
    include_output_logits: bool = False
    include_output_logprobs: bool = False
    length_penalty: float | None = Field(default=None, ge=-10, le=10)
    logprobs: int | None = Field(default=None, ge=0)
    max_total_tokens: int | None = Field(default=None, ge=1)
    min_total_tokens: int | None = Field(default=None, ge=0)
    no_repeat_ngram: int = Field(default=1, ge=1, lt=2**31)
    num_beams: int | None = Field(default=None, ge=1, le=MAX_BEAMS)
    position_ids: Any = None
    prompt: str | None = None
    soft_prompts: Any = None
    stop: list[Phrase] = Field(default=[], max_length=MAX_STOP_STRINGS)
    stop_tokens: list[TokenSequence] = Field(default=[])
    token_index_to_replace: list[Annotated[int, Field(ge=0)]] = Field(default=[])
    tokens: list[TokenId] = Field(default=[])

    @property
    def searches(self) -> bool:
        """Whether a beam search finds the answer."""
        return self.num_beams is not None

    @property
    def draws_beams(self) -> bool:
        """Whether a beam search draws its beams."""
        return self.searches and self.beam_search_type != "DETERMINISTIC"


Rule = tuple[str, Callable[[_Fields], bool], str]
"""A field, when it is wrong, and why."""

GENERATION_RULES: Sequence[Rule[Any]] = (
    ("stream_options", lambda f: f.stream_options is not None and not f.stream, "only allowed with stream"),
    ("seed", lambda f: isinstance(f.seed, list) and len(f.seed) not in (0, f.n), "must hold as many seeds as n says"),
    (
        "timeout",
        lambda f: f.timeout is not None and f.timeout_microseconds is not None,
        "cannot be given together with timeout_microseconds",
    ),
    ("min_tokens", lambda f: f.is_formatted and bool(f.min_tokens), "not supported with response_format"),
)


def _either(name: str, other: str) -> Rule[Completions]:
    return (
        name,
        lambda f: getattr(f, name) not in (None, []) and getattr(f, other) not in (None, []),
        f"cannot be given together with {other}",
    )


def _needs(name: str, other: str) -> Rule[Completions]:
    return name, lambda f: bool(getattr(f, other)) and not getattr(f, name), f"must be given with {other}"


def _with_beams(name: str, reason: str = "not supported with num_beams") -> Rule[Completions]:
    """`name`, where it says anything, contradicts a beam search."""
    nothing = Completions.model_fields[name].default
    return name, lambda f: f.searches and getattr(f, name) != nothing, reason


def _for_drawing(name: str) -> Rule[Completions]:
    reason = "not allowed where beam_search_type is DETERMINISTIC"
    return name, lambda f: f.searches and not f.draws_beams and getattr(f, name) is not None, reason


def _for_beams(name: str) -> Rule[Completions]:
    return name, lambda f: not f.searches and getattr(f, name) is not None, "only allowed with num_beams"


def _for_encoders(name: str) -> Rule[Completions]:
    return name, lambda f: getattr(f, name) != 1, "only allowed for encoder-decoder models"


def _unsupported(name: str) -> Rule[Completions]:
    return name, lambda f: getattr(f, name) is not None, "not supported"


COMPLETION_RULES: Sequence[Rule[Completions]] = (
    ("prompt", lambda f: f.prompt is None and not f.tokens, "either it or tokens must be given"),
    _either("prompt", "tokens"),
    ("prompt", lambda f: f.prompt == "", "must not be empty"),
    _either("max_total_tokens", "max_tokens"),
    _either("min_total_tokens", "min_tokens"),
    ("min_total_tokens", lambda f: f.is_formatted and bool(f.min_total_tokens), "not supported with response_format"),
    _for_encoders("encoder_no_repeat_ngram"),
    _for_encoders("encoder_repetition_penalty"),
    _needs("embedding_to_replace", "token_index_to_replace"),
    _needs("token_index_to_replace", "embedding_to_replace"),
    (
        "token_index_to_replace",
        lambda f: len(set(f.token_index_to_replace)) < len(f.token_index_to_replace),
        "must not hold an index twice",
    ),
    (
        "include_output_logprobs",
        lambda f: f.include_output_logprobs and f.logprobs is not None,
        "cannot be given together with logprobs",
    ),
    (
        "include_output_logits",
        lambda f: f.include_output_logits and (f.include_output_logprobs or f.logprobs is not None),
        "cannot be given together with log-probabilities",
    ),
    (
        "forced_output_tokens",
        lambda f: bool(f.forced_output_tokens) and f.is_formatted,
        "cannot be given together with response_format",
    ),
    _for_beams("early_stopping"),
    _for_beams("length_penalty"),
    (
        "beam_compat_no_post_normalization",
        lambda f: f.beam_compat_no_post_normalization and not f.beam_compat_pre_normalization,
        "only allowed with beam_compat_pre_normalization",
    ),
    _with_beams("stream"),
    _with_beams("n"),
    _with_beams("stop", "not supported with num_beams: use stop_tokens"),
    _with_beams("min_p"),
    _with_beams("xtc_probability"),
    _with_beams("xtc_threshold"),
    _with_beams("forced_output_tokens"),
    ("response_format", lambda f: f.searches and f.is_formatted, "not supported with num_beams"),
    _for_drawing("top_k"),
    _for_drawing("top_p"),
    ("top_p", lambda f: f.draws_beams and f.top_p == 0, "must be greater than 0 with num_beams"),
    (
        "temperature",
        lambda f: f.draws_beams and f.temperature is not None and not 0 < f.temperature <= MAX_BEAM_TEMPERATURE,
        f"must be above 0 and at most {MAX_BEAM_TEMPERATURE:g} where beams are drawn",
    ),
    _unsupported("soft_prompts"),
    _unsupported("position_ids"),
    _unsupported("generation_offset"),
)

# What the documents of the classic form say; the present SDK's allow more.
CLASSIC_RULES: Sequence[Rule[Completions]] = (
    (
        "repetition_penalty",
        lambda f: f.repetition_penalty is not None and f.repetition_penalty < 1,
        "must be at least 1",
    ),
    ("top_p", lambda f: f.top_p == 0, "must be greater than 0"),
)


def read(body: Mapping[str, Any], form: Form) -> Completions:
    """The fields of a completions request. Raises BadRequest or Unprocessable, which name the field."""
    classic = CLASSIC_RULES if form == "classic" else ()
    return obeyed(checked(body, Completions), [*GENERATION_RULES, *COMPLETION_RULES, *classic])


def obeyed(fields: _Fields, rules: Sequence[Rule[_Fields]]) -> _Fields:
    """`fields`. Raises BadRequest for the first rule that they break."""
    for name, is_broken, why in rules:
        if is_broken(fields):
            raise BadRequest(f"{name}: {why}", param=name)
    return fields


def checked(body: Mapping[str, Any], model: type[_Fields]) -> _Fields:
    """`body` as `model`. Raises BadRequest for a value that is out of bounds or unknown, Unprocessable for a type."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _wrong(error, body) from None


def _wrong(error: ValidationError, body: Mapping[str, Any]) -> ClientError:
    problem = first_problem(error)
    if problem.unknown:
        return BadRequest(f"{problem.path}: unknown field", param=problem.path, code="unknown_parameter")
    errors = error.errors(include_url=False)
    if all(_is_of_type(item) for item in errors if item["loc"][:1] == errors[0]["loc"][:1]):
        return Unprocessable(problem.message, param=problem.path, value=value_at(body, problem.path))
    return BadRequest(problem.message, param=problem.path)


def _is_of_type(found: ErrorDetails) -> bool:
    """Whether a JSON type is wrong; pydantic tells a choice of words that is no word as a value out of bounds."""
    return found["type"].endswith("_type") or (found["type"] == "literal_error" and not isinstance(found["input"], str))
