"""Commands and checks make many HTTP clients."""

from ssl import SSLContext

import pytest


@pytest.fixture(scope="session", autouse=True)
def _trusts_one_authority(private_authority: SSLContext) -> None:
    """Everything here."""
