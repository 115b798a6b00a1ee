"""Hashes that represent units, callers and requests: the ledger holds no name, key or header value."""

import hashlib
from functools import lru_cache

from app.config.access import ANONYMOUS
from app.config.schema import Sticky

_EMPTY = hashlib.blake2b(digest_size=8)
_number = int.from_bytes  # looked up once: that takes longer than the conversion


def request_hash(id: str | bytes) -> int:
    """The hash of a request id or of the id in an answer's body, as text or in UTF-8: not keyed, so that the id is
    enough to find its exposure."""
    digest = _EMPTY.copy()
    digest.update(id if isinstance(id, bytes) else id.encode("utf-8", "surrogatepass"))
    return _number(digest.digest())


def secret_of(text: str) -> bytes:
    """The units' secret of a cluster: every router derives the same one from the same text."""
    return hashlib.blake2b(text.encode(), person=b"ledger secret", digest_size=32).digest()


def unit_key(sticky: Sticky, caller: str, value: str) -> str:
    """The sticky key of a client's `value`: what is drawn, and hashed as a unit. `caller` is the caller's id.

    Two callers' equal values are two keys: otherwise one of them could spoil the other's unit. Without credentials
    there is one caller, and its values are its keys. With `by: api_key` the unit is the caller, whichever of its keys
    or tokens it shows.
    """
    if sticky.by == "api_key" and caller != ANONYMOUS:
        value = ""
    return own_key(caller, value)


def own_key(caller: str, value: str) -> str:
    """A client's `value` as a key of its caller's. `caller` is the caller's id, which has no NUL."""
    return value if caller == ANONYMOUS and "\0" not in value else f"{caller}\0{value}"


class Hashes:
    """Keyed blake2b-64 of units, callers and conversations: without `secret`, a guess at a key cannot be confirmed."""

    def __init__(self, secret: bytes) -> None:
        self._unit = hashlib.blake2b(key=secret, person=b"unit", digest_size=8)
        self._caller = hashlib.blake2b(key=secret, person=b"caller", digest_size=8)
        self._conversation = hashlib.blake2b(key=secret, person=b"conversation", digest_size=8)
        self.caller = lru_cache(maxsize=4096)(self._caller_hash)

    def unit(self, key: str) -> int:
        """The hash of a sticky key."""
        digest = self._unit.copy()
        digest.update(key.encode("utf-8", "surrogatepass"))
        return _number(digest.digest())

    def conversation(self, caller: str, key: str) -> int:
        """The hash of a caller's conversation: two callers' equal keys are two conversations."""
        digest = self._conversation.copy()
        digest.update(f"{len(caller)}:{caller}{key}".encode("utf-8", "surrogatepass"))
        return _number(digest.digest())

    def _caller_hash(self, id: str) -> int:
        digest = self._caller.copy()
        digest.update(id.encode("utf-8", "surrogatepass"))
        return _number(digest.digest())
