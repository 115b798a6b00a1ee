"""Signing in to the console with an issuer: authorization code with PKCE, in a real browser, against an issuer that
checks every part of it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from tests.router.conftest import Rig
from tests.router.console.conftest import OpenPage
from tests.support.clients.browser import Watch, accessibility_problems, overflow, screenshot
from tests.support.clients.sign_in_provider import CLIENT, SignInProvider
from tests.support.processes.oidc_provider import AUDIENCE, rsa_key
from tests.support.processes.servers import ServerPool

PENDING = "switchyard-sign-in"


@pytest.fixture(scope="module")
def signing_key() -> Any:
    return rsa_key()


@pytest.fixture
def issuer(rig: Rig, servers: ServerPool, signing_key: Any) -> Iterator[SignInProvider]:
    """An issuer that the rig trusts, with the console registered as a client."""
    issuer = SignInProvider(keys={"first": ("RS256", signing_key)}, origin=rig.url)
    with servers.host(issuer.app) as issuer.url:
        trust(rig, issuer)
        yield issuer


def trust(rig: Rig, issuer: SignInProvider, **console: Any) -> None:
    oidc = {"issuer": issuer.url, "audience": AUDIENCE, "console": {"client_id": CLIENT, **console}}
    rig.change(access={"oidc": oidc, "managers": ["alice"]})


async def opened(open_page: OpenPage, rig: Rig, issuer: SignInProvider, path: str = "/ui#/keys") -> tuple[Page, Watch]:
    page, watch = await open_page(rig.url)
    # The issuer's part: the page that the user visits, and the one request that the policy allows.
    watch.expected = ["401", f"host: {issuer.url}/authorize?", f"host: {issuer.url}/oauth/token"]
    await page.goto(path)
    return page, watch


async def sign_in(page: Page) -> None:
    await page.get_by_role("button", name="Sign in with 127.0.0.1").click()
    await page.get_by_role("link", name="Continue as alice").click()


async def screenshot_of_dialog(page: Page) -> None:
    """Takes the picture with an issuer's name instead of the test's address."""
    await page.get_by_role("button", name="Sign in with 127.0.0.1").evaluate(
        "(it) => (it.textContent = 'Sign in with id.example.com')"
    )
    await screenshot(page, "console-sign-in-issuer", whole=False)
    await page.reload()
    await expect(page.get_by_role("button", name="Sign in with 127.0.0.1")).to_be_focused()


async def refused(page: Page, words: str) -> None:
    """Waits until the dialog shows this text, and asserts that no one is signed in."""
    await expect(page.get_by_role("dialog").get_by_role("alert").first).to_contain_text(words)
    await expect(page.locator("#sign-in")).to_have_text("Sign in")
    assert await page.evaluate("sessionStorage.length") == 0


async def test_signing_in_with_the_issuer_returns_to_the_same_page(
    rig: Rig, issuer: SignInProvider, open_page: OpenPage
) -> None:
    page, _ = await opened(open_page, rig, issuer)
    await expect(page.get_by_role("button", name="Sign in with 127.0.0.1")).to_be_focused()
    assert await accessibility_problems(page) == []
    await screenshot_of_dialog(page)
    await page.set_viewport_size({"width": 360, "height": 740})
    assert await overflow(page) == 0
    await sign_in(page)
    await expect(page.get_by_text("You are alice.")).to_be_visible()
    await expect(page.get_by_text("You are a manager")).to_be_visible()
    assert page.url == f"{rig.url}/ui#/keys"
    assert await page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [0, 0, ""]
    assert (issuer.redeemed, issuer.problems) == (1, [])
    assert issuer.calls["scope"] == "openid"
    assert issuer.calls["code_challenge"] not in ("", issuer.calls["state"], issuer.calls["nonce"])
    # The token is only in memory: after a reload the page asks again.
    await page.reload()
    await expect(page.get_by_role("dialog")).to_be_visible()


async def test_signing_out_forgets_the_token_but_not_the_issuers_session(
    rig: Rig, issuer: SignInProvider, open_page: OpenPage
) -> None:
    page, _ = await opened(open_page, rig, issuer)
    await sign_in(page)
    await expect(page.get_by_text("You are alice.")).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.locator("#announcements")).to_have_text(
        "Signed out of this page. You may still be signed in with your issuer."
    )
    await expect(page.get_by_role("dialog")).to_be_visible()
    await expect(page.get_by_text("You are alice.")).to_have_count(0)


async def test_an_expired_sign_in_asks_again(rig: Rig, issuer: SignInProvider, open_page: OpenPage) -> None:
    page, _ = await opened(open_page, rig, issuer)
    await page.clock.install()
    await sign_in(page)
    await expect(page.get_by_text("You are alice.")).to_be_visible()
    await page.clock.run_for(590_000)
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.clock.run_for(20_000)
    await refused(page, "Your sign-in has expired. Please sign in again.")
    await expect(page.get_by_role("button", name="Sign in with 127.0.0.1")).to_be_enabled()


async def test_a_wrong_browser_clock_does_not_change_the_lifetime(
    rig: Rig, issuer: SignInProvider, open_page: OpenPage
) -> None:
    page, _ = await opened(open_page, rig, issuer)
    await page.clock.install(time="2040-01-01T00:00:00Z")
    await sign_in(page)
    await expect(page.get_by_text("You are alice.")).to_be_visible()
    await page.clock.run_for(590_000)
    await expect(page.get_by_text("You are alice.")).to_be_visible()
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_sign_in_started_elsewhere_sends_nothing(rig: Rig, issuer: SignInProvider, open_page: OpenPage) -> None:
    page, _ = await opened(open_page, rig, issuer, f"/ui?code=stolen&state=guessed&iss={issuer.url}")
    await refused(page, "This sign-in was not started in this tab")
    assert issuer.redeemed == 0
    assert page.url == f"{rig.url}/ui"


async def test_an_answer_with_a_wrong_state_is_refused_and_ends_the_sign_in(
    rig: Rig, issuer: SignInProvider, open_page: OpenPage
) -> None:
    issuer.answer_fields = {"state": "somebody-elses"}
    page, _ = await opened(open_page, rig, issuer)
    await sign_in(page)
    await refused(page, "This sign-in was not started in this tab")
    assert issuer.redeemed == 0


async def test_another_sign_ins_code_does_not_match_the_verifier(
    rig: Rig, issuer: SignInProvider, open_page: OpenPage
) -> None:
    page, watch = await opened(open_page, rig, issuer)
    watch.expected.append("400")
    await page.get_by_role("button", name="Sign in with 127.0.0.1").click()
    await expect(page.get_by_role("link", name="Continue as alice")).to_be_visible()
    state = issuer.calls["state"]
    mine = {**issuer.calls, "state": "mallory", "code_challenge": "A" * 43, "prompt": "none"}
    async with httpx.AsyncClient() as mallory:
        answer = await mallory.get(f"{issuer.url}/authorize", params=mine)
    code = httpx.URL(answer.headers["location"]).params["code"]
    await page.goto(f"/ui?code={code}&state={state}&iss={issuer.url}")
    await refused(page, "invalid_grant (the verifier does not fit the challenge)")
    assert issuer.problems == ["the verifier does not fit the challenge"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"refuses": "access_denied"}, "The issuer did not sign you in: access denied (not on a Sunday)."),
        ({"answer_fields": {"iss": "https://evil.example.com"}}, "does not come from the issuer"),
        ({"identity": {"nonce": "another"}}, "belongs to another sign-in"),
        ({"identity": {"aud": "somebody-else"}}, "The issuer's ID token was issued to another client."),
        ({"identity": {"iss": "https://evil.example.com"}}, "The issuer's ID token was issued to another client."),
        ({"extra": {"id_token": None}}, "has no ID token"),
        ({"extra": {"token_type": "DPoP"}}, "has no bearer token"),
        ({"extra": {"access_token": "opaque"}}, "access token is not a JWT"),
        ({"access": {"aud": "somebody-else"}}, "not accept your sign-in: The bearer token is for another audience."),
        ({"access": {"sub": None}}, "does not name its owner in the claim 'sub'"),
        ({"allows_origin": False}, "must be up, and allow requests of http://127.0.0.1"),
    ],
    ids=lambda parameter: next(iter(parameter)) if isinstance(parameter, dict) else "",
)
async def test_failed_sign_ins_are_reported_in_words(
    rig: Rig, issuer: SignInProvider, open_page: OpenPage, changes: dict[str, Any], words: str
) -> None:
    for name, value in changes.items():
        setattr(issuer, name, value)
    page, watch = await opened(open_page, rig, issuer)
    if not issuer.allows_origin:
        watch.expected += ["CORS", "ERR_FAILED"]
    await sign_in(page)
    await refused(page, words)
    assert await page.get_by_text("You are alice.").count() == 0


async def test_the_id_token_can_be_the_credential(rig: Rig, issuer: SignInProvider, open_page: OpenPage) -> None:
    """For issuers with opaque access tokens: the audience is then the console's client id."""
    trust(rig, issuer, token="id_token", parameters={"resource": "urn:models"}, scopes=["openid", "email"])
    oidc = {**rig.config["access"]["oidc"], "audience": CLIENT}
    rig.change(access={"oidc": oidc})
    issuer.extra = {"access_token": "opaque"}
    page, _ = await opened(open_page, rig, issuer)
    await sign_in(page)
    await expect(page.get_by_text("You are alice.")).to_be_visible()
    assert (issuer.calls["resource"], issuer.calls["scope"]) == ("urn:models", "openid email")


