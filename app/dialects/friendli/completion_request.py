"""A completion request in vLLM's fields.

vLLM's own `/v1/completions` gets the requests that it supports. `EXTENDED_PATH` is the model applications' own route:
the same fields, and `seeds`, `beam` and `replace_embeddings`. Other extensions are logits processors (`vllm_xargs`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from app.dialects.common.engine_request import draw_seed
from app.dialects.friendli.fields import Completions, TokenSequence
from app.dialects.friendli.sampling import sampling, seed_fields, seeds_count_up
from app.internal_api import EXTENDED_PATH, LARGEST_SEED, Xarg
from app.routing.traffic import Random

PATH = "/v1/completions"
_PASSED_ON = ("frequency_penalty", "presence_penalty", "repetition_penalty", "min_p", "top_k", "top_p")


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """The client's fields, and one seed per choice."""

    fields: Completions
    seeds: Sequence[int]

    @classmethod
    def of(cls, fields: Completions, random: Random) -> Self:
        """Draws a seed if the client gave none."""
        if isinstance(fields.seed, list) and fields.seed:
            return cls(fields, fields.seed)
        first = draw_seed(random) if isinstance(fields.seed, list) else fields.seed
        return cls(fields, [(first + index) % (LARGEST_SEED + 1) for index in range(fields.n)])

    @property
    def path(self) -> str:
        """The engine's route that can do it."""
        extended = self.fields.searches or self.fields.token_index_to_replace or not seeds_count_up(self.seeds)
        return EXTENDED_PATH if extended else PATH

    @property
    def top_logprobs(self) -> int | None:
        """The number of likeliest tokens listed for each token; None for no log-probabilities at all."""
        fields = self.fields
        return 0 if fields.include_output_logprobs or fields.include_output_logits else fields.logprobs

    @property
    def gets_text_at_once(self) -> bool:
        """Whether the engine sends each token's text with the token, and no log-probabilities."""
        return self.top_logprobs is None and not self.fields.stop

    def engine_body(self) -> dict[str, Any]:
        """vLLM's request, except for what depends on its model. Raises BadRequest."""
        fields = self.fields
        body: dict[str, Any] = {
            "prompt": fields.tokens if fields.prompt is None else fields.prompt,
            "stream": fields.stream,
            "return_token_ids": True,
        }
        if self.top_logprobs is not None:
            body |= {"logprobs": self.top_logprobs, "return_tokens_as_token_ids": True}
        body |= {name: value for name in _PASSED_ON if (value := getattr(fields, name)) is not None}
        if fields.token_index_to_replace:
            replaced = {"indices": fields.token_index_to_replace, "values": fields.embedding_to_replace}
            body["replace_embeddings"] = replaced
        return {**body, **(self._beam_search() if fields.searches else self._sampling())}

    def _sampling(self) -> dict[str, Any]:
        fields, count_up = self.fields, seeds_count_up(self.seeds)
        body = sampling(fields, several=fields.n > 1 and count_up)
        body |= seed_fields(self.seeds) if count_up else {"seeds": list(self.seeds)}
        if processors := {**body.get("vllm_xargs", {}), **self._processors()}:
            body["vllm_xargs"] = processors
        if fields.stop:
            body["stop"] = fields.stop
        if stop_ids := sorted({*ids_in(fields.stop_tokens), *fields.eos_token}):
            body["stop_token_ids"] = stop_ids
        if fields.eos_token or fields.forced_output_tokens:
            body["ignore_eos"] = True
        return body

    def _processors(self) -> dict[str, Any]:
        processors: dict[str, Any] = {}
        if self.fields.no_repeat_ngram > 1:
            processors[Xarg.NO_REPEAT_NGRAM] = self.fields.no_repeat_ngram
        if self.fields.forced_output_tokens:
            processors[Xarg.FORCED_OUTPUT_TOKENS] = self.fields.forced_output_tokens
        return processors

    def _beam_search(self) -> dict[str, Any]:
        fields = self.fields
        beam: dict[str, Any] = {"width": fields.num_beams, "type": fields.beam_search_type, "seed": self.seeds[0]}
        if fields.length_penalty is not None:
            beam["length_penalty"] = fields.length_penalty
        if fields.early_stopping is not None:
            beam["early_stopping"] = fields.early_stopping
        if fields.eos_token:
            beam["eos_token_ids"] = fields.eos_token
        if ids := ids_in(fields.stop_tokens):
            beam["stop_tokens"] = [[id] for id in ids]
        if fields.no_repeat_ngram > 1:
            beam["no_repeat_ngram"] = fields.no_repeat_ngram
        # A deterministic search ranks its beams the same at any temperature.
        sampled = fields.draws_beams and fields.temperature is not None
        return {"beam": beam, **({"temperature": fields.temperature} if sampled else {})}


def ids_in(sequences: Sequence[TokenSequence]) -> list[int]:
    """The distinct ids in all sequences, sorted."""
    return sorted({id for sequence in sequences for id in sequence.tokens})
