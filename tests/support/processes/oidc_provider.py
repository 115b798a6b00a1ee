"""An OpenID Connect issuer for tests: it signs tokens and serves its keys over HTTP, as real ones do."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

AUDIENCE = "switchyard"

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class LocalIssuer:
    """`url` is where it is served; `keys` are by id, with their algorithms. `fetches` counts fetches of the keys;
    `instead` replaces the answer to one. The same keys are at `/elsewhere`, where nobody may look."""

    url: str = "https://id.example.com"
    keys: dict[str, tuple[str, Private]] = field(default_factory=lambda: {"first": ("RS256", rsa_key())})
    fetches: int = 0
    up: bool = True
    instead: Response | None = None
    slow_s: float = 0

    def token(self, *, kid: str | None = "first", headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A valid token for `alice`, changed by `claims` and `headers`. A claim that is None is left out."""
        now = int(time.time())
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 600}
        payload = {name: value for name, value in {**good, **claims}.items() if value is not None}
        algorithm, private = self.keys[kid or "first"]
        header = {**({"kid": kid} if kid else {}), **(headers or {})}
        return jwt.encode(payload, private, algorithm, header)

    def jwks(self) -> dict[str, Any]:
        """The public keys."""
        return {"keys": [_jwk(kid, algorithm, private) for kid, (algorithm, private) in self.keys.items()]}

    @property
    def app(self) -> Starlette:
        return Starlette(routes=self.routes())

    def routes(self) -> list[Route]:
        return [
            Route("/.well-known/openid-configuration", self._about),
            Route("/keys", self._keys),
            Route("/elsewhere", self._elsewhere),
        ]

    async def _about(self, request: Request) -> Response:
        return JSONResponse(self.discovery(), 200 if self.up else 503)

    def discovery(self) -> dict[str, Any]:
        """Its discovery document."""
        return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}

    async def _keys(self, request: Request) -> Response:
        self.fetches += 1
        await asyncio.sleep(self.slow_s)
        return self.instead or JSONResponse(self.jwks(), 200 if self.up else 503)

    async def _elsewhere(self, request: Request) -> Response:
        return JSONResponse(self.jwks())


def _jwk(kid: str, algorithm: str, private: Private) -> dict[str, Any]:
    public = private.public_key()
    maker: Any = {"RS": RSAAlgorithm, "ES": ECAlgorithm, "Ed": OKPAlgorithm}[algorithm[:2]]
    return {**json.loads(maker.to_jwk(public)), "kid": kid, "alg": algorithm, "use": "sig"}


def hostile_tokens(issuer: LocalIssuer) -> dict[str, str]:
    """Tokens with the known attacks, by the attack."""
    good = issuer.token()
    header, payload, signature = good.split(".")
    stranger = LocalIssuer(url=issuer.url)
    _, private = issuer.keys["first"]
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return {
        "no algorithm": f"{_part(alg='none', kid='first')}.{payload}.",
        "no algorithm, with a signature": f"{_part(alg='none', kid='first')}.{payload}.{signature}",
        "the public key as an HMAC secret": _hmac(f"{_part(alg='HS256', kid='first', typ='JWT')}.{payload}", pem),
        "someone else's key under a known id": stranger.token(),
        "another algorithm's name": f"{_part(alg='ES256', kid='first')}.{payload}.{signature}",
        "a payload that was changed": f"{header}.{_part(sub='root', iss=issuer.url, aud=AUDIENCE)}.{signature}",
        "a key that comes with the token": stranger.token(kid="first", headers={"jwk": stranger.jwks()["keys"][0]}),
        "another audience": issuer.token(aud="somebody-else"),
        "no audience": issuer.token(aud=None),
        "another issuer": issuer.token(iss="https://evil.example.com"),
        "expired": issuer.token(exp=int(time.time()) - 3600),
        "no expiry": issuer.token(exp=None),
        "not yet valid": issuer.token(nbf=int(time.time()) + 3600),
        "no subject": issuer.token(sub=None),
        "an owner that is no name": issuer.token(sub="a\nb"),
        "the name of those who show nothing": issuer.token(sub="anonymous"),
        "something that must be understood": issuer.token(headers={"crit": ["x"], "x": 1}),
        "a payload that is elsewhere": issuer.token(headers={"crit": ["b64"], "b64": False}).replace(
            "..", f".{payload}."
        ),
        "cut off": good[:-10],
        "nothing signed": f"{header}.{payload}.",
        "deeply nested": f"{base64.urlsafe_b64encode(b'[' * 20000).decode()}.{payload}.{signature}",
        "parts of nonsense": "eyJ.eyJ.eyJ",
    }


def _part(**fields: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode()


def _hmac(signed: str, secret: bytes) -> str:
    digest = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
