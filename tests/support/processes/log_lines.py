"""Everything that loggers write, to test what they must not write."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from app.telemetry.logs import JsonFormatter


class _Lines(logging.Handler):
    """Every line of every logger, with tracebacks."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.extend((self.format(record), JsonFormatter().format(record)))


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """The lines of all levels that are logged while the block runs, as text and as JSON."""
    handler, root = _Lines(), logging.getLogger()
    levels = {logger: logger.level for logger in (root, logging.getLogger("switchyard"))}
    for logger in levels:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield handler.lines
    finally:
        for logger, level in levels.items():
            logger.removeHandler(handler)
            logger.setLevel(level)
