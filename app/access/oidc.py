"""Verifies bearer tokens (JWT) of an OpenID Connect issuer. Pure, except for the clock of `exp`.

Contract: RFC 7519 and RFC 8725 (best practices). A key's algorithm is bound to it when it is read, out of an allow-list
without symmetric ones, and a token that names another is rejected: neither `none` nor a public key used as an HMAC
secret passes. `exp`, `iss` and `aud` are required; `nbf` and `iat` are checked if present.

- Public settings with which the console's page signs people in with an OpenID Connect issuer.
- An issuer's keys and sign-in endpoints: fetched over one seam, cached, and refreshed when they may have changed.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import jwt
from pydantic_core import from_json

from app.access.caller import Caller
from app.config.access import ANONYMOUS, Oidc
from app.config.base import is_safe
from app.errors import Unauthorized, Unavailable
from app.telemetry.logs import event
from app.upstream.http.client import HttpClient, Response
from app.upstream.http.connection import HttpError
from app.version import own_version

ALGORITHMS = ("RS256", "ES256", "EdDSA")

_REASONS: Mapping[type[jwt.PyJWTError], str] = {
    jwt.ExpiredSignatureError: "has expired",
    jwt.ImmatureSignatureError: "is not valid yet",
    jwt.InvalidAudienceError: "is for another audience",
    jwt.InvalidIssuerError: "is of another issuer",
    jwt.InvalidAlgorithmError: "is signed with an algorithm that is not accepted here",
    jwt.InvalidSignatureError: "has a wrong signature",
    jwt.MissingRequiredClaimError: "lacks a claim: exp, iss and aud are required",
}

Keys = Mapping[str | None, jwt.PyJWK]
"""An issuer's keys by `kid`; a single key also under None, for tokens without `kid`."""


def looks_like_a_token(credential: str) -> bool:
    """Whether it has the three parts of a JWT, and so is not an API key."""
    return credential.startswith("eyJ") and credential.count(".") == 2


def key_id(token: str) -> str | None:
    """The `kid` of the key that signed it. Raises Unauthorized if it is not a token."""
    try:
        kid = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, RecursionError):
        raise Unauthorized("The bearer token is malformed") from None
    return kid if isinstance(kid, str) else None


def read_keys(jwks: bytes) -> Keys:
    """The usable keys of a JWK set. Raises ValueError if it is not a JWK set."""
    listed = _object(jwks).get("keys")
    if not isinstance(listed, list):
        raise ValueError("a JWK set has a list `keys`")
    keys: dict[str | None, jwt.PyJWK] = {}
    for item in listed:
        if not isinstance(item, dict) or item.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(item)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        if key.algorithm_name in ALGORITHMS:
            keys[key.key_id] = key
    return {**keys, None: next(iter(keys.values()))} if len(keys) == 1 else keys


def read_discovery(document: bytes, issuer: str) -> Mapping[str, Any]:
    """An issuer's discovery document. Raises ValueError if it is not this issuer's."""
    metadata = _object(document)
    if metadata.get("issuer") != issuer:
        raise ValueError("it belongs to another issuer")
    return metadata


def safe_url(discovery: Mapping[str, Any], name: str) -> str:
    """A URL of a discovery document. Raises ValueError unless it is https, since keys could be altered in transit."""
    if not isinstance(url := discovery.get(name), str) or not is_safe(url):
        raise ValueError(f"its {name} is missing or is not an https:// URL")
    return url


def verify(token: str, key: jwt.PyJWK, oidc: Oidc) -> Caller:
    """The caller with this token. Raises Unauthorized, with the reason, if it is not valid."""
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=ALGORITHMS,
            audience=oidc.audience,
            issuer=oidc.issuer,
            leeway=oidc.leeway_s,
            options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
        )
    except jwt.PyJWTError as error:
        reason = next((text for kind, text in _REASONS.items() if isinstance(error, kind)), "is not valid")
        raise Unauthorized(f"The bearer token {reason}") from None
    principal = claims.get(oidc.principal_claim)
    if not isinstance(principal, str) or not _is_name(principal):
        raise Unauthorized(f"The bearer token does not name its owner in the claim '{oidc.principal_claim}'")
    return Caller(
        principal,
        token_caller_id(principal),
        None if oidc.endpoints_claim is None else frozenset(_words(claims, oidc.endpoints_claim)),
        credential="token",
        groups=() if oidc.groups_claim is None else _words(claims, oidc.groups_claim),
    )


