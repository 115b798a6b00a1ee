"""Limits of callers: rejections, response headers, and that reservations are released."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from starlette.responses import JSONResponse

from app.config.access import Limits
from tests.router.access.test_access import DIALECTS, DialectRequest, Keys, ask, every_dialect, tokenizers
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import chunk, refuse, stream

CHAT: dict[str, Any] = {
    "model": "chat",
    "messages": [{"role": "user", "content": "x" * 396}],
}  # estimated at 100 tokens
TOKENS = "x-ratelimit-remaining-tokens"
REQUESTS = "x-ratelimit-remaining-requests"


__all__ = ["tokenizers"]  # a fixture


def limit(rig: Rig, **limits: int) -> None:
    """Limits for everyone."""
    rig.change(access={"limits": {"default": limits}})


async def chat(rig: Rig, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(f"{rig.url}/v1/chat/completions", json={**CHAT, **fields})


ERRORS: dict[str, Callable[[httpx.Response], object]] = {
    "openai": lambda answer: (answer.json()["error"]["type"], answer.json()["error"]["code"]),
    "azure openai": lambda answer: (answer.json()["error"]["type"], answer.json()["error"]["code"]),
    "azure": lambda answer: (answer.json()["error"], answer.json()["code"], answer.headers["x-ms-error-code"]),
    "anthropic": lambda answer: (answer.json()["type"], answer.json()["error"]["type"]),
    "databricks": lambda answer: answer.json()["error_code"],
    "tgi": lambda answer: answer.json()["error_type"],
}
TOLD: dict[str, object] = {
    "openai": ("rate_limit_error", "rate_limit_exceeded"),
    "azure openai": ("rate_limit_error", "rate_limit_exceeded"),
    "azure": ("Too Many Requests", "TooManyRequests", "TooManyRequests"),
    "anthropic": ("error", "rate_limit_error"),
    "databricks": "REQUEST_LIMIT_EXCEEDED",
    "tgi": "overloaded",
}


@pytest.mark.parametrize("name", DIALECTS)
def test_over_a_limit_every_dialect_answers_429_in_its_format(rig: Rig, name: str) -> None:
    limit(rig, requests_per_minute=1)
    served, refused = (ask(rig, DIALECTS[name], None) for _ in range(2))
    assert served.status_code == 200
    assert refused.status_code == 429
    assert ERRORS[name](refused) == TOLD[name]
    wait = int(refused.headers["retry-after"])
    assert 1 <= wait <= 120
    assert f"1 requests per minute, of which 1 are used; it frees in {wait} s" in refused.text
    for answer in (served, refused):
        assert answer.headers["x-ratelimit-limit-requests"] == "1"
        assert answer.headers[REQUESTS] == "0"
        assert re.fullmatch(r"(\d+m)?[\d.]+m?s", answer.headers["x-ratelimit-reset-requests"])
    assert "x-ratelimit-limit-tokens" not in served.headers


def test_a_limit_is_a_status_on_tgis_streams_too(rig: Rig) -> None:
    """TGI would send most errors of a stream in an event after a 200."""
    limit(rig, requests_per_minute=1)
    path, streamed = "/tgi/chat/v1/chat/completions", {**DIALECTS["tgi"].body, "stream": True}
    served, refused = (httpx.post(rig.url + path, json=streamed) for _ in range(2))
    assert (served.status_code, refused.status_code) == (200, 429)
    assert refused.json()["error_type"] == "overloaded"
    assert int(refused.headers["retry-after"]) >= 1


@every_dialect
def test_without_limits_there_are_no_limit_headers(rig: Rig, spoken: DialectRequest) -> None:
    assert not [name for name in ask(rig, spoken, None).headers if name.startswith("x-ratelimit")]


def test_the_sdks_raise_their_own_errors(rig: Rig) -> None:
    limit(rig, requests_per_minute=1)
    with openai.OpenAI(base_url=f"{rig.url}/v1", api_key="unused", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(**CHAT)
        assert raw.headers[REQUESTS] == "0"
        with pytest.raises(openai.RateLimitError, match="requests per minute"):
            client.chat.completions.create(**CHAT)
    claude = anthropic.Anthropic(base_url=rig.url, api_key="unused", max_retries=0)
    with claude, pytest.raises(anthropic.RateLimitError, match="requests per minute"):
        claude.messages.create(**CHAT, max_tokens=3)


async def test_an_answer_is_settled_with_what_the_engine_counted(rig: Rig) -> None:
    limit(rig, tokens_per_minute=1000)
    assert (await chat(rig)).headers[TOKENS] == "900"
    assert (await chat(rig)).headers[TOKENS] == "888"  # the first one took 9 + 3


async def test_a_stream_is_settled_with_what_the_engine_counted(rig: Rig) -> None:
    limit(rig, tokens_per_minute=1000)
    first = await chat(rig, stream=True)
    assert first.headers[TOKENS] == "900"
    assert first.text.endswith("data: [DONE]\n\n")
    assert (await chat(rig)).headers[TOKENS] == "888"


async def test_a_stream_without_counts_costs_its_events(rig: Rig) -> None:
    limit(rig, tokens_per_minute=1000)
    rig.blue.answer = lambda body: stream([chunk("a"), chunk("b"), chunk("c")])
    assert "error" in (await chat(rig, stream=True)).text
    assert (await chat(rig, stream=True)).headers[TOKENS] == "797"


async def test_a_client_that_leaves_a_stream_pays_for_what_it_got(rig: Rig) -> None:
    limit(rig, tokens_per_minute=1000, concurrent_requests=1)
    rig.blue.answer = lambda body: stream([chunk("a"), chunk("b"), 30.0, chunk("c")])
    async with httpx.AsyncClient() as client:
        request = client.stream("POST", f"{rig.url}/v1/chat/completions", json={**CHAT, "stream": True})
        async with request as answer:
            got = ""
            async for text in answer.aiter_text():
                got += text
                if got.count("\n\n") == 2:
                    break
    rig.blue.reset()

    async def next_one() -> httpx.Response:
        while (answer := await chat(rig)).status_code == 429:
            assert "concurrent" in answer.text
            await asyncio.sleep(0.02)
        return answer

    assert (await asyncio.wait_for(next_one(), 10)).headers[TOKENS] == "798"


async def test_a_failed_request_costs_no_tokens(rig: Rig) -> None:
    limit(rig, tokens_per_minute=1000, concurrent_requests=1)
    for answer in (refuse(400, "bad", "n"), refuse(500, "boom"), refuse(503, "full")):
        rig.blue.answer = answer
        failed = await chat(rig)
        assert failed.status_code >= 400
        assert failed.headers[TOKENS] == "900"
    rig.blue.reset()
    assert (await chat(rig)).headers[TOKENS] == "900"


async def test_embeddings_count_too(rig: Rig) -> None:
    limit(rig, tokens_per_minute=1000)
    rig.mini.answer = lambda body: JSONResponse(
        {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 40, "total_tokens": 40}}
    )
    async with httpx.AsyncClient() as client:
        body = {"model": "embed", "input": "x" * 400}
        answers = [await client.post(f"{rig.url}/v1/embeddings", json=body) for _ in range(2)]
    assert [answer.headers[TOKENS] for answer in answers] == ["900", "860"]


async def test_a_prompt_larger_than_the_limit_is_a_413(rig: Rig) -> None:
    limit(rig, tokens_per_minute=50)
    answer = await chat(rig)
    assert answer.status_code == 413
    assert "retry-after" not in answer.headers
    assert "can never admit; shorten it" in answer.text


async def test_concurrent_requests_are_limited(rig: Rig) -> None:
    limit(rig, concurrent_requests=2)
    rig.blue.answer = lambda body: stream([0.5, chunk("a", finish_reason="stop"), "data: [DONE]\n\n"])
    answers = await asyncio.gather(*(chat(rig, stream=True) for _ in range(6)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429, 429]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert "2 concurrent requests; one frees as soon as another ends" in refused.text
    rig.blue.reset()
    assert (await chat(rig)).status_code == 200


def test_a_key_brings_its_own_limits_and_others_keep_theirs(rig: Rig, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.yaml")
    small = keys.new("small", limits=Limits(requests_per_minute=1))
    rig.change(
        access={
            "keys_file": str(keys.path),
            "limits": {"default": {"requests_per_minute": 100}, "callers": {"chat team": {"requests_per_minute": 7}}},
        }
    )
    answers = {key: ask(rig, DIALECTS["openai"], key) for key in (small, keys.chat, keys.all)}
    in_force = [answer.headers["x-ratelimit-limit-requests"] for answer in answers.values()]
    assert in_force == ["1", "7", "100"]
    assert [ask(rig, DIALECTS["openai"], key).status_code for key in answers] == [429, 200, 200]


def test_naming_a_deployment_does_not_bypass_limits(rig: Rig) -> None:
    rig.change(access={"limits": {"endpoints": {"chat": {"requests_per_minute": 2}}}})
    rig.chat_endpoint(traffic={"blue": 100}, fallback=["green"])
    statuses = [
        httpx.post(f"{rig.url}/v1/chat/completions", json={**CHAT, "model": name}).status_code
        for name in ("blue", "green", "blue", "green", "chat")
    ]
    assert statuses == [200, 200, 429, 429, 429]


async def test_a_client_timeout_is_still_charged(rig: Rig) -> None:
    """The engine has worked even if the client's timeout is very short."""
    limit(rig, tokens_per_minute=1000)
    rig.blue.answer = lambda body: stream([5.0])
    async with httpx.AsyncClient() as client:
        hasty = await client.post(f"{rig.url}/v1/chat/completions", json=CHAT, headers={"x-request-timeout-s": "0.2"})
    assert hasty.status_code == 504
    rig.blue.reset()
    assert (await chat(rig)).headers[TOKENS] == "800"


