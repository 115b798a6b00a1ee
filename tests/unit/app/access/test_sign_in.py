"""The issuer's details that the console's page gets, and the content security policy that follows from them."""

import json
from typing import Any

import pytest

from app.access.oidc import FRESH_S, RETRY_S, Issuer, SignInEndpoints, policy_source, read_endpoints
from app.config.access import ConsoleSignIn, Oidc

ISSUER = "https://id.example.com"
ABOUT = {
    "issuer": ISSUER,
    "jwks_uri": f"{ISSUER}/keys",
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
}


def test_an_issuer_is_used_unless_it_declares_another_pkce_method() -> None:
    assert read_endpoints(ABOUT) == SignInEndpoints(f"{ISSUER}/authorize", f"{ISSUER}/token", False)
    also = {"code_challenge_methods_supported": ["plain", "S256"]}
    named = {"authorization_response_iss_parameter_supported": True}
    assert read_endpoints({**ABOUT, **also, **named}).names_itself
    with pytest.raises(ValueError, match="S256"):
        read_endpoints({**ABOUT, "code_challenge_methods_supported": ["plain"]})


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint"])
@pytest.mark.parametrize("url", [None, 3, "", "http://id.example.com/x", "javascript:alert(1)", "https://["])
def test_endpoints_are_https(name: str, url: object) -> None:
    with pytest.raises(ValueError, match=name):
        read_endpoints({**ABOUT, name: url})


@pytest.mark.parametrize(
    ("url", "source"),
    [
        ("https://id.example.com/oauth/token", "https://id.example.com/oauth/token"),
        ("https://id.example.com:8443/t?tenant=a", "https://id.example.com:8443/t"),
        ("https://id.example.com", "https://id.example.com/"),
        ("http://[::1]:9/token", "http://[::1]:9/token"),
        ("https://user:secret@id.example.com/t", "https://id.example.com/t"),
        ("https://id.example.com/a;script-src *", "https://id.example.com/a%3Bscript-src%20*"),
        ("https://id.example.com/a,b'c", "https://id.example.com/a%2Cb%27c"),
        ("https://id.example.com;x *", "https://id.example.com%3Bx%20%2A/"),
        ("https://id.example.com/é\n", "https://id.example.com/%C3%A9"),
    ],
)
def test_a_source_of_the_policy_is_one_address_and_nothing_more(url: str, source: str) -> None:
    assert policy_source(url) == source


class FakeFetcher:
    """A fake issuer; if `about` is None, its discovery document cannot be read."""

    def __init__(self, **settings: Any) -> None:
        self.now, self.about, self.fetched = 1000.0, dict(ABOUT), 0
        oidc = Oidc.model_validate({"issuer": ISSUER, "audience": "x", "console": {"client_id": "c"}, **settings})
        self.issuer = Issuer(oidc, self.fetch, lambda: self.now)

    async def fetch(self, url: str) -> bytes:
        if url.endswith("/keys"):
            return b'{"keys": []}'
        self.fetched += 1
        if not self.about:
            raise OSError("down")
        return json.dumps(self.about).encode()


async def test_the_endpoints_are_read_once_and_then_kept_while_the_issuer_is_away() -> None:
    net = FakeFetcher()
    assert await net.issuer.sign_in() == await net.issuer.sign_in() == read_endpoints(ABOUT)
    assert net.fetched == 1
    net.about = {}
    net.now += FRESH_S
    await net.issuer.refresh()
    assert net.fetched == 2
    assert await net.issuer.sign_in() == read_endpoints(ABOUT)


async def test_an_unreachable_issuer_is_called_at_intervals() -> None:
    net = FakeFetcher()
    net.about = {}
    for _ in range(5):
        assert await net.issuer.sign_in() is None
    assert net.fetched == 1
    net.about = dict(ABOUT)
    net.now += RETRY_S
    assert await net.issuer.sign_in() is not None


async def test_endpoints_that_are_no_longer_safe_are_forgotten() -> None:
    net = FakeFetcher()
    assert await net.issuer.sign_in() is not None
    net.about["token_endpoint"] = "http://evil.example.com/token"
    net.now += FRESH_S
    assert await net.issuer.sign_in() is not None
    await net.issuer.refresh()
    assert await net.issuer.sign_in() is None


async def test_tokens_are_valid_without_discovery_if_the_keys_url_is_configured() -> None:
    net = FakeFetcher(jwks_url=f"{ISSUER}/keys")
    assert await net.issuer.sign_in() == read_endpoints(ABOUT)
    net = FakeFetcher(jwks_url=f"{ISSUER}/keys")
    net.about = {}
    assert await net.issuer.sign_in() is None
    await net.issuer.refresh()
    net = FakeFetcher(jwks_url=f"{ISSUER}/keys", console=None)
    assert await net.issuer.sign_in() is None
    await net.issuer.refresh()
    assert net.fetched == 0, "without the console nothing needs discovery"


def test_parameters_that_the_console_sets_itself_are_rejected() -> None:
    assert ConsoleSignIn(client_id="c", parameters={"audience": "api"}).scopes == ("openid",)
    for name in ("client_secret", "redirect_uri", "state", "code_challenge"):
        with pytest.raises(ValueError, match=name):
            ConsoleSignIn(client_id="c", parameters={name: "x"})
    with pytest.raises(ValueError, match="needs the scope `openid`"):
        ConsoleSignIn(client_id="c", token="id_token", scopes=("email",))
    for scope in ("two words", 'a"b', "", "é"):
        with pytest.raises(ValueError, match="scopes"):
            ConsoleSignIn(client_id="c", scopes=(scope,))
