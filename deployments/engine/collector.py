"""Python's garbage collector while a replica imports.

Importing torch and vLLM makes 700,000 objects that stay. The collector would look through them again and again while
there are more of them every moment: that takes a fifth of the imports' time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

IMPORTING = (100_000, 50, 1_000)
"""The collector's thresholds meanwhile: it looks at young objects, not at old ones."""


@contextmanager
def few_collections() -> Iterator[None]:
    """Few collections inside. What there is at the end stays as long as the process: none looks at it again."""
    before = gc.get_threshold()
    gc.set_threshold(*IMPORTING)
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*before)
