"""How many examples hypothesis tries. A property may set its own number, where it says why.

A run for everybody tries the same 25 examples every time: it must not fail by chance. A nightly run
(SWITCHYARD_NIGHTLY=1) tries 200 new ones. Neither has a deadline: a busy machine is no failure.
"""

import gc
import os

from hypothesis import settings

NIGHTLY = os.environ.get("SWITCHYARD_NIGHTLY") == "1"

settings.register_profile("every run", deadline=None, max_examples=25, derandomize=True, database=None)
settings.register_profile("nightly", deadline=None, max_examples=200, derandomize=False, database=None, print_blob=True)
settings.load_profile("nightly" if NIGHTLY else "every run")


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: to look through them again and again takes a tenth of the CPU."""
    gc.collect()
    gc.freeze()
