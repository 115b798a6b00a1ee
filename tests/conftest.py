"""The number of examples that hypothesis tries. A property may set its own number, with a reason. An ordinary run tries
the same 15 examples every time, so that it cannot fail by chance. A nightly run (SWITCHYARD_NIGHTLY=1) tries 200 new
ones. Neither has a deadline, since a busy machine is not a failure.
"""

import gc
import os

from hypothesis import settings

NIGHTLY = os.environ.get("SWITCHYARD_NIGHTLY") == "1"

settings.register_profile("every run", deadline=None, max_examples=15, derandomize=True, database=None)
settings.register_profile("nightly", deadline=None, max_examples=200, derandomize=False, database=None, print_blob=True)
settings.load_profile("nightly" if NIGHTLY else "every run")


def pytest_collection_finish() -> None:
    """Modules and tests live until the end: the garbage collector's repeated passes over them take a tenth of the
    CPU."""
    gc.collect()
    gc.freeze()