def test_a_local_answer_is_not_counted(rig: Rig) -> None:
    limit(rig, requests_per_minute=1)
    for _ in range(3):
        assert httpx.get(f"{rig.url}/v1/models").status_code == 200


def test_counts_survive_a_change_of_the_configuration(rig: Rig) -> None:
    limit(rig, requests_per_minute=2)
    ask(rig, DIALECTS["openai"], None)
    rig.chat_endpoint(traffic={"blue": 0, "green": 100})
    assert ask(rig, DIALECTS["openai"], None).headers[REQUESTS] == "0"
    limit(rig, requests_per_minute=5)
    assert ask(rig, DIALECTS["openai"], None).headers[REQUESTS] == "2"


def test_how_much_of_its_limit_a_caller_uses_is_counted_without_its_name(rig: Rig) -> None:
    limit(rig, requests_per_minute=4)
    for _ in range(3):
        ask(rig, DIALECTS["openai"], None)
    lines = httpx.get(f"{rig.url}/metrics").text.splitlines()
    assert 'switchyard_limit_used_ratio_bucket{endpoint="chat",le="0.5",limit="requests"} 2.0' in lines
    assert 'switchyard_limit_used_ratio_sum{endpoint="chat",limit="requests"} 1.5' in lines


def test_refusals_are_counted(rig: Rig) -> None:
    limit(rig, requests_per_minute=1)
    for _ in range(3):
        ask(rig, DIALECTS["openai"], None)
    lines = httpx.get(f"{rig.url}/metrics").text.splitlines()
    assert 'switchyard_limited_requests_total{endpoint="chat",limit="requests"} 2.0' in lines
    assert any('error_type="limit_exceeded"' in line and 'status="429"' in line for line in lines)


