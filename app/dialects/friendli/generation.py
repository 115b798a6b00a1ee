"""One completion of Friendli's: what its client asked for, and the same in vLLM's words.

What vLLM's own `/v1/completions` can do is asked there. `EXTENDED_PATH` is the model applications' own route, which has
its fields and `seeds`, `beam` and `replace_embeddings` beside them; other extras are processors (`vllm_xargs`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from app.dialects.common.engine_request import draw_seed
from app.dialects.friendli.fields import Completions, TokenSequence
from app.dialects.friendli.sampling import counts_up, sampling, seeded
from app.internal_api import EXTENDED_PATH, LARGEST_SEED, Xarg, to_int64_seed
from app.routing.traffic import Random

PATH = "/v1/completions"
_PASSED_ON = ("frequency_penalty", "presence_penalty", "repetition_penalty", "min_p", "top_k", "top_p")


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion as its client asked for it. `seeds` are its choices'."""

    fields: Completions
    seeds: Sequence[int]

    @classmethod
    def of(cls, fields: Completions, random: Random) -> Self:
        """With seeds drawn where the client gave none."""
        if isinstance(fields.seed, list) and fields.seed:
            return cls(fields, fields.seed)
        first = draw_seed(random) if isinstance(fields.seed, list) else fields.seed
        return cls(fields, [(first + index) % (LARGEST_SEED + 1) for index in range(fields.n)])

    @property
    def path(self) -> str:
        """Where it is asked."""
        extended = self.fields.searches or self.fields.token_index_to_replace or not counts_up(self.seeds)
        return EXTENDED_PATH if extended else PATH

    @property
    def top_logprobs(self) -> int | None:
        """How many log-probabilities each token tells beside its own; None for not even that."""
        fields = self.fields
        return 0 if fields.include_output_logprobs or fields.include_output_logits else fields.logprobs

    def question(self) -> dict[str, Any]:
        """vLLM's request, but for what depends on its model. Raises BadRequest."""
        fields = self.fields
        question: dict[str, Any] = {
            "prompt": fields.tokens if fields.prompt is None else fields.prompt,
            "stream": fields.stream,
            "return_token_ids": True,
        }
        if self.top_logprobs is not None:
            question |= {"logprobs": self.top_logprobs, "return_tokens_as_token_ids": True}
        question |= {name: value for name in _PASSED_ON if (value := getattr(fields, name)) is not None}
        if fields.token_index_to_replace:
            replaced = {"indices": fields.token_index_to_replace, "values": fields.embedding_to_replace}
            question["replace_embeddings"] = replaced
        return {**question, **(self._searched() if fields.searches else self._sampled())}

    def _sampled(self) -> dict[str, Any]:
        fields, one_request = self.fields, counts_up(self.seeds)
        asked = sampling(fields, several=fields.n > 1 and one_request)
        asked |= (
            seeded(self.seeds)
            if one_request
            else {"seeds": [to_int64_seed(s) % (LARGEST_SEED + 1) for s in self.seeds]}
        )
        if extras := {**asked.get("vllm_xargs", {}), **self._processors()}:
            asked["vllm_xargs"] = extras
        if fields.stop:
            asked["stop"] = fields.stop
        if stop_ids := sorted({*ids_in(fields.stop_tokens), *fields.eos_token}):
            asked["stop_token_ids"] = stop_ids
        if fields.eos_token or fields.forced_output_tokens:
            asked["ignore_eos"] = True
        return asked

    def _processors(self) -> dict[str, Any]:
        fields = self.fields
        repeats: dict[str, Any] = {Xarg.NO_REPEAT_NGRAM: fields.no_repeat_ngram} if fields.no_repeat_ngram > 1 else {}
        forced: dict[str, Any] = (
            {Xarg.FORCED_OUTPUT_TOKENS: fields.forced_output_tokens} if fields.forced_output_tokens else {}
        )
        return {**repeats, **forced}

    def _searched(self) -> dict[str, Any]:
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
        # A search that draws nothing ranks the same at any temperature.
        drawn = fields.draws_beams and fields.temperature is not None
        return {"beam": beam, **({"temperature": fields.temperature} if drawn else {})}


def ids_in(sequences: Sequence[TokenSequence]) -> list[int]:
    """Every id in any of the sequences, once."""
    return sorted({id for sequence in sequences for id in sequence.tokens})
