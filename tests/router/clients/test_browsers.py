"""Requirements of browsers and old clients on the HTTP server: cross-origin requests, and no chunks in HTTP/1.0."""

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.dialects.registry import DIALECTS
from tests.router.conftest import Rig
from tests.router.hostile.strategies import VALID
from tests.support.engine.fake_engine import CARD, chat
from tests.support.engine.other_answers import every_route

ORIGIN = "https://app.example.com"
BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def client(rig: Rig) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=rig.url, timeout=30) as client:
        yield client


def preflight(client: httpx.Client, path: str, headers: str, origin: str = ORIGIN) -> httpx.Response:
    asks = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": headers}
    return client.options(path, headers=asks)


def test_without_cors_no_origin_is_allowed(client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json=BODY, headers={"origin": ORIGIN})
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert preflight(client, "/v1/chat/completions", "authorization").status_code == 403


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/chat/completions", "authorization, content-type, x-stainless-lang, openai-organization"),
        ("/v1/messages", "x-api-key, anthropic-version, anthropic-dangerous-direct-browser-access"),
        ("/chat/completions", "api-key, extra-parameters, x-ms-useragent, azureml-model-deployment"),
        ("/serving-endpoints/chat/invocations", "authorization"),
        ("/tgi/generate", "content-type"),
        ("/serverless/v1/chat/completions", "x-friendli-team"),
    ],
)
def test_a_preflight_allows_every_dialects_headers(rig: Rig, client: httpx.Client, path: str, headers: str) -> None:
    rig.change(cors={"origins": [ORIGIN]})
    answer = preflight(client, path, headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == headers
    assert rig.blue.requests == []


def test_an_answer_and_an_error_show_their_headers_to_scripts(rig: Rig, client: httpx.Client) -> None:
    rig.change(cors={"origins": [ORIGIN]})
    for path, status in (("/v1/chat/completions", 200), ("/v1/nothing", 404)):
        answer = client.post(path, json=BODY, headers={"origin": ORIGIN})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"x-request-id", "azureml-model-deployment", "retry-after"} <= set(exposed)


FOR_PROXIES = {"connection", "date", "server", "transfer-encoding", "vary", "x-accel-buffering"}
FOR_BROWSERS = {"x-content-type-options"}
ALWAYS_SHOWN = {"cache-control", "content-language", "content-length", "content-type", "expires", "last-modified"}
"""CORS-safelisted response headers (Fetch, 2.2.6)."""


def test_scripts_may_read_every_header_that_answers_have(rig: Rig, client: httpx.Client, tmp_path: Path) -> None:
    defaults = {"chat": "chat", "completions": "chat", "embeddings": "embed"}
    limits = {"default": {"requests_per_minute": 1000, "tokens_per_minute": 1_000_000}}
    rig.change(cors={"origins": [ORIGIN]}, defaults=defaults, access={"limits": limits})
    for engine in (rig.blue, rig.mini):
        engine.answer, engine.card = every_route(engine), CARD
    answers = [client.post(path, json=body, headers={"origin": ORIGIN}) for path, _, body in VALID]
    answered = [dialects for (_, dialects, _), answer in zip(VALID, answers, strict=True) if answer.is_success]
    assert set().union(*answered) == {dialect.name for dialect in DIALECTS}
    answers += [client.get(path, headers={"origin": ORIGIN}) for path in {path for path, _, _ in VALID}]
    answers += [client.post(path, content=b"{", headers={"origin": ORIGIN}) for path in {path for path, _, _ in VALID}]
    answers += [client.get("/api/endpoints/chat/traffic", headers={"origin": ORIGIN})]
    rig.change(access={"limits": {"default": {"requests_per_minute": 1}}})
    answers += [client.post(path, json=body, headers={"origin": ORIGIN}) for path, _, body in VALID]
    keys = tmp_path / "keys.yaml"
    keys.write_text("[]\n")
    rig.change(access={"keys_file": str(keys)})
    answers += [client.post(path, json=body, headers={"origin": ORIGIN}) for path, _, body in VALID]
    assert {answer.status_code for answer in answers} >= {200, 400, 401, 405, 429}
    for answer in answers:
        shown = set(answer.headers["access-control-expose-headers"].split(", "))
        sent = {name for name in answer.headers if not name.startswith("access-control-")}
        assert sent - FOR_PROXIES - FOR_BROWSERS - ALWAYS_SHOWN <= shown, answer.request.url


def test_another_origin_is_not_allowed(rig: Rig, client: httpx.Client) -> None:
    rig.change(cors={"origins": [ORIGIN]})
    assert preflight(client, "/v1/chat/completions", "authorization", "https://evil.example").status_code == 400
    answer = client.post("/v1/chat/completions", json=BODY, headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_cors_changes_with_the_configuration(rig: Rig, client: httpx.Client) -> None:
    rig.change(cors={"origins": [ORIGIN]})
    rig.change(cors={"origins": ["*"]})
    answer = client.post("/v1/chat/completions", json=BODY, headers={"origin": "https://any.example"})
    assert answer.headers["access-control-allow-origin"] == "*"


def raw(rig: Rig, request: bytes) -> bytes:
    host, _, port = rig.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_stream_for_an_http_1_0_client_has_a_length_and_no_chunks(rig: Rig) -> None:
    rig.blue.answer = chat
    body = b'{"model":"chat","stream":true,"messages":[{"role":"user","content":"hi"}]}'
    head = b"POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    answer = raw(rig, head % len(body) + body)
    headers, _, content = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers.lower()
    assert b"content-length: %d\r\n" % len(content) in headers.lower() + b"\r\n"
    assert content.startswith(b"data: {")
    assert content.endswith(b"data: [DONE]\n\n")


def test_the_same_deployment_header_twice_is_one(rig: Rig, client: httpx.Client) -> None:
    twice = [("azureml-model-deployment", "green"), ("azureml-model-deployment", "green")]
    answer = client.post("/v1/chat/completions", json=BODY, headers=twice)
    assert (answer.status_code, answer.headers["azureml-model-deployment"]) == (200, "green")
    twice[1] = ("azureml-model-deployment", "blue")
    assert client.post("/v1/chat/completions", json=BODY, headers=twice).status_code == 404


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_compressed_body_is_read(client: httpx.Client, coding: str) -> None:
    body = json.dumps(BODY).encode()
    packed = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    headers = {"content-type": "application/json", "content-encoding": coding}
    assert client.post("/v1/chat/completions", content=packed, headers=headers).status_code == 200


def test_an_unsupported_content_coding_is_a_415_and_a_bomb_a_413(rig: Rig, client: httpx.Client) -> None:
    rig.change(max_body_bytes=2048)
    headers = {"content-type": "application/json", "content-encoding": "br"}
    assert client.post("/v1/chat/completions", content=b"x", headers=headers).status_code == 415
    bomb = gzip.compress(b" " * 10_000_000)[:2000]
    headers["content-encoding"] = "gzip"
    assert client.post("/v1/chat/completions", content=bomb, headers=headers).status_code == 413
