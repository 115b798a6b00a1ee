"""The fields of Friendli's requests: types and bounds. `rules` has the combinations that are excluded.

Contract: Friendli's API reference (`/v1/completions` of its model APIs, dedicated endpoints and containers), and what
its two SDKs send. Null is absent, and so is an empty list. Where the two differ, the `Form` of the request decides.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from app.dialects.base import is_openais_sdk
from app.dialects.bodies import Problem, validated, value_at
from app.dialects.common.fields import (
    GREEDY_N,
    GREEDY_TOP_P,
    MODEL,
    REST_OF_THE_CONTEXT,
    USER,
    NonEmpty,
    absent,
    both,
    described_by,
    either,
    given,
    values,
)
from app.errors import BadRequest, ClientError, Unprocessable
from app.internal_api import LARGEST_SEED, MAX_BAD_WORDS, MAX_BEAMS, MAX_SEEDS, MAX_STOP_STRINGS

Form = Literal["classic", "modern"]
"""Which events a client reads in a stream, in which alone the two differ: OpenAI's chunks ("modern", the current SDK),
or those of Friendli's documentation ("classic", the previous one)."""

SDK = "friendli-core"
"""A part of the current SDK's user agent."""


def form(headers: Mapping[str, str]) -> Form:
    """The form of stream that a client reads. The OpenAI SDK on Friendli's own paths reads OpenAI's chunks."""
    is_modern = SDK in headers.get("user-agent", "") or is_openais_sdk(headers)
    return "modern" if is_modern else "classic"


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]
Phrase = Annotated[str, Field(min_length=1)]
Microseconds = Annotated[int, Field(ge=1, lt=2**63)]
ModelName = Annotated[str | None, Field(description=f"{MODEL}, or both as `endpoint:deployment`")]

EXCLUDED_STOP = "vLLM's; excluded from the answer"
TOOLS = "vLLM's; functions only"
_PROCESSOR = "a logits processor"
_PROCESSOR_OR_SEARCH = "a logits processor; in a beam search, the search itself"
_SEARCH_ONLY = "by the deployment's beam search; an error without `num_beams`"
_ENCODER_ONLY = "rejected except 1: no encoder-decoder model is served"


class ExactFields(BaseModel):
    """Fields of the exact JSON type; unknown ones are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


_Fields = TypeVar("_Fields", bound=ExactFields)


class TokenSequence(ExactFields):
    """``{"tokens": [1, 2]}``."""

    tokens: list[TokenId] = []


class JsonSchema(ExactFields):
    """The schema of type `json_schema`, nested as in OpenAI's API; OpenAI's other members have no effect."""

    model_config = ConfigDict(extra="ignore")

    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(ExactFields):
    """`response_format`. `schema` is a JSON schema, as text or as an object, or a regular expression."""

    model_config = described_by(
        either(
            both(values({"type": ["text"]}), absent("schema", "json_schema")),
            both(values({"type": ["json_object"]}), absent("json_schema")),
            both(values({"type": ["json_schema"]}), given("json_schema")),
            both(
                values({"type": ["regex"]}), given("schema", {"type": "string", "minLength": 1}), absent("json_schema")
            ),
        )
    )

    type: Literal["text", "json_object", "json_schema", "regex"]
    schema_: str | dict[str, Any] | None = Field(default=None, alias="schema")
    json_schema: JsonSchema | None = None


class StreamOptions(ExactFields):
    """`stream_options`."""

    include_usage: bool = False


class GenerationFields(ExactFields):
    """The fields that completions and chat share."""

    eos_token: list[TokenId] = Field(default=[], description="ends the answer instead of the model's own")
    frequency_penalty: Penalty | None = None
    max_tokens: int | None = Field(default=None, ge=1, description=REST_OF_THE_CONTEXT)
    min_p: Share | None = None
    min_tokens: int | None = Field(
        default=None, ge=0, description="vLLM's; an error with `response_format`, and with tools"
    )
    model: ModelName = None
    n: int = Field(default=1, ge=1, le=MAX_SEEDS, description=GREEDY_N)
    presence_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(
        default=None,
        gt=0,
        description="vLLM's; at least 1 in completions unless the client is the current SDK, otherwise above 0",
    )
    response_format: ResponseFormat | None = Field(
        default=None,
        description="vLLM's structured outputs: text, `json_object` with and without a schema, `json_schema`, regex",
    )
    seed: Seed | list[Seed] = Field(
        default=[], description="one for the first choice, counted up for the others, or one for each choice"
    )
    stream: bool = Field(default=False, description="events in the client's form")
    stream_options: StreamOptions | None = Field(
        default=None, description="`include_usage` adds the usage; the classic form of completions always has it"
    )
    temperature: float | None = Field(default=None, ge=0, description="vLLM's; above 2 by a logits processor")
    timeout: Microseconds | None = Field(default=None, description="the reference's name for `timeout_microseconds`")
    timeout_microseconds: Microseconds | None = Field(
        default=None,
        description="the time for the whole answer, then 429; if the answer has started, the connection closes",
    )
    top_k: int | None = Field(default=None, ge=0, lt=2**31, description="vLLM's; 0 is off")
    top_p: Share | None = Field(
        default=None, description=f"{GREEDY_TOP_P}, and an error in the classic form of completions"
    )
    user: str | None = Field(default=None, description=USER)
    xtc_probability: Share | None = Field(default=None, description=_PROCESSOR)
    xtc_threshold: Share | None = Field(default=None, description=_PROCESSOR)

    def is_given(self, name: str) -> bool:
        """Whether a field is set: an empty list and false count as absent."""
        value = getattr(self, name)
        return value is not None and value is not False and value != []

    @property
    def is_formatted(self) -> bool:
        """Whether a grammar constrains the answer."""
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0 or self.top_p == 0

    @property
    def shows_usage(self) -> bool:
        """Whether a stream of OpenAI's chunks ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def timeout_s(self) -> float | None:
        """The client's timeout for the whole answer, in seconds."""
        wanted = self.timeout_microseconds or self.timeout
        return None if wanted is None else wanted / 1e6


