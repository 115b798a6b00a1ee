"""The version of this product."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def own_version() -> str | None:
    """The installed version; None in a checkout that is not installed."""
    try:
        return version("switchyard")
    except PackageNotFoundError:
        return None