async def test_the_policy_allows_the_token_endpoint_and_nothing_else_of_the_issuer(
    rig: Rig, issuer: SignInProvider, open_page: OpenPage
) -> None:
    page, watch = await opened(open_page, rig, issuer)
    await expect(page.get_by_role("dialog")).to_be_visible()
    watch.expected += [
        "policy: connect-src refused",
        "Content Security Policy",
        "CORS",
        "ERR_FAILED",
        "oauth/token/more",
    ]
    reached = []
    page.on("requestfinished", lambda request: reached.append(request.url))
    for path in ("/keys", "/oauth/token/more", "/oauth", "/"):
        failed = await page.evaluate("(url) => fetch(url).then(() => false, () => true)", f"{issuer.url}{path}")
        assert failed, path
    assert issuer.fetches == 1, "requests to the router alone"
    assert not [url for url in reached if url.startswith(issuer.url)]


async def test_without_the_issuer_a_key_still_works(rig: Rig, issuer: SignInProvider, open_page: OpenPage) -> None:
    issuer.about = {"authorization_endpoint": "http://evil.example.com/authorize"}
    trust(rig, issuer, scopes=["openid", "more"])  # the router reads it again
    page, _ = await opened(open_page, rig, issuer)
    await expect(page.get_by_role("button", name="Sign in with 127.0.0.1")).to_be_disabled()
    await expect(page.get_by_text("does not answer this server at the moment")).to_be_visible()
    await page.get_by_label("Or with an API key").fill(issuer.token())
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("You are alice.")).to_be_visible()


