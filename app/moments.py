"""Times on the command line and in its messages: shown in one form, which is one of those that are read."""

from datetime import UTC, datetime

_UTC = " UTC"


def shown(at: float) -> str:
    """Unix seconds as ``2026-11-12 14:02:11 UTC``."""
    return f"{datetime.fromtimestamp(int(at), UTC):%Y-%m-%d %H:%M:%S}{_UTC}"


def minute(at: float) -> str:
    """Unix seconds that are known to the minute, as ``2026-11-12 14:02 UTC``."""
    return f"{datetime.fromtimestamp(int(at), UTC):%Y-%m-%d %H:%M}{_UTC}"


def read(text: str) -> datetime:
    """A date or a time (ISO 8601), in UTC unless it has another zone. Raises ValueError."""
    moment = datetime.fromisoformat(text.removesuffix(_UTC))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
