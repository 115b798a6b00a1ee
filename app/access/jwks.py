"""An issuer's keys and sign-in endpoints: fetched over one seam, cached, and refreshed when they may have changed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import jwt

from app.access.bearer_tokens import Keys, read_discovery, read_keys, safe_url
from app.access.sign_in import SignInEndpoints, read_endpoints
from app.config.access import Oidc
from app.errors import Unauthorized, Unavailable
from app.telemetry.logs import event

Fetch = Callable[[str], Awaitable[bytes]]
"""The body at a URL. Raises OSError or TimeoutError."""

FRESH_S = 300.0
"""The time after which keys are fetched again; a withdrawn key is accepted for about as long."""

RETRY_S = 10.0
"""The least time between two fetches, however many tokens name unknown keys."""

TIMEOUT_S = 5.0
"""The timeout of one fetch, in seconds."""

_MAX_BYTES = 1024 * 1024
_log = logging.getLogger("switchyard")


class Issuer:
    """The keys of one OpenID Connect issuer. `clock` is in seconds, `retry_s` the least time between two fetches.

    While the issuer is unreachable, its last known keys stay valid: an outage there must not take this server down.
    """

    def __init__(self, oidc: Oidc, fetch: Fetch, clock: Callable[[], float], retry_s: float = RETRY_S) -> None:
        self.oidc = oidc
        self._fetch, self._clock, self._retry_s = fetch, clock, retry_s
        self._keys: Keys = {}
        self._endpoints: SignInEndpoints | None = None
        self._tried_at = float("-inf")
        self._reachable = False
        self._fetching = asyncio.Lock()

    async def key(self, kid: str | None) -> jwt.PyJWK:
        """The key with this id. Raises Unauthorized if the issuer has none, Unavailable if it is unreachable."""
        if kid not in self._keys:
            await self.refresh(self._retry_s)
        if (key := self._keys.get(kid)) is not None:
            return key
        if not self._reachable:
            raise Unavailable(
                "The bearer token cannot be verified: its issuer is unreachable", retry_after=self._retry_s
            )
        raise Unauthorized("The bearer token is signed with a key that its issuer does not publish")

    async def sign_in(self) -> SignInEndpoints | None:
        """The endpoints at which people sign in; None without `console`, or while they are unknown."""
        if self.oidc.console is not None and self._endpoints is None:
            await self.refresh(self._retry_s)
        return self._endpoints

    async def refresh(self, after_s: float = FRESH_S) -> None:
        """Fetches the keys, unless that was tried less than `after_s` ago. After a failure the known keys stay."""
        async with self._fetching:  # concurrent callers share the first one's fetch
            if self._clock() - self._tried_at < (after_s if self._reachable else self._retry_s):
                return
            self._tried_at = self._clock()
            try:
                self._keys = read_keys(await self._fetch(await self._url()))
                self._reachable = True
            except (OSError, TimeoutError, ValueError) as error:
                self._reachable = False
                failure = event("issuer_keys_unavailable", issuer=self.oidc.issuer, error=str(error))
                _log.warning("The issuer's keys cannot be read", extra=failure)

    async def _url(self) -> str:
        """The URL of the keys. Also reads the sign-in endpoints, if people may sign in."""
        if self.oidc.jwks_url is None:
            discovery = await self._discovery()
            self._learn(discovery)
            return safe_url(discovery, "jwks_uri")
        if self.oidc.console is not None:
            try:
                self._learn(await self._discovery())
            except (OSError, TimeoutError, ValueError) as error:
                self._report(error)  # tokens need no discovery then
        return self.oidc.jwks_url

    async def _discovery(self) -> Mapping[str, Any]:
        document = await self._fetch(f"{self.oidc.issuer.rstrip('/')}/.well-known/openid-configuration")
        return read_discovery(document, self.oidc.issuer)

    def _learn(self, discovery: Mapping[str, Any]) -> None:
        if self.oidc.console is None:
            return
        try:
            self._endpoints = read_endpoints(discovery)
        except ValueError as error:
            self._endpoints = None
            self._report(error)

    def _report(self, error: Exception) -> None:
        failure = event("sign_in_unavailable", issuer=self.oidc.issuer, error=str(error))
        _log.warning("The console cannot offer to sign in with the issuer", extra=failure)


async def fetch(session: aiohttp.ClientSession, url: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """The real `Fetch`, on `session`. It follows no redirects: one could lead to a server that forges keys."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(url, timeout=timeout, allow_redirects=False) as response:
            if response.status != 200:
                raise OSError(f"{url}: status {response.status}")
            return await _whole(response.content, url)
    except aiohttp.ClientError as error:
        raise OSError(f"{url}: {type(error).__name__}") from error


async def _whole(content: aiohttp.StreamReader, url: str) -> bytes:
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise OSError(f"{url}: more than {_MAX_BYTES} bytes")
    return bytes(body)
