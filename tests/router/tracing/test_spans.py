"""The spans of requests that a collector gets."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.router.conftest import Rig
from tests.support.clients.samples import MODEL
from tests.support.engine.fake_engine import CARD, RawServer, broken_after, chunk, refuse, speaks, stream
from tests.support.engine.other_answers import every_route
from tests.support.telemetry.otlp_receiver import OtlpReceiver, Span

SECRET = "my-diagnosis"
CHAT: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 5}
AZURE = "?api-version=2024-05-01-preview"
GENERATE: dict[str, Any] = {"inputs": SECRET, "parameters": {"max_new_tokens": 5}}
WAYS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "openai": ("/v1/chat/completions", CHAT, "openai", "/v1/chat/completions"),
    "openai, responses": ("/v1/responses", {"model": "chat", "input": SECRET}, "openai", "/v1/responses"),
    "anthropic": ("/v1/messages", CHAT, "anthropic", "/v1/messages"),
    "azure": (f"/models/chat/completions{AZURE}", CHAT, "azure", "/models/chat/completions"),
    "databricks": ("/serving-endpoints/chat/invocations", CHAT, "databricks", "/serving-endpoints/{name}/invocations"),
    "tgi": ("/tgi/chat/v1/chat/completions", CHAT, "tgi", "/tgi/{endpoint}/v1/chat/completions"),
    "friendli": ("/serverless/v1/chat/completions", CHAT, "friendli", "/serverless/v1/chat/completions"),
}
"""For each dialect a path, its body, the dialect's name, and the path's pattern."""


def request_of(answer: httpx.Response, collector: OtlpReceiver) -> tuple[Span, list[Span]]:
    """The request's span, and those of its calls."""
    first, *calls = collector.of(answer.headers["x-request-id"])
    return first, calls


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("way", sorted(WAYS))
def test_every_dialects_request_is_one_span_with_what_is_known_of_it(
    traced: Rig, collector: OtlpReceiver, way: str, streamed: bool
) -> None:
    path, body, dialect, route = WAYS[way]
    traced.blue.answer = every_route(traced.blue)
    answer = httpx.post(traced.url + path, json={**body, "stream": streamed})
    assert answer.status_code == 200, answer.text
    span, (call,) = request_of(answer, collector)
    assert (span.kind, span.parent, span.failed) == ("SERVER", "", False)
    assert span.name == "chat chat"
    assert (
        span.attributes.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "switchyard",
            "gen_ai.request.model": "chat",
            "gen_ai.response.model": "blue",
            "http.request.method": "POST",
            "http.route": route,
            "http.response.status_code": 200,
            "switchyard.endpoint": "chat",
            "switchyard.deployment": "blue",
            "switchyard.dialect": dialect,
            "switchyard.reason": "traffic",
            "switchyard.plan": answer.headers["x-switchyard-plan"],
            "switchyard.attempts": 1,
        }.items()
    )
    assert span.attributes.get("gen_ai.request.stream", False) is streamed
    assert "error.type" not in span.attributes
    if way != "openai, responses":  # its fake reports no tokens
        assert span.attributes["gen_ai.usage.input_tokens"] > 0
        assert span.attributes["gen_ai.usage.output_tokens"] > 0
    assert span.attributes["gen_ai.response.finish_reasons"] in (["stop"], ["end_turn"], ["length"])
    first_token: list[tuple[str, dict[str, Any]]] = [("gen_ai.first_token", {})] if streamed else []
    upstream = ("switchyard.upstream", {"switchyard.deployment": "blue", "switchyard.attempt": 1})
    assert span.events == [("switchyard.queued", {}), upstream, *first_token]
    assert span.times == sorted(span.times), "arrival, events in order, end"
    assert (call.name, call.kind, call.trace, call.failed) == ("call blue", "CLIENT", span.trace, False)
    assert (call.attributes["switchyard.deployment"], call.attributes["server.address"]) == ("blue", "127.0.0.1")
    assert span.times[0] <= call.times[0] <= call.times[1] <= span.times[-1]
    assert span.resource["service.name"] == "switchyard-router"
    parents = {headers["traceparent"] for headers in traced.blue.headers}
    assert parents == {f"00-{span.trace}-{call.id}-03"}, "every call of the engine is below the call's span"
    assert not any(SECRET.encode() in body for body in collector.received)


