"""Verifies bearer tokens (JWT) of an OpenID Connect issuer. Pure, except for the clock of `exp`.

Contract: RFC 7519 and RFC 8725 (best practices). A key's algorithm is bound to it when it is read, out of an allow-list
without symmetric ones, and a token that names another is rejected: neither `none` nor a public key used as an HMAC
secret passes. `exp`, `iss` and `aud` are required; `nbf` and `iat` are checked if present.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import jwt
from pydantic_core import from_json

from app.access.caller import Caller
from app.config.access import ANONYMOUS, Oidc
from app.config.base import is_safe
from app.errors import Unauthorized

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
    found: dict[str | None, jwt.PyJWK] = {}
    for item in listed:
        if not isinstance(item, dict) or item.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(item)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        if key.algorithm_name in ALGORITHMS:
            found[key.key_id] = key
    return {**found, None: next(iter(found.values()))} if len(found) == 1 else found


def read_discovery(document: bytes, issuer: str) -> Mapping[str, Any]:
    """An issuer's discovery document. Raises ValueError if it is not this issuer's."""
    found = _object(document)
    if found.get("issuer") != issuer:
        raise ValueError("it belongs to another issuer")
    return found


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
