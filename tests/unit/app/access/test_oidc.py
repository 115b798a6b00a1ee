"""Bearer tokens: valid ones, known attacks, and the rotation of the issuer's keys.

The issuer's details that the console's page gets, and the content security policy that follows from them.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from app.access.oidc import (
    FRESH_S,
    RETRY_S,
    Issuer,
    SignInEndpoints,
    key_id,
    looks_like_a_token,
    policy_source,
    read_discovery,
    read_endpoints,
    read_keys,
    safe_url,
    verify,
)
from app.config.access import ConsoleSignIn, Oidc
from app.errors import Unauthorized, Unavailable
from tests.support.processes.oidc_provider import AUDIENCE, LocalIssuer, hostile_tokens, rsa_key

ISSUER = LocalIssuer()
KEYS = read_keys(json.dumps(ISSUER.jwks()).encode())
OIDC = Oidc(issuer=ISSUER.url, audience=AUDIENCE)
HOSTILE = hostile_tokens(ISSUER)


def test_a_good_token_names_its_owner() -> None:
    caller = verify(ISSUER.token(), KEYS["first"], OIDC)
    assert (caller.name, caller.endpoints) == ("alice", None)
    assert caller.id == verify(ISSUER.token(jti="another"), KEYS["first"], OIDC).id
    assert caller.id != verify(ISSUER.token(sub="bob"), KEYS["first"], OIDC).id
    assert verify(ISSUER.token(aud=["x", AUDIENCE]), KEYS["first"], OIDC) == caller


@pytest.mark.parametrize(
    ("algorithm", "make"),
    [
        ("RS256", rsa_key),
        ("ES256", lambda: ec.generate_private_key(ec.SECP256R1())),
        ("EdDSA", ed25519.Ed25519PrivateKey.generate),
    ],
)
def test_the_accepted_algorithms(algorithm: str, make: Callable[[], rsa.RSAPrivateKey]) -> None:
    issuer = LocalIssuer(keys={"first": (algorithm, make())})
    keys = read_keys(json.dumps(issuer.jwks()).encode())
    assert verify(issuer.token(), keys["first"], OIDC).name == "alice"


@pytest.mark.parametrize("token", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_token_is_unauthorized(token: str) -> None:
    with pytest.raises(Unauthorized) as raised:
        verify(token, KEYS[key_id(token)], OIDC)
    assert token.split(".")[1] not in raised.value.message


@given(st.text(alphabet=st.characters(max_codepoint=255)) | st.binary().map(lambda data: f"eyJ{data.hex()}.e30.e30"))
def test_any_other_text_is_a_malformed_token(text: str) -> None:
    with pytest.raises(Unauthorized):
        verify(text, KEYS["first"], OIDC)
    assert not looks_like_a_token("sk-sy-3f9a1c0b7d52-abc")
    assert looks_like_a_token(ISSUER.token())


def test_the_claims_of_owner_and_endpoints_are_configurable() -> None:
    oidc = Oidc(issuer=ISSUER.url, audience=AUDIENCE, principal_claim="azp", endpoints_claim="models")
    caller = verify(ISSUER.token(azp="app", models=["chat", 3]), KEYS["first"], oidc)
    assert (caller.name, caller.endpoints) == ("app", frozenset({"chat"}))
    assert verify(ISSUER.token(azp="app", models="chat embed"), KEYS["first"], oidc).endpoints == frozenset(
        {"chat", "embed"}
    )
    assert verify(ISSUER.token(azp="app"), KEYS["first"], oidc).endpoints == frozenset()
    with pytest.raises(Unauthorized, match="'azp'"):
        verify(ISSUER.token(), KEYS["first"], oidc)


def test_a_token_belongs_to_the_first_of_its_groups_that_is_known() -> None:
    oidc = Oidc(issuer=ISSUER.url, audience=AUDIENCE, groups_claim="groups")
    for claim, known, group in (
        (["everyone", "staff", 3], ("staff", "everyone"), "everyone"),
        ("staff beta", ("beta",), "beta"),
        (["staff"], (), ""),
        ({"staff": 1}, ("staff",), ""),
    ):
        assert verify(ISSUER.token(groups=claim), KEYS["first"], oidc).group(known) == group
    assert verify(ISSUER.token(groups=["staff"]), KEYS["first"], OIDC).group(("staff",)) == ""
    assert verify(ISSUER.token(), KEYS["first"], oidc).group(("staff",)) == ""


def test_clocks_may_differ_a_little() -> None:
    token = ISSUER.token(exp=int(time.time()) - 10)
    assert verify(token, KEYS["first"], OIDC).name == "alice"
    with pytest.raises(Unauthorized, match="has expired"):
        verify(token, KEYS["first"], Oidc(issuer=ISSUER.url, audience=AUDIENCE, leeway_s=0))


def test_only_usable_keys_are_kept() -> None:
    good = ISSUER.jwks()["keys"][0]
    other = {"kid": "other", "kty": "oct", "k": "c2VjcmV0"}
    listed = [
        {**good, "kid": "a"},
        {**good, "kid": "b"},
        {**good, "kid": "encrypts", "use": "enc"},
        {**good, "kid": "other algorithm", "alg": "RS512"},
        {**good, "kid": "broken", "n": 3},
        other,
        {"kid": "none", "kty": "none"},
        "no key",
    ]
    assert set(read_keys(json.dumps({"keys": listed}).encode())) == {"a", "b"}


def test_the_only_key_verifies_tokens_without_a_key_id() -> None:
    assert verify(ISSUER.token(kid=None), KEYS[None], OIDC).name == "alice"
    two = LocalIssuer(keys={"first": ("RS256", rsa_key()), "second": ("RS256", rsa_key())})
    assert None not in read_keys(json.dumps(two.jwks()).encode())


def test_a_short_key_is_not_trusted() -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    issuer = LocalIssuer(keys={"first": ("RS256", short)})
    with pytest.warns(match="1024"):
        token = issuer.token()
    with pytest.raises(Unauthorized):
        verify(token, read_keys(json.dumps(issuer.jwks()).encode())["first"], OIDC)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys": 3}', b"\xff"])
def test_documents_that_are_not_key_sets_are_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_keys(data)


@pytest.mark.parametrize(
    "about",
    [
        {"issuer": "https://evil", "jwks_uri": "https://evil/keys"},
        {"issuer": ISSUER.url},
        {"issuer": ISSUER.url, "jwks_uri": "http://id.example.com/keys"},
        {"issuer": ISSUER.url, "jwks_uri": "file:///etc/passwd"},
        {"issuer": ISSUER.url, "jwks_uri": "https://["},
        [],
    ],
)
def test_discovery_must_describe_this_issuer(about: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        safe_url(read_discovery(json.dumps(about).encode(), ISSUER.url), "jwks_uri")


class FakeFetcher:
    """A fake issuer without sockets, with a clock."""

    def __init__(self, issuer: LocalIssuer) -> None:
        self.local, self.now = issuer, 1000.0
        self.fetched: list[str] = []
        self.issuer = Issuer(Oidc(issuer=issuer.url, audience=AUDIENCE), self.fetch, lambda: self.now)

    async def fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        await asyncio.sleep(0)
        if not self.local.up:
            raise OSError("down")
        about = {"issuer": self.local.url, "jwks_uri": f"{self.local.url}/keys"}
        return json.dumps(self.local.jwks() if url.endswith("/keys") else about).encode()


@pytest.fixture
def net() -> FakeFetcher:
    return FakeFetcher(LocalIssuer(keys=dict(ISSUER.keys)))


async def test_keys_are_fetched_once_for_many_tokens(net: FakeFetcher) -> None:
    await asyncio.gather(*(net.issuer.key("first") for _ in range(20)))
    assert net.fetched == [f"{ISSUER.url}/.well-known/openid-configuration", f"{ISSUER.url}/keys"]


async def test_a_new_key_is_found_and_a_withdrawn_one_forgotten(net: FakeFetcher) -> None:
    old = await net.issuer.key("first")
    net.local.keys = {"second": ("RS256", rsa_key())}
    net.now += RETRY_S
    assert (await net.issuer.key("second")).key_id == "second"
    with pytest.raises(Unauthorized):
        await net.issuer.key("first")
    assert old.key_id == "first"


async def test_unknown_key_ids_do_not_cause_a_request_each_time(net: FakeFetcher) -> None:
    await net.issuer.key("first")
    for _ in range(50):
        with pytest.raises(Unauthorized, match="does not publish"):
            await net.issuer.key("made up")
    assert len(net.fetched) == 2
    net.now += RETRY_S
    with pytest.raises(Unauthorized):
        await net.issuer.key("made up")
    assert len(net.fetched) == 4


async def test_upkeep_fetches_stale_keys_again(net: FakeFetcher) -> None:
    await net.issuer.key("first")
    await net.issuer.refresh()
    assert len(net.fetched) == 2
    net.now += FRESH_S
    await net.issuer.refresh()
    assert len(net.fetched) == 4


async def test_known_keys_stay_valid_while_the_issuer_is_down(net: FakeFetcher) -> None:
    net.local.up = False
    with pytest.raises(Unavailable) as raised:
        await net.issuer.key("first")
    assert raised.value.retry_after == RETRY_S
    net.local.up = True
    net.now += RETRY_S
    await net.issuer.key("first")
    net.local.up = False
    net.now += FRESH_S
    await net.issuer.refresh()
    assert (await net.issuer.key("first")).key_id == "first"
    with pytest.raises(Unavailable):
        await net.issuer.key("perhaps new")


ISSUER_SIGN_IN = "https://id.example.com"
ABOUT = {
    "issuer": ISSUER_SIGN_IN,
    "jwks_uri": f"{ISSUER_SIGN_IN}/keys",
    "authorization_endpoint": f"{ISSUER_SIGN_IN}/authorize",
    "token_endpoint": f"{ISSUER_SIGN_IN}/token",
}


def test_an_issuer_is_used_unless_it_declares_another_pkce_method() -> None:
    assert read_endpoints(ABOUT) == SignInEndpoints(f"{ISSUER_SIGN_IN}/authorize", f"{ISSUER_SIGN_IN}/token", False)
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


class FakeFetcherSignIn:
    """A fake issuer; if `about` is None, its discovery document cannot be read."""

    def __init__(self, **settings: Any) -> None:
        self.now, self.about, self.fetched = 1000.0, dict(ABOUT), 0
        oidc = Oidc.model_validate(
            {"issuer": ISSUER_SIGN_IN, "audience": "x", "console": {"client_id": "c"}, **settings}
        )
        self.issuer = Issuer(oidc, self.fetch, lambda: self.now)

    async def fetch(self, url: str) -> bytes:
        if url.endswith("/keys"):
            return b'{"keys": []}'
        self.fetched += 1
        if not self.about:
            raise OSError("down")
        return json.dumps(self.about).encode()


async def test_the_endpoints_are_read_once_and_then_kept_while_the_issuer_is_away() -> None:
    net = FakeFetcherSignIn()
    assert await net.issuer.sign_in() == await net.issuer.sign_in() == read_endpoints(ABOUT)
    assert net.fetched == 1
    net.about = {}
    net.now += FRESH_S
    await net.issuer.refresh()
    assert net.fetched == 2
    assert await net.issuer.sign_in() == read_endpoints(ABOUT)


async def test_an_unreachable_issuer_is_called_at_intervals() -> None:
    net = FakeFetcherSignIn()
    net.about = {}
    for _ in range(5):
        assert await net.issuer.sign_in() is None
    assert net.fetched == 1
    net.about = dict(ABOUT)
    net.now += RETRY_S
    assert await net.issuer.sign_in() is not None


async def test_endpoints_that_are_no_longer_safe_are_forgotten() -> None:
    net = FakeFetcherSignIn()
    assert await net.issuer.sign_in() is not None
    net.about["token_endpoint"] = "http://evil.example.com/token"
    net.now += FRESH_S
    assert await net.issuer.sign_in() is not None
    await net.issuer.refresh()
    assert await net.issuer.sign_in() is None


async def test_tokens_are_valid_without_discovery_if_the_keys_url_is_configured() -> None:
    net = FakeFetcherSignIn(jwks_url=f"{ISSUER_SIGN_IN}/keys")
    assert await net.issuer.sign_in() == read_endpoints(ABOUT)
    net = FakeFetcherSignIn(jwks_url=f"{ISSUER_SIGN_IN}/keys")
    net.about = {}
    assert await net.issuer.sign_in() is None
    await net.issuer.refresh()
    net = FakeFetcherSignIn(jwks_url=f"{ISSUER_SIGN_IN}/keys", console=None)
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
