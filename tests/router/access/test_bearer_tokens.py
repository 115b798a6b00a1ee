"""Bearer tokens of a real issuer over HTTP: discovery, rotation, outages, and rejected tokens."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.responses import RedirectResponse, Response

from app.access.oidc import RETRY_S
from app.access.refusals import MOST_A_MINUTE
from tests.router.access.test_access import Keys
from tests.router.conftest import PROMPT, Rig
from tests.support.processes.oidc_provider import AUDIENCE, LocalIssuer, hostile_tokens, rsa_key
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def signing_keys() -> dict[str, Any]:
    """Created once, because an RSA key takes time."""
    return {"first": ("RS256", rsa_key()), "second": ("RS256", rsa_key())}


@pytest.fixture
def issuer(rig: Rig, servers: ServerPool, signing_keys: dict[str, Any]) -> Iterator[LocalIssuer]:
    """The rig trusts this issuer, which has its first key."""
    issuer = LocalIssuer(keys={"first": signing_keys["first"]})
    with servers.host(issuer.app) as issuer.url:
        rig.change(access={"oidc": {"issuer": issuer.url, "audience": AUDIENCE, "endpoints_claim": "models"}})
        yield issuer


def ask(rig: Rig, token: str, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.post(f"{rig.url}/v1/chat/completions", json={**CHAT, **fields}, headers=headers)


def test_a_token_of_the_issuer_is_a_credential(rig: Rig, issuer: LocalIssuer) -> None:
    for _ in range(5):
        assert ask(rig, issuer.token(models=["chat"])).status_code == 200
    assert issuer.fetches == 1
    with openai.OpenAI(base_url=f"{rig.url}/v1", api_key=issuer.token(models=["embed"])) as client:
        assert {model.id for model in client.models.list()} == {"embed", "mini"}
        with pytest.raises(openai.PermissionDeniedError, match="'alice' may not use 'chat'; it may use: embed"):
            client.chat.completions.create(**CHAT)  # type: ignore[call-overload]
    assert ask(rig, issuer.token()).status_code == 403


def test_no_hostile_token_gets_through(rig: Rig, issuer: LocalIssuer) -> None:
    assert ask(rig, "no token at all").status_code == 401
    assert httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT).status_code == 401
    for number, (trick, token) in enumerate(hostile_tokens(issuer).items(), start=3):
        answer = ask(rig, token)
        refusal = (401, "invalid_api_key") if number <= MOST_A_MINUTE else (429, "rate_limit_exceeded")
        assert (answer.status_code, answer.json()["error"]["code"]) == refusal, trick
        assert token not in answer.text
    assert rig.blue.requests == []


@pytest.mark.parametrize("access_timing", [replace(PROMPT, issuer_retry_s=0)], ids=["no pause between fetches"])
def test_a_rotated_key_is_found_and_the_old_one_ends(
    rig: Rig, issuer: LocalIssuer, signing_keys: dict[str, Any]
) -> None:
    old = issuer.token(models=["chat"])
    assert ask(rig, old).status_code == 200
    issuer.keys = {"second": signing_keys["second"]}
    assert ask(rig, issuer.token(kid="second", models=["chat"])).status_code == 200
    assert ask(rig, old).status_code == 401


def test_made_up_key_ids_do_not_make_the_router_ask_the_issuer_each_time(rig: Rig, issuer: LocalIssuer) -> None:
    ask(rig, issuer.token())
    for number in range(10):
        assert ask(rig, issuer.token(headers={"kid": f"made-up-{number}"})).status_code == 401
    assert issuer.fetches == 1
    assert RETRY_S > 5


def test_known_keys_stay_valid_while_the_issuer_is_down(rig: Rig, issuer: LocalIssuer) -> None:
    assert ask(rig, issuer.token(models=["chat"])).status_code == 200
    issuer.up = False
    assert ask(rig, issuer.token(models=["chat"])).status_code == 200


def test_an_issuer_that_never_answered_is_a_503(rig: Rig, issuer: LocalIssuer) -> None:
    issuer.up = False
    answer = ask(rig, issuer.token())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert issuer.url not in answer.text


@pytest.mark.parametrize(
    "instead",
    [
        RedirectResponse("/elsewhere", 302),
        RedirectResponse("/elsewhere", 308),
        Response(b'{"keys": [' + b" " * 2_000_000 + b"]}"),
        Response(b"<html>"),
        Response(status_code=204),
    ],
    ids=["a redirect", "a permanent redirect", "endless", "no keys", "nothing"],
)
def test_a_malformed_answer_of_the_issuer_is_a_503(rig: Rig, issuer: LocalIssuer, instead: Response) -> None:
    issuer.instead = instead
    assert ask(rig, issuer.token()).status_code == 503


def test_keys_and_tokens_go_together(rig: Rig, issuer: LocalIssuer, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.yaml")
    rig.change(access={"keys_file": str(keys.path)})
    assert ask(rig, keys.chat).status_code == 200
    assert ask(rig, keys.wrong).status_code == 401
    assert ask(rig, issuer.token(models=["chat"])).status_code == 200


@pytest.mark.parametrize("access_timing", [replace(PROMPT, issuer_timeout_s=60)], ids=["a fetch may take a minute"])
def test_a_hanging_issuer_does_not_delay_the_revocation_of_a_key(rig: Rig, issuer: LocalIssuer, tmp_path: Path) -> None:
    issuer.slow_s = 60
    keys = Keys(tmp_path / "keys.yaml")
    rig.change(access={"keys_file": str(keys.path)})
    wait_until(lambda: issuer.fetches == 1)
    assert ask(rig, keys.chat).status_code == 200
    keys.path.write_text("")
    wait_until(lambda: ask(rig, keys.chat).status_code == 401, within_s=15)


def test_a_change_of_something_else_keeps_the_issuers_keys(rig: Rig, issuer: LocalIssuer) -> None:
    assert ask(rig, issuer.token(models=["chat"])).status_code == 200
    rig.chat_endpoint(traffic={"blue": 0, "green": 100})
    assert ask(rig, issuer.token(models=["chat"])).status_code == 200
    assert issuer.fetches == 1


def test_the_error_for_an_expired_token_says_so(rig: Rig, issuer: LocalIssuer) -> None:
    answer = ask(rig, issuer.token(exp=int(time.time()) - 3600))
    assert answer.json()["error"]["message"] == "The bearer token has expired"
