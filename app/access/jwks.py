"""An issuer's keys: fetched over one seam, kept, and fetched again when they may have changed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import aiohttp
import jwt

from app.access.bearer_tokens import Keys, read_discovery, read_keys
from app.config.access import Oidc
from app.errors import Unauthorized, Unavailable
from app.telemetry.logs import event

Fetch = Callable[[str], Awaitable[bytes]]
"""The body at a URL. Raises OSError or TimeoutError."""

FRESH_S = 300.0
"""How long keys are kept before they are asked for again; a withdrawn one is honoured for about as long."""

FLOOR_S = 10.0
"""How long after one fetch the next may come, however many tokens name keys that nobody knows."""

_TIMEOUT_S = 5.0
_MAX_BYTES = 1024 * 1024
_log = logging.getLogger("switchyard")


class Issuer:
    """The keys of one OpenID Connect issuer. `clock` is in seconds.

    While the issuer does not answer, the keys that it last told stay good: it being down must not take this server
    down with it.
    """

    def __init__(self, oidc: Oidc, fetch: Fetch, clock: Callable[[], float]) -> None:
        self.oidc = oidc
        self._fetch, self._clock = fetch, clock
        self._keys: Keys = {}
        self._tried_at = float("-inf")
        self._answers = False
        self._turn = asyncio.Lock()

    async def key(self, kid: str | None) -> jwt.PyJWK:
        """The key with this id. Raises Unauthorized where the issuer has none, Unavailable where it cannot be asked."""
        if kid not in self._keys:
            await self.refresh(FLOOR_S)
        if (key := self._keys.get(kid)) is not None:
            return key
        if not self._answers:
            raise Unavailable("The bearer token cannot be verified: its issuer is unreachable", retry_after=FLOOR_S)
        raise Unauthorized("The bearer token is signed with a key that its issuer does not publish")

    async def refresh(self, after_s: float = FRESH_S) -> None:
        """Fetches the keys, unless that was tried less than `after_s` ago. A failure leaves what is known."""
        async with self._turn:  # those who wait here find the fetch of the first one done
            if self._clock() - self._tried_at < (after_s if self._answers else FLOOR_S):
                return
            self._tried_at = self._clock()
            try:
                self._keys = read_keys(await self._fetch(await self._url()))
                self._answers = True
            except (OSError, TimeoutError, ValueError) as error:
                self._answers = False
                failure = event("issuer_keys_unavailable", issuer=self.oidc.issuer, error=str(error))
                _log.warning("The issuer's keys cannot be read", extra=failure)

    async def _url(self) -> str:
        if self.oidc.jwks_url is not None:
            return self.oidc.jwks_url
        about = await self._fetch(f"{self.oidc.issuer.rstrip('/')}/.well-known/openid-configuration")
        return read_discovery(about, self.oidc.issuer)


async def fetch(session: aiohttp.ClientSession, url: str) -> bytes:
    """The real `Fetch`, on `session`. It follows no redirect: that could lead where anybody makes keys."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
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
