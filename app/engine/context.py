"""The model's context: how many tokens a prompt leaves for the answer."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The token ids of a request's prompts. `context` is the model's length in tokens, prompt and answer together."""

    ids: Sequence[Sequence[int]]
    context: int

    @property
    def longest(self) -> int:
        """The length of the longest prompt, in tokens."""
        return max(map(len, self.ids))

    @property
    def room(self) -> int:
        """What the longest prompt leaves for the answer, in tokens: the largest `max_tokens`. Below 1 there is none."""
        return self.context - self.longest