async def test_a_hostile_description_stays_text(rig: Rig, issuer: SignInProvider, open_page: OpenPage) -> None:
    page, _ = await opened(open_page, rig, issuer)
    await page.get_by_role("button", name="Sign in with 127.0.0.1").click()
    await expect(page.get_by_role("link", name="Continue as alice")).to_be_visible()
    hostile = "<img src=x onerror=document.title='broken'>"
    query = str(httpx.QueryParams({"error": hostile, "state": issuer.calls["state"], "iss": issuer.url}))
    await page.goto(f"/ui?{query}")
    await refused(page, hostile)
    assert await page.locator("dialog img").count() == 0


async def test_the_stored_state_is_used_for_one_redirect_only(
    rig: Rig, issuer: SignInProvider, open_page: OpenPage
) -> None:
    page, _ = await opened(open_page, rig, issuer)
    await page.get_by_role("button", name="Sign in with 127.0.0.1").click()
    await expect(page.get_by_role("link", name="Continue as alice")).to_be_visible()
    await page.goto("/ui#/traffic")  # the user changed their mind
    await expect(page.get_by_role("dialog")).to_be_visible()
    assert await page.evaluate("sessionStorage.length") == 0


def test_the_sign_in_settings_are_public_facts_only(rig: Rig, issuer: SignInProvider) -> None:
    answer = httpx.get(f"{rig.url}/ui/sign-in")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {
        "credentials": True,
        "required": True,
        "oidc": {
            "issuer": issuer.url,
            "authorization_endpoint": f"{issuer.url}/authorize",
            "token_endpoint": f"{issuer.url}/oauth/token",
            "names_itself": True,
            "client_id": CLIENT,
            "scope": "openid",
            "token": "access_token",
            "parameters": {},
        },
    }
    assert "secret" not in json.dumps(answer.json())
    page = httpx.get(f"{rig.url}/ui")
    assert f"connect-src 'self' {issuer.url}/oauth/token;" in page.headers["content-security-policy"]
    before = page.headers["etag"]
    rig.change(access={"oidc": {"issuer": issuer.url, "audience": AUDIENCE}})
    after = httpx.get(f"{rig.url}/ui", headers={"if-none-match": before})
    assert after.status_code == 200, "the policy has changed, so the page has"
    assert "connect-src 'self';" in after.headers["content-security-policy"]
    assert httpx.get(f"{rig.url}/ui/sign-in").json() == {"credentials": True, "required": True, "oidc": None}
