"""The body of `POST /switchyard/completions`: vLLM's own fields and this route's."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError

from app.internal_api import LARGEST_SEED, MAX_BEAMS, MAX_SEEDS
from deployments.engine.beam_search.settings import Kind

TokenId = Annotated[int, Field(ge=0, strict=True)]
Sequence = Annotated[list[TokenId], Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED, strict=True)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BeamSearch(_Part):
    """A beam search; `deployments.engine.beam_search.settings` documents each field. Sequences are token ids."""

    width: int = Field(ge=1, le=MAX_BEAMS, strict=True)
    type: Kind = Kind.DETERMINISTIC
    length_penalty: float = Field(default=1.0, ge=-10, le=10)
    early_stopping: Annotated[bool, Field(strict=True)] | Literal["never"] = False
    seed: Seed | None = None
    eos_token_ids: list[TokenId] | None = None
    stop_tokens: list[Sequence] = []
    bad_word_tokens: list[Sequence] = []
    no_repeat_ngram: int = Field(default=1, ge=1, strict=True)


class ReplacedEmbeddings(_Part):
    """Embeddings for some tokens of the prompt. `values` holds one after the other: hidden_size numbers per index."""

    indices: list[Annotated[int, Field(ge=0, strict=True)]] = Field(min_length=1)
    values: list[Finite]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.indices)) < len(self.indices):
            raise _rejected("replace_embeddings.indices", "must not hold an index twice")
        return self


_WITH_BEAM = frozenset(
    "add_special_tokens beam cache_salt frequency_penalty logprobs max_tokens min_tokens model n presence_penalty "
    "priority prompt repetition_penalty replace_embeddings request_id return_token_ids return_tokens_as_token_ids "
    "session_id skip_special_tokens spaces_between_special_tokens temperature top_k top_p truncate_prompt_tokens "
    "truncation_side user".split()
)


class ExtendedCompletionRequest(CompletionRequest):  # type: ignore[misc]  # vLLM is not followed
    """Every field of vLLM's completions, for one prompt; unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")

    prompt: str | list[TokenId]
    n: int = Field(default=1, ge=1)
    prompt_embeds: None = None
    use_beam_search: Literal[False] = False
    seeds: list[Seed] | None = Field(default=None, min_length=1, max_length=MAX_SEEDS)
    beam: BeamSearch | None = None
    replace_embeddings: ReplacedEmbeddings | None = None

    @model_validator(mode="after")
    def _seeds_are_choices(self) -> Self:
        if self.seeds is None:
            return self
        if self.seed is not None:
            raise _rejected("seed", "cannot be given together with seeds")
        if self.n not in (1, len(self.seeds)):
            raise _rejected("n", f"must be the number of seeds, {len(self.seeds)}")
        self.n = len(self.seeds)
        return self

    @model_validator(mode="after")
    def _fits_a_beam_search(self) -> Self:
        if self.beam is None:
            return self
        for name in sorted(self.model_fields_set - _WITH_BEAM):
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            if getattr(self, name) not in (None, default):
                raise _rejected(name, "cannot be given together with beam")
        if self.n > self.beam.width:
            raise _rejected("n", f"must not exceed beam.width, {self.beam.width}")
        if self.beam.type is Kind.DETERMINISTIC:
            for name in ("top_k", "top_p"):
                if getattr(self, name) is not None:
                    raise _rejected(name, "cannot be given where beam.type is DETERMINISTIC")
        elif self.temperature == 0:
            raise _rejected("temperature", f"must be greater than 0 where beam.type is {self.beam.type}")
        return self

    def to_sampling_params(self, max_tokens: int, default_sampling_params: dict[str, Any] | None = None) -> Any:
        """vLLM's parameters. Separate engine requests do not count as `n`, which greedy sampling limits to 1."""
        several = self.seeds is not None or self.beam is not None
        request = self.model_copy(update={"n": 1}) if several else self
        return CompletionRequest.to_sampling_params(request, max_tokens, default_sampling_params)


def _rejected(parameter: str, why: str) -> VLLMValidationError:
    return VLLMValidationError(f"{parameter} {why}", parameter=parameter)
