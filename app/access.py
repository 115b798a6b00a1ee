"""Who is calling. One place reads credentials, however a dialect's clients send them."""

from collections.abc import Mapping

_HEADERS = ("api-key", "x-api-key")


def credential(headers: Mapping[str, str]) -> str | None:
    """The caller's key or token (lower-case header names), or None: `Authorization: Bearer`, `api-key`, `x-api-key`."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return next((headers[name] for name in _HEADERS if headers.get(name)), None)
