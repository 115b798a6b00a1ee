"""`best_of` of the completions API, which vLLM does not have: generate more candidates, keep the likeliest."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self

from app.errors import BadRequest

FIELD_NAMES: Mapping[str, str] = {"n": "best_of"}
"""The client's name of the number of choices that vLLM generates (`Call.field_names`)."""


@dataclass(frozen=True, slots=True)
class BestOf:
    """Keeps, of `best_of` candidates per prompt, the `keep` with the highest mean log-probability per token."""

    best_of: int
    keep: int
    show_logprobs: bool

    @classmethod
    def take(cls, body: dict[str, Any]) -> Self | None:
        """Replaces `best_of` in `body` by the fields that generate the candidates; None if there is nothing to choose.

        Raises BadRequest for a `best_of` below `n`, or with a stream.
        """
        n = body.get("n", 1)
        best_of = body.pop("best_of", n)
        if best_of < n:
            raise BadRequest(f"best_of: must be at least n ({n})", param="best_of")
        if best_of == n:
            return None
        if body.get("stream"):
            raise BadRequest("best_of: results cannot be streamed; set stream to false", param="best_of")
        show_logprobs = "logprobs" in body
        body.setdefault("logprobs", 0)
        body["n"] = best_of
        return cls(best_of, n, show_logprobs)

    def select(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The completion with the best candidates of each prompt only, the likeliest first."""
        choices = answer["choices"]
        groups = [choices[at : at + self.best_of] for at in range(0, len(choices), self.best_of)]
        kept = [choice for group in groups for choice in sorted(group, key=_mean_logprob, reverse=True)[: self.keep]]
        for index, choice in enumerate(kept):
            choice["index"] = index
            if not self.show_logprobs:
                choice["logprobs"] = None
        return {**answer, "choices": kept}


def _mean_logprob(choice: dict[str, Any]) -> float:
    # An echoed prompt's first token has no log-probability; its others are the same in every candidate.
    known = [value for value in choice["logprobs"]["token_logprobs"] if value is not None]
    return fmean(known) if known else float("-inf")
