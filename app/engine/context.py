"""The model's context window: the number of tokens that a prompt leaves for the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def max_tokens(body: Mapping[str, Any]) -> int | None:
    """The limit on the answer's tokens in the vLLM request `body`, if it has one."""
    for name in _LIMITS:
        if name in body:
            found: int | None = body[name]
            return found
    return None


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The token ids of a request's prompts. `context` is the model's length in tokens, prompt and answer together.

    `is_partial`: the last prompt has more than these ids, which exceed the context.
    """

    ids: Sequence[Sequence[int]]
    context: int
    is_partial: bool = False

    @property
    def longest(self) -> int:
        """The length of the longest prompt, in tokens."""
        return max(map(len, self.ids))

    @property
    def counted(self) -> str:
        """The length of the longest prompt, for errors."""
        return f"more than {self.context}" if self.is_partial else str(self.longest)

    @property
    def room(self) -> int:
        """The tokens that the longest prompt leaves for the answer: the largest `max_tokens`. Below 1: none."""
        return self.context - self.longest