INVALID: dict[str, tuple[str, bytes]] = {
    "no JSON": ("/openai/deployments/chat/chat/completions", b"{"),
    "no messages": ("/v1/chat/completions", b'{"model":"chat"}'),
    "an unknown field": ("/v1/chat/completions", b'{"model":"chat","messages":[{"role":"user","content":"a"}],"x":1}'),
    "no endpoint": ("/v1/chat/completions", b"{"),
    "an unknown endpoint": ("/v1/chat/completions", b'{"model":"x","messages":[{"role":"user","content":"a"}]}'),
    "another task": ("/v1/embeddings", b'{"model":"chat","input":"a"}'),
    "feedback": ("/api/feedback", b'{"metric":5}'),
    "feedback with a query": ("/api/feedback?x=1", b"{}"),
    "too large": ("/serving-endpoints/chat/invocations", b" " * 5000),
}


@pytest.mark.parametrize("name", INVALID)
async def test_invalid_requests_count(rig: Rig, name: str) -> None:
    limit(rig, requests_per_minute=2)
    rig.change(max_body_bytes=4096)
    path, body = INVALID[name]
    async with httpx.AsyncClient() as client:
        answers = [await client.post(rig.url + path, content=body) for _ in range(5)]
    statuses = [answer.status_code for answer in answers]
    assert [status for status in statuses if status == 429] == [429] * 3, statuses
    assert all("2 requests per minute" in answer.text for answer in answers[2:])
    assert int(answers[2].headers["retry-after"]) > 0


async def test_over_a_limit_no_body_is_read(rig: Rig) -> None:
    limit(rig, requests_per_minute=1)
    assert (await chat(rig)).status_code == 200
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /openai/deployments/chat/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 900\r\n\r\n"
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 429")
    writer.close()
    await writer.wait_closed()
