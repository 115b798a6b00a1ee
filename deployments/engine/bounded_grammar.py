"""Bounds the time in which the engine follows a grammar. Importing it imports vLLM.

In each step the scheduler asks the grammar of each request which tokens may come next, and tells it which one came. All
answers wait for this. xgrammar parses as Earley did: with an ambiguous grammar, or an expression like `(a*)*b`, a token
takes longer the more came before, up to the square or cube of their number.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

ALLOWED_S, ALLOWED_S_PER_TOKEN = 1.0, 0.005
"""CPU time that one answer may take from all others."""


class BoundedGrammar(StructuredOutputGrammar):  # type: ignore[misc]  # vLLM ships no types
    """Follows `grammar` while there is time; then it calls `end` once and allows everything without following it."""

    def __init__(
        self,
        grammar: Any,
        end: Callable[[], object],
        *,
        allowed_s: float = ALLOWED_S,
        allowed_s_per_token: float = ALLOWED_S_PER_TOKEN,
    ) -> None:
        self._grammar, self._end = grammar, end
        self._left_s, self._s_per_token = allowed_s, allowed_s_per_token

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Whether the tokens continue the text. vLLM's scheduler does not survive a False for a draft."""
        if self._left_s < 0:
            return True
        with self._timed(len(tokens)):
            accepted: bool = self._grammar.accept_tokens(request_id, tokens)
        return accepted

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Those of the drafts `tokens` that continue the text."""
        if self._left_s < 0:
            return []
        with self._timed():
            valid: list[int] = self._grammar.validate_tokens(tokens)
        return valid

    def fill_bitmask(self, bitmask: Any, idx: int) -> None:
        """Writes which tokens may come next to row `idx`: a bit each."""
        if self._left_s < 0:
            bitmask[idx].fill_(-1)
            return
        with self._timed():
            self._grammar.fill_bitmask(bitmask, idx)

    def rollback(self, num_tokens: int) -> None:
        """Takes the last tokens back."""
        if self._left_s >= 0:
            self._grammar.rollback(num_tokens)

    def is_terminated(self) -> bool:
        """Whether the text is complete."""
        terminated: bool = self._grammar.is_terminated()
        return terminated

    def reset(self) -> None:
        """Begins the text anew; the time that is used stays so."""
        self._grammar.reset()

    @contextmanager
    def _timed(self, tokens: int = 0) -> Iterator[None]:
        start = time.thread_time()
        try:
            yield
        finally:
            self._left_s += tokens * self._s_per_token - (time.thread_time() - start)
            if self._left_s < 0:
                self._end()
