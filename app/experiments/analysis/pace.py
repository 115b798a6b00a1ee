"""The pace of looks: at most one a second, and at most a tenth of the time."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

EVERY_S = 1.0
REST = 10.0
"""The length of the pause after a turn, as a multiple of the turn's length."""

TURN_S = 0.2
"""The length of a turn: it ends with the look that reaches this, so that batches do not wait for long."""


class Pace:
    """`with pace:` is one turn. `timer` counts seconds."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._began = self._next = timer()

    def allows(self) -> bool:
        """Whether a turn may begin."""
        return self._timer() >= self._next

    def is_over(self) -> bool:
        """Whether the turn's time is up."""
        return self._timer() - self._began >= TURN_S

    def __enter__(self) -> Self:
        self._began = self._timer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = self._timer()
        self._next = now + max(EVERY_S, REST * (now - self._began))
