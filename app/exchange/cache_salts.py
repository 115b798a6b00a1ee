"""The salts that keep prompts apart in an engine's prefix cache.

The time to the first token tells a caller whether a prompt's beginning is cached, so that a prefix cache which callers
share answers the question whether someone has sent a text. vLLM mixes a request's `cache_salt` into the hash of the
prompt's first block, and so into all of them: requests with different salts share nothing. The router sets a salt that
no caller can know, whatever the client's dialect; a client's own salt divides its caller's share further.
"""

import hashlib
import secrets
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from app.dialects.base import EngineRequest
from app.errors import BadRequest
from app.internal_keys import listed
from app.upstream.target import Target

_SALT = "cache_salt"
_LONGEST_SALT = 1024
"""Characters that vLLM takes."""

UNSALTED = frozenset({"/tokenize", "/detokenize", "/v1/chat/completions/render", "/v1/messages/count_tokens", "/ping"})
"""The engines' routes that compute nothing: vLLM has no such field there."""


class CacheSalts:
    """Makes salts under one secret: that of all routers with the same first key among `internal_keys`. Without one it
    is this process's own: a router's callers find nothing cached after its restart, nor what another router sent."""

    def __init__(self, internal_keys: str) -> None:
        first = next(iter(listed(internal_keys)), "")
        secret = first.encode("utf-8", "surrogatepass") or secrets.token_bytes(32)
        key = hashlib.blake2b(secret, person=b"cache secret", digest_size=32).digest()
        self._hash = hashlib.blake2b(key=key, person=b"cache salt", digest_size=32)
        self._salt = lru_cache(maxsize=4096)(self._salt_of)

    def salted(self, request: EngineRequest, target: Target, scope: str) -> EngineRequest:
        """The request with the salt of its `cache_scope`, if the target takes one."""
        if not scope or not target.takes_salt or request.path in UNSALTED:
            return request
        own = request.body.get(_SALT)
        salt = self._salt(scope) if own is None else self._salt_of(scope, repr(own))
        return EngineRequest(request.path, {**request.body, _SALT: salt})

    def _salt_of(self, scope: str, own: str = "") -> str:
        digest = self._hash.copy()
        digest.update(f"{len(scope)}:{scope}{own}".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def check_salt(body: Mapping[str, Any]) -> None:
    """Raises BadRequest for a client's salt that vLLM would reject: it cannot see it once another takes its place."""
    own = body.get(_SALT)
    if own is not None and not (isinstance(own, str) and 1 <= len(own) <= _LONGEST_SALT):
        raise BadRequest(f"{_SALT}: must be a string of 1 to {_LONGEST_SALT} characters", param=_SALT)
