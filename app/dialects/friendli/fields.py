"""The fields of Friendli's requests: types, bounds, and what excludes what. `HONOURED` says what becomes of each.

Contract: Friendli's API reference (`/v1/completions` of its model APIs, dedicated endpoints and containers), and what
its two SDKs send. Null is absent, and so is an empty list. Where the two differ, the `Form` of the request decides.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from app.dialects.json_body import value_at
from app.dialects.validation import first_problem
from app.errors import BadRequest, ClientError, Unprocessable
from app.internal_api import LARGEST_SEED, MAX_BEAMS, MAX_STOP_STRINGS

MAX_CHOICES = 128
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


class GenerationFields(Strict):
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


class Completions(GenerationFields):
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
