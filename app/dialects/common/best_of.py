"""`best_of` of the completions API, which vLLM does not have: generate more, keep the likeliest."""

from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self

from pydantic_core import from_json

from app.dialects.json_body import dump
from app.errors import BadRequest, Broken


@dataclass(frozen=True, slots=True)
class BestOf:
    """Of `best_of` candidates per prompt, the `keep` with the highest mean log-probability per token."""

    best_of: int
    keep: int
    show_logprobs: bool

    @classmethod
    def take(cls, body: dict[str, Any]) -> Self | None:
        """Takes `best_of` out of `body` and has it generate the candidates; None where there is nothing to choose.

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

    def choose(self, body: bytes) -> bytes:
        """The answer with the best candidates only, in order of merit. Raises Broken on an answer without them."""
        try:
            return dump(self.kept(from_json(body)))
        except (ValueError, KeyError, TypeError) as error:
            raise Broken("The deployment's answer is no completion") from error

    def kept(self, answer: dict[str, Any]) -> dict[str, Any]:
        """`choose` for an answer that has been read."""
        choices = answer["choices"]
        groups = [choices[at : at + self.best_of] for at in range(0, len(choices), self.best_of)]
        kept = [choice for group in groups for choice in sorted(group, key=_merit, reverse=True)[: self.keep]]
        for index, choice in enumerate(kept):
            choice["index"] = index
            if not self.show_logprobs:
                choice["logprobs"] = None
        return {**answer, "choices": kept}


def _merit(choice: dict[str, Any]) -> float:
    # An echoed prompt's first token has no log-probability; the prompt's others are the same for every candidate.
    known = [value for value in choice["logprobs"]["token_logprobs"] if value is not None]
    return fmean(known) if known else float("-inf")
