"""The internal keys: who may call a model application, and who the controller of experiments.

One master, `SWITCHYARD_INTERNAL_KEY`, is known to routers and to the controller. What is sent is derived from it,
another key for each purpose: an engine knows only what it must verify (`SWITCHYARD_ENGINE_KEY`, the derived one), so
that a model's own code learns nothing that opens the controller.

Both variables may list several keys, separated by commas or lines. All of them are accepted and the first one is sent,
so that a key is changed in three rolling steps: ``old,new``, then ``new,old``, then ``new``.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from enum import Enum

from app.internal_api import ENGINE_KEY_VARIABLE, INTERNAL_KEY_VARIABLE


class Purpose(Enum):
    """What a derived key opens. The values separate the derivations."""

    ENGINE = b"engine key"
    CONTROLLER = b"controller key"


def listed(value: str | None) -> tuple[str, ...]:
    """The keys in a variable's value, in their order."""
    parts = (part.strip() for part in (value or "").replace(",", "\n").split("\n"))
    return tuple(part for part in parts if part)


def derived(key: str, purpose: Purpose) -> str:
    """The key for one purpose: 64 hexadecimal digits, from which the master and the other purposes' keys do not follow.
    Empty for an empty master, which opens nothing."""
    if not key:
        return ""
    return hashlib.blake2b(b"", key=_secret(key), person=purpose.value, digest_size=32).hexdigest()


def sent(masters: str, purpose: Purpose) -> str:
    """The key that a router with these masters sends; empty if it has none."""
    return derived(next(iter(listed(masters)), ""), purpose)


def accepted(environment: Mapping[str, str], purpose: Purpose) -> tuple[str, ...]:
    """The keys that open an application in a process with this environment."""
    own = listed(environment.get(ENGINE_KEY_VARIABLE)) if purpose is Purpose.ENGINE else ()
    return (*own, *(derived(key, purpose) for key in listed(environment.get(INTERNAL_KEY_VARIABLE))))


def opens(given: str, keys: Sequence[bytes]) -> bool:
    """Whether `given`, a header's value, is one of `keys`. Compares in constant time."""
    value = given.encode("latin-1", "replace")
    return any([hmac.compare_digest(value, key) for key in keys])  # a list: every key is compared


def _secret(key: str) -> bytes:
    """The master as a key of BLAKE2b, which takes 64 bytes at most."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), person=b"internal key", digest_size=64).digest()