class Completions(GenerationFields):
    """POST …/v1/completions."""

    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("soft_prompts", "position_ids", "generation_offset"), "not supported"
    )

    bad_word_tokens: list[TokenSequence] = Field(default=[], max_length=MAX_BAD_WORDS, description=_PROCESSOR_OR_SEARCH)
    bad_words: list[Phrase] = Field(
        default=[],
        max_length=MAX_BAD_WORDS,
        description="tokenized here, then as `bad_word_tokens`: exactly that spelling",
    )
    beam_compat_no_post_normalization: bool = Field(
        default=False,
        description="accepted with `beam_compat_pre_normalization`: both request the way in which transformers scores "
        "beams, which is the deployment's",
    )
    beam_compat_pre_normalization: bool = Field(default=False, description="checked; changes nothing alone")
    beam_search_type: Literal["DETERMINISTIC", "NAIVE_SAMPLING", "STOCHASTIC"] = Field(
        default="DETERMINISTIC", description="all three, by the deployment's beam search"
    )
    early_stopping: bool | None = Field(default=None, description=_SEARCH_ONLY)
    embedding_to_replace: list[float] = Field(
        default=[], description="by the deployment, with `token_index_to_replace`"
    )
    encoder_no_repeat_ngram: int = Field(default=1, ge=1, description=_ENCODER_ONLY)
    encoder_repetition_penalty: float = Field(default=1.0, gt=0, description=_ENCODER_ONLY)
    forced_output_tokens: list[TokenId] = Field(
        default=[], description="a logits processor; the answer is these tokens and no more"
    )
    generation_offset: Any = None
    include_output_logits: bool = Field(
        default=False,
        description="`choices[].logits`, one number per token, if the engine runs with `logprobs_mode: raw_logits`; "
        "otherwise an error",
    )
    include_output_logprobs: bool = Field(
        default=False, description="`choices[].logprobs` is a list, one number per token"
    )
    length_penalty: float | None = Field(default=None, ge=-10, le=10, description=_SEARCH_ONLY)
    logprobs: int | None = Field(default=None, ge=0, description="`choices[].logprobs` in OpenAI's format")
    max_total_tokens: int | None = Field(
        default=None, ge=1, description="like `max_tokens`, including the prompt's length"
    )
    min_total_tokens: int | None = Field(
        default=None, ge=0, description="like `min_tokens`, including the prompt's length"
    )
    no_repeat_ngram: int = Field(default=1, ge=1, lt=2**31, description=_PROCESSOR_OR_SEARCH)
    num_beams: int | None = Field(
        default=None,
        ge=1,
        le=MAX_BEAMS,
        description=f"1 to {MAX_BEAMS}, by the deployment's beam search; the answer is the best beam",
    )
    position_ids: Any = None
    prompt: NonEmpty | None = Field(default=None, description="tokenized here; exactly one of it and `tokens`")
    soft_prompts: Any = None
    stop: list[Phrase] = Field(default=[], max_length=MAX_STOP_STRINGS, description=EXCLUDED_STOP)
    stop_tokens: list[TokenSequence] = Field(
        default=[], description="any id in any of the sequences stops; excluded from the answer"
    )
    token_index_to_replace: list[TokenId] = Field(
        default=[], description="by the deployment, with `embedding_to_replace`"
    )
    tokens: list[TokenId] = Field(default=[], description="the prompt as ids")

    @property
    def searches(self) -> bool:
        """Whether the answer comes from a beam search."""
        return self.num_beams is not None

    @property
    def draws_beams(self) -> bool:
        """Whether the answer comes from a beam search that samples its beams."""
        return self.searches and self.beam_search_type != "DETERMINISTIC"


def checked(body: Mapping[str, Any], model: type[_Fields]) -> _Fields:
    """`body` as `model`. Raises BadRequest for an unknown field or a value out of bounds, Unprocessable for a type."""

    def wrong(problem: Problem) -> ClientError:
        if problem.unknown:
            return BadRequest(f"{problem.path}: unknown field", param=problem.path, code="unknown_parameter")
        if problem.wrong_type:
            return Unprocessable(problem.message, param=problem.path, value=value_at(body, problem.path))
        return BadRequest(problem.message, param=problem.path)

    return validated(model, body, wrong)
