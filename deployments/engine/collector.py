"""Slows down Python's garbage collector during a replica's imports.

Importing torch and vLLM makes 700,000 objects that stay. The collector would scan them again and again while they
grow in number, which takes a fifth of the imports' time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

IMPORTING = (100_000, 50, 1_000)
"""The collector's thresholds during the imports: it scans young objects and hardly ever old ones."""


@contextmanager
def few_collections() -> Iterator[None]:
    """Collects rarely inside the block, then freezes what exists: it stays until the process ends."""
    before = gc.get_threshold()
    gc.set_threshold(*IMPORTING)
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*before)
