"""The number of examples that hypothesis tries. A property may set its own number, with a reason. An ordinary run tries
the same 15 examples every time, so that it cannot fail by chance. A nightly run (SWITCHYARD_NIGHTLY=1) tries 200 new
ones. Neither has a deadline, since a busy machine is not a failure.
"""

import gc
import os
from collections.abc import Iterator
from ssl import SSLContext

import pytest
from hypothesis import settings

from tests.support.processes.certificates import certificate_for, server_context

NIGHTLY = os.environ.get("SWITCHYARD_NIGHTLY") == "1"

settings.register_profile("every run", deadline=None, max_examples=15, derandomize=True, database=None)
settings.register_profile("nightly", deadline=None, max_examples=200, derandomize=False, database=None, print_blob=True)
settings.load_profile("nightly" if NIGHTLY else "every run")


@pytest.fixture(scope="session")
def private_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SSLContext]:
    """The TLS settings of a server that everything trusts while this lives, and no other.

    It also saves time: each HTTP client loads all authorities, and the usual 140 take 20 to 70 ms of CPU.
    """
    certificate, key = certificate_for("127.0.0.1", tmp_path_factory.mktemp("tls"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(certificate))
        yield server_context(certificate, key)


def pytest_collection_finish() -> None:
    """Modules and tests live until the end: the garbage collector's repeated passes over them take a tenth of the
    CPU."""
    gc.collect()
    gc.freeze()
