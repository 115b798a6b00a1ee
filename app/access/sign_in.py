"""Public settings with which the console's page signs people in with an OpenID Connect issuer.

The page is a public client: authorization code with PKCE (RFC 7636, RFC 9700). Nothing here is secret, and this server
only accepts the token afterwards, like any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from app.access.bearer_tokens import safe_url
from app.config.access import Oidc


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
    """The console's sign-in settings. `credentials`: keys or tokens are checked at all; `oidc`: the issuer's."""

    credentials: bool
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