def token_caller_id(principal: str) -> str:
    """The id of the caller whose tokens name this principal."""
    return f"token-{hashlib.blake2b(principal.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def _is_name(principal: str) -> bool:
    """Whether it is safe in a log line and is not the name of callers without credentials."""
    return principal.isprintable() and 0 < len(principal) <= 200 and principal != ANONYMOUS


def _words(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The words in the claim `name`; none if the token does not have it."""
    value = claims.get(name)
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(word for word in words if isinstance(word, str))


def _object(data: bytes) -> dict[str, Any]:
    value = from_json(data)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


# The page is a public client: authorization code with PKCE (RFC 7636, RFC 9700). Nothing here is secret, and this
# server only accepts the token afterwards, like any other.


@dataclass(frozen=True, slots=True)
class SignInEndpoints:
    """Endpoints in an issuer's discovery document (OpenID Connect Discovery 1.0, RFC 8414). `names_itself`: its answers
    carry `iss` (RFC 9207)."""

    authorization: str
    token: str
    names_itself: bool


def read_endpoints(discovery: Mapping[str, Any]) -> SignInEndpoints:
    """The endpoints in a discovery document. Raises ValueError if people cannot sign in there with PKCE."""
    authorization, token = safe_url(discovery, "authorization_endpoint"), safe_url(discovery, "token_endpoint")
    # Some issuers that support PKCE do not declare it; one that lists only other methods does not support S256.
    methods = discovery.get("code_challenge_methods_supported")
    if isinstance(methods, list) and "S256" not in methods:
        raise ValueError("it does not support PKCE with S256")
    names_itself = discovery.get("authorization_response_iss_parameter_supported") is True
    return SignInEndpoints(authorization, token, names_itself)


@dataclass(frozen=True, slots=True)
class SignIn:
    """The console's sign-in settings. `credentials`: keys or tokens are checked at all; `required`: nothing is served
    without one, None before the first configuration; `oidc`: the issuer's."""

    credentials: bool
    required: bool | None
    oidc: Mapping[str, Any] | None


def sign_in_with(oidc: Oidc, endpoints: SignInEndpoints | None) -> dict[str, Any]:
    """The page's settings for the issuer, all of them public. Without `endpoints` it cannot be used at the moment."""
    assert oidc.console is not None
    return {
        "issuer": oidc.issuer,
        "authorization_endpoint": endpoints.authorization if endpoints is not None else None,
        "token_endpoint": endpoints.token if endpoints is not None else None,
        "names_itself": endpoints.names_itself if endpoints is not None else False,
        "client_id": oidc.console.client_id,
        "scope": " ".join(oidc.console.scopes),
        "token": oidc.console.token,
        "parameters": oidc.console.parameters,
    }


def policy_source(url: str) -> str:
    """`url` as the one source of a Content-Security-Policy that matches it and nothing else: no query, and nothing
    that would end the source or the directive."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else quote(parts.hostname or "", safe=".-")
    port = f":{parts.port}" if parts.port is not None else ""
    return f"{parts.scheme}://{host}{port}{quote(parts.path or '/', safe='/-._~%:@!$&()*+=')}"


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


async def fetch(client: HttpClient, url: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """The real `Fetch`, by `client`. It follows no redirects: one could lead to a server that forges keys."""
    agent = f"switchyard/{own_version() or ''}".rstrip("/")  # some firewalls refuse a client without a name
    try:
        async with asyncio.timeout(timeout_s):
            with closing(await client.get(url, {"user-agent": agent}, timeout_s, redirects=0)) as response:
                if response.status != 200:
                    raise OSError(f"{url}: status {response.status}")
                return await _whole(response, url)
    except TimeoutError as error:
        raise OSError(f"{url}: no answer within {timeout_s:g} s") from error
    except (HttpError, ValueError) as error:
        raise OSError(f"{url}: {error.__cause__ or error}") from error


async def _whole(response: Response, url: str) -> bytes:
    body = bytearray()
    while chunk := await response.read():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise OSError(f"{url}: more than {_MAX_BYTES} bytes")
    return bytes(body)