def test_completions_and_embeddings_have_their_own_operations(traced: Rig, collector: OtlpReceiver) -> None:
    for engine in (traced.blue, traced.mini):
        engine.answer = every_route(engine)
    completion = httpx.post(f"{traced.url}/v1/completions", json={"model": "blue", "prompt": "hi"})
    span, _ = request_of(completion, collector)
    assert (span.name, span.attributes["gen_ai.operation.name"]) == ("text_completion blue", "text_completion")
    assert (span.attributes["switchyard.reason"], span.attributes["switchyard.endpoint"]) == ("model", "chat")
    vectors = httpx.post(f"{traced.url}/v1/embeddings", json={"model": "embed", "input": "hi"})
    span, _ = request_of(vectors, collector)
    assert (span.name, span.attributes["gen_ai.operation.name"]) == ("embeddings embed", "embeddings")
    assert "gen_ai.response.finish_reasons" not in span.attributes


def test_requests_without_a_model_are_named_by_their_route(traced: Rig, collector: OtlpReceiver) -> None:
    span, calls = request_of(httpx.get(f"{traced.url}/v1/models/chat"), collector)
    assert (span.name, span.events, calls) == ("GET /v1/models/{model:path}", [], [])
    assert not any(name.startswith("gen_ai.") for name in span.attributes)
    traced.blue.answer = every_route(traced.blue)
    for path in ("/health", "/metrics", "/ready", "/ui"):
        httpx.get(traced.url + path)
    counted = httpx.post(f"{traced.url}/v1/chat/completions", json=CHAT)
    request_of(counted, collector)
    assert {span.attributes.get("http.route") for span in collector.spans if span.kind == "SERVER"} == {
        "/v1/models/{model:path}",
        "/v1/chat/completions",
    }


def test_a_replaced_deployment_is_a_call_that_failed(traced: Rig, collector: OtlpReceiver) -> None:
    traced.chat_endpoint(fallback=["green"])
    traced.blue.answer = refuse(500, "boom")
    answer = httpx.post(f"{traced.url}/v1/chat/completions", json=CHAT)
    span, (first, second) = request_of(answer, collector)
    assert (answer.status_code, span.failed, first.failed, second.failed) == (200, False, True, False)
    assert (first.attributes["switchyard.deployment"], first.attributes["error.type"]) == ("blue", "broken")
    assert second.attributes["switchyard.deployment"] == "green"
    assert span.attributes.items() >= {"switchyard.attempts": 2, "switchyard.reason": "failover"}.items()
    assert span.attributes["switchyard.deployment"] == "green"
    blue = {"switchyard.deployment": "blue", "switchyard.attempt": 1, "error.type": "broken"}
    green = {"switchyard.deployment": "green", "switchyard.attempt": 2}
    assert [attributes for name, attributes in span.events if name == "switchyard.upstream"] == [blue, green]
    assert traced.blue.headers[0]["traceparent"].split("-")[2] == first.id
    assert traced.green.headers[0]["traceparent"].split("-")[2] == second.id


@pytest.mark.parametrize(
    ("fields", "status", "kind", "failed"),
    [
        pytest.param({"model": SECRET}, 404, "not_found", False, id="an unknown model"),
        pytest.param({"temperature": SECRET}, 400, "bad_request", False, id="a wrong field"),
        pytest.param({}, 502, "broken", True, id="a broken deployment"),
    ],
)
def test_an_error_is_named_by_its_kind(
    traced: Rig, collector: OtlpReceiver, fields: dict[str, Any], status: int, kind: str, failed: bool
) -> None:
    traced.blue.answer = refuse(500, SECRET)
    traced.chat_endpoint(fallback=[])
    answer = httpx.post(f"{traced.url}/v1/chat/completions", json={**CHAT, **fields})
    span, _ = request_of(answer, collector)
    assert (answer.status_code, span.attributes["http.response.status_code"]) == (status, status)
    assert (span.attributes["error.type"], span.failed) == (kind, failed)
    assert not any(SECRET.encode() in body for body in collector.received)


async def test_a_stream_that_breaks_off_failed(traced: Rig, collector: OtlpReceiver) -> None:
    async with RawServer(broken_after(chunk("Hel"))) as url:
        traced.add("raw", url)
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{traced.url}/v1/chat/completions", json={**CHAT, "stream": True})
    span, (call,) = await asyncio.to_thread(request_of, answer, collector)
    assert (answer.status_code, span.failed, call.failed) == (200, True, True)
    assert span.attributes["error.type"] == call.attributes["error.type"] == "broken"
    assert "gen_ai.first_token" in dict(span.events)


