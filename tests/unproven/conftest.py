"""The same application as `tests/real` has."""

from tests.real.conftest import application

__all__ = ["application"]