async def test_a_client_that_leaves_ends_the_span(traced: Rig, collector: OtlpReceiver) -> None:
    traced.blue.answer = lambda body: stream([chunk("Hel"), 60.0])
    async with httpx.AsyncClient() as client:
        path, headers = f"{traced.url}/v1/chat/completions", {"x-request-id": "leaves"}
        async with client.stream("POST", path, json={**CHAT, "stream": True}, headers=headers) as answer:
            async for _ in answer.aiter_bytes():
                break
    span, *calls = await asyncio.to_thread(collector.of, "leaves")
    assert [failed_span.attributes["error.type"] for failed_span in (span, *calls)] == ["client_gone"] * 2
    assert span.failed is False, "nothing here failed"


def test_the_wait_for_a_slot_lies_between_queued_and_upstream(traced: Rig, collector: OtlpReceiver) -> None:
    traced.chat_endpoint(admission={"max_concurrent": 1, "max_queued": 5})
    traced.blue.answer = lambda body: stream([0.05, chunk("x", finish_reason="stop"), "data: [DONE]\n\n"])

    async def both() -> list[httpx.Response]:
        async with httpx.AsyncClient() as client:
            path = f"{traced.url}/v1/chat/completions"
            return await asyncio.gather(*(client.post(path, json={**CHAT, "stream": True}) for _ in range(2)))

    one, other = (request_of(answer, collector)[0] for answer in asyncio.run(both()))
    first, second = sorted((one, other), key=lambda span: span.times[2])
    assert second.times[1] < first.times[-1], "it was queued while the other one ran"
    assert second.times[2] >= first.times[3], "and called only after the other one's first token"


def test_no_word_of_a_caller_is_in_any_span(traced: Rig, collector: OtlpReceiver) -> None:
    """Texts, names, keys, session ids, query, host and unknown paths; only the request id comes from the caller."""
    traced.chat_endpoint(sticky={"by": "conversation"})
    headers = {
        "authorization": f"Bearer {SECRET}",
        "x-session-id": SECRET,
        "user-agent": SECRET,
        "host": f"{SECRET}.localhost",
        "baggage": f"a={SECRET}",
        "x-custom": SECRET,
    }
    for engine in (traced.blue, traced.mini):
        engine.answer = every_route(engine)
    for path, body, *_ in WAYS.values():
        text = json.dumps({**body, "user": SECRET}).replace(AZURE, "")
        for sent in (text, text[:-1], text.replace('"chat"', f'"{SECRET}"')):
            for url in (path, f"{path.partition('?')[0]}?q={SECRET}", f"/v1/models/{SECRET}"):
                httpx.post(traced.url + url, content=sent, headers={**headers, "content-type": "application/json"})
    httpx.get(f"{traced.url}/v1/models/{SECRET}", headers=headers)
    httpx.post(f"{traced.url}/serving-endpoints/{SECRET}/invocations", json=CHAT, headers=headers)
    last = httpx.post(f"{traced.url}/v1/chat/completions", json=CHAT)
    request_of(last, collector)
    assert len(collector.spans) > 20
    assert not any(SECRET.encode() in body for body in collector.received)


def test_numbers_that_otlp_cannot_hold_are_cut(traced: Rig, collector: OtlpReceiver) -> None:
    answer = httpx.post(f"{traced.url}/v1/chat/completions", json={**CHAT, "max_tokens": 2**64 - 1})
    span, _ = request_of(answer, collector)
    assert (answer.status_code, span.attributes["gen_ai.request.max_tokens"]) == (200, 2**63 - 1)


def test_a_dialect_with_lookups_has_all_of_them_below_one_call(traced: Rig, collector: OtlpReceiver) -> None:
    traced.blue.card, traced.blue.answer = CARD, speaks(MODEL, "hello there")
    traced.change(defaults={"completions": "chat"})
    answer = httpx.post(f"{traced.url}/tgi/chat/generate", json=GENERATE)
    span, calls = request_of(answer, collector)
    assert (len(calls), span.attributes["switchyard.dialect"]) == (1, "tgi")
