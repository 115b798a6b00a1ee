"""The router's behaviour when a deployment fails, stalls or breaks off, and when the client disconnects."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from app.internal_api import NO_ROUTE_HEADER, NO_SERVER_HEADER
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import RawServer, broken_after, chat, chunk, refuse, stream
from tests.support.processes.servers import free_port
from tests.support.waiting import wait_until_async

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


async def ask(rig: Rig, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(f"{rig.url}/v1/chat/completions", json={**CHAT, **fields})


def failed(code: int, message: str) -> str:
    """An error inside a stream, as vLLM sends it."""
    error = {"message": message, "type": "X", "param": None, "code": code}
    return f"data: {json.dumps({'error': error})}\n\n"


def metrics(rig: Rig) -> str:
    return httpx.get(f"{rig.url}/metrics").text


def in_flight(rig: Rig) -> float:
    lines = [line for line in metrics(rig).splitlines() if line.startswith("http_server_active_requests{")]
    assert lines
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def unknown(body: dict[str, Any]) -> Response:
    """HAProxy's answer where it has no route."""
    return JSONResponse({"error": {"message": "No such route"}}, 404, {NO_ROUTE_HEADER: "1"})


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_ingress_that_does_not_know_the_application_yet_is_called_again(rig: Rig, streamed: bool) -> None:
    answers = iter([unknown, unknown, chat])
    rig.blue.answer = lambda body: next(answers)(body)
    served = await ask(rig, stream=streamed)
    assert served.status_code == 200
    assert served.headers["azureml-model-deployment"] == "blue"
    assert len(rig.blue.requests) == 3


def test_the_router_is_an_ingress_that_does_not_know_an_application_which_is_gone(rig: Rig) -> None:
    """All paths that no other application has lead to it."""
    answer = httpx.post(f"{rig.url}/deployments/gone/v1/chat/completions", json={})
    assert (answer.status_code, answer.headers[NO_ROUTE_HEADER]) == (404, "1")
    assert NO_ROUTE_HEADER not in httpx.post(f"{rig.url}/v1/nothing").headers


async def test_an_application_that_the_ingress_never_knows_is_not_available(rig: Rig) -> None:
    rig.change(timeouts={"connect_s": 0.05})
    rig.blue.answer = unknown
    served = await ask(rig)
    assert served.status_code == 503
    assert "not available" in served.text


async def test_an_application_without_a_replica_is_not_taken_for_a_busy_one(rig: Rig) -> None:
    rig.blue.answer = lambda body: JSONResponse({"error": {"message": "No router"}}, 503, {NO_SERVER_HEADER: "1"})
    served = await ask(rig)
    assert served.status_code == 503
    assert "not available" in served.text
    assert "retry-after" not in served.headers


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(refuse(500, "boom"), id="500"),
        pytest.param(refuse(503, "full"), id="503"),
        pytest.param(lambda body: PlainTextResponse("no replica", 500), id="ingress without a replica"),
        pytest.param(lambda body: JSONResponse({"error": "Unauthorized"}, 401), id="refuses our key"),
        pytest.param(lambda body: Response(media_type="text/event-stream"), id="empty stream"),
        pytest.param(lambda body: stream([failed(500, "boom")]), id="a stream that begins with its failure"),
    ],
)
async def test_a_failure_before_the_first_byte_is_replaced_once(rig: Rig, answer: Any, streamed: bool) -> None:
    if not streamed and "stream" in str(answer({}).media_type):
        answer = refuse(502, "bad gateway")
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = answer
    served = await ask(rig, stream=streamed)
    assert served.status_code == 200
    assert served.headers["azureml-model-deployment"] == "green"
    assert len(rig.blue.requests) == len(rig.green.requests) == 1


async def test_a_deployment_that_is_not_there_is_replaced(rig: Rig) -> None:
    rig.add("gone", f"http://127.0.0.1:{free_port()}")
    rig.chat_endpoint(fallback=["green"])
    assert (await ask(rig)).headers["azureml-model-deployment"] == "green"


async def test_only_one_replacement_is_tried(rig: Rig) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = rig.green.answer = refuse(500, "boom")
    answer = await ask(rig)
    assert answer.status_code == 502
    assert len(rig.blue.requests) == len(rig.green.requests) == 1


async def test_a_rejection_by_the_engine_is_the_clients_error_and_is_not_retried(rig: Rig) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = refuse(400, "bad", "n")
    assert (await ask(rig)).status_code == 400
    assert rig.green.requests == []


async def test_a_stream_that_begins_with_a_rejection_is_an_error_response(rig: Rig) -> None:
    """vLLM checks `logit_bias` and grammars only after it has started to stream."""
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = lambda body: stream([failed(400, "logit_bias: out of vocabulary"), "data: [DONE]\n\n"])
    answer = await ask(rig, stream=True, logit_bias={"999999": 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")
    assert rig.green.requests == []


async def test_a_deployment_that_the_client_chose_is_not_replaced(rig: Rig) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = refuse(500, "boom")
    assert (await ask(rig, model="blue")).status_code == 502
    assert rig.green.requests == []


async def test_without_an_available_deployment_the_answer_is_503_with_retry_after(rig: Rig) -> None:
    rig.blue.answer = refuse(503, "full")
    answer = await ask(rig)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "service_unavailable"


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([chunk("Hel")], id="between frames"),
        pytest.param([chunk("Hel"), chunk("lo")[:25]], id="inside a frame"),
        pytest.param([chunk("Hel"), 'data: {"x":"\N{GRINNING FACE}'], id="inside a string"),
    ],
)
async def test_a_stream_that_breaks_off_ends_with_an_error_event(rig: Rig, parts: list[str]) -> None:
    async with RawServer(broken_after(*parts)) as url:
        rig.add("raw", url)
        rig.chat_endpoint(fallback=["green"])
        answer = await ask(rig, stream=True)
    frames = answer.text.split("\n\n")
    assert frames[0] + "\n\n" == chunk("Hel")
    assert "ended its response before it was complete" in frames[1]
    assert frames[2:] == [""], "no [DONE]: the answer is not complete"
    assert rig.green.requests == []


async def test_a_stream_that_ends_in_silence_ends_with_an_error_event(rig: Rig) -> None:
    rig.blue.answer = lambda body: stream([chunk("Hel")])
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="k", max_retries=0) as sdk:
        parts = await sdk.chat.completions.create(**CHAT, stream=True)  # type: ignore[call-overload]
        assert (await anext(parts)).choices[0].delta.content == "Hel"
        with pytest.raises(openai.APIError, match="before it was complete"):
            await anext(parts)


async def test_a_whole_answer_that_breaks_off_is_tried_elsewhere(rig: Rig) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n"
    raw = RawServer(head + b'{"choices": [')
    async with raw as url:
        rig.add("raw", url)
        rig.chat_endpoint(fallback=["green"])
        assert (await ask(rig)).headers["azureml-model-deployment"] == "green"
    assert raw.connections == 1


async def test_a_whole_answer_that_ends_in_the_middle_of_a_character_is_tried_elsewhere(rig: Rig) -> None:
    cut = '{"choices": [{"text": "日'.encode()[:-1]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(cut)
    async with RawServer(head + cut) as url:
        rig.add("raw", url)
        rig.chat_endpoint(fallback=["green"])
        assert (await ask(rig)).headers["azureml-model-deployment"] == "green"


async def test_a_silent_deployment_is_given_up_after_the_first_byte_timeout(rig: Rig) -> None:
    rig.change(timeouts={"first_byte_s": 0.2})
    rig.blue.answer = lambda body: stream([5.0, chunk("late")])
    answer = await ask(rig, stream=True)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "timeout"


async def test_a_stalling_stream_is_given_up_after_the_idle_timeout(rig: Rig) -> None:
    rig.change(timeouts={"idle_s": 0.2})
    rig.blue.answer = lambda body: stream([chunk("Hel"), 5.0, chunk("lo")])
    answer = await ask(rig, stream=True)
    assert answer.text.startswith(chunk("Hel"))
    assert "stopped responding" in answer.text
    assert "[DONE]" not in answer.text


async def test_an_endless_stream_is_given_up_after_the_total_timeout(rig: Rig) -> None:
    rig.change(timeouts={"total_s": 0.4})
    rig.blue.answer = lambda body: stream([part for _ in range(100) for part in (chunk("Hel"), 0.05)])
    answer = await ask(rig, stream=True)
    assert answer.status_code == 200
    assert "took longer than this server allows" in answer.text
    assert "[DONE]" not in answer.text
    rig.blue.answer = lambda body: stream([5.0])
    assert (await ask(rig)).status_code == 504


@pytest.mark.parametrize("moment", ["before the first byte", "after the first byte"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_ends_the_upstream_call(rig: Rig, moment: str, streamed: bool) -> None:
    ended = asyncio.Event()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    first = [chunk("Hel")] if moment == "after the first byte" and streamed else []

    class Watched(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            headers = [(b"content-type", b"text/event-stream")]
            if first:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": first[0].encode(), "more_body": True})
            loop.call_soon_threadsafe(begun.set)
            while (await receive())["type"] != "http.disconnect":
                pass
            loop.call_soon_threadsafe(ended.set)

    rig.blue.answer = lambda body: Watched()
    request = asyncio.create_task(ask(rig, stream=streamed))
    async with asyncio.timeout(5):
        await begun.wait()
        await asyncio.sleep(0.05)
        left = time.monotonic()
        request.cancel()
        await ended.wait()
    assert time.monotonic() - left < 5
    await wait_until_async(lambda: in_flight(rig) == 0)
    assert 'status="499"' in metrics(rig)


async def test_a_client_that_hangs_up_at_the_last_event_has_been_answered(rig: Rig) -> None:
    """Agents do, before the deployment's connection has ended."""
    hung_up = threading.Event()

    class Lingering(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
            )
            text = chunk("Hello") + chunk("", finish_reason="stop") + "data: [DONE]\n\n"
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await asyncio.to_thread(hung_up.wait)
            await asyncio.sleep(0.2)
            await send({"type": "http.response.body", "body": b""})

    rig.blue.answer = lambda body: Lingering()
    async with (
        httpx.AsyncClient() as client,
        client.stream("POST", f"{rig.url}/v1/chat/completions", json={**CHAT, "stream": True}) as answer,
    ):
        received = ""
        async for text in answer.aiter_text():
            received += text
            if received.endswith("data: [DONE]\n\n"):
                break
    hung_up.set()
    await wait_until_async(lambda: in_flight(rig) == 0)
    assert 'status="200"' in metrics(rig)
    assert 'status="499"' not in metrics(rig)


async def test_nothing_is_in_flight_after_any_failure(rig: Rig) -> None:
    rig.chat_endpoint(fallback=[])
    for answer in (refuse(500, "x"), refuse(400, "x"), lambda body: stream([chunk("x")])):
        rig.blue.answer = answer
        await ask(rig, stream=True)
    await ask(rig, model="gone")
    assert in_flight(rig) == 0


async def test_a_client_that_reads_slowly_holds_up_the_engine_and_gets_everything(rig: Rig) -> None:
    parts, sent = 1_000, 0

    async def text() -> AsyncIterator[str]:
        nonlocal sent
        for sent in range(1, parts + 1):
            yield chunk(f"{sent} " + "x" * 50_000, finish_reason="stop" if sent == parts else None)
        yield "data: [DONE]\n\n"

    rig.blue.answer = lambda body: StreamingResponse(text(), media_type="text/event-stream")
    async with httpx.AsyncClient(timeout=60) as client:
        request = {**CHAT, "stream": True}
        async with client.stream("POST", f"{rig.url}/v1/chat/completions", json=request) as answer:
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.3)
            assert 0 < sent < parts, "the buffers of two connections are full"
            events = [line async for line in answer.aiter_lines() if line]
    said = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"]["content"] for event in events[:-1]]
    assert [text.split(" ")[0] for text in said] == [str(n) for n in range(1, parts + 1)]
    assert {len(text.split(" ")[1]) for text in said} == {50_000}
    assert events[-1] == "data: [DONE]"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("others", [{}, {"twin": "blue"}], ids=["alone", "another name of the engine"])
async def test_a_request_that_timed_out_is_not_sent_to_the_same_engine_again(
    rig: Rig, others: dict[str, str], streamed: bool
) -> None:
    deployments = rig.config["deployments"]
    rig.change(
        deployments={**deployments, **{name: {**deployments[of], "model": name} for name, of in others.items()}},
        timeouts={"first_byte_s": 0.2},
    )
    rig.chat_endpoint(fallback=list(others))
    rig.blue.answer = lambda body: stream([5.0])
    answer = await ask(rig, stream=streamed)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
    assert len(rig.blue.requests) == 1, "it may still be working on it"
    assert 'error_type="timeout",outcome="withheld"} 1.0' in metrics(rig)


@pytest.mark.parametrize("streamed", [False, True])
async def test_another_engine_takes_a_request_that_timed_out(rig: Rig, streamed: bool) -> None:
    rig.change(deployments={"twin": {**rig.config["deployments"]["blue"], "model": "twin"}})
    rig.change(timeouts={"first_byte_s": 1.0})
    rig.chat_endpoint(fallback=["twin", "green"])
    rig.blue.answer = lambda body: stream([5.0])
    answer = await ask(rig, stream=streamed)
    assert answer.status_code == 200
    assert answer.headers["azureml-model-deployment"] == "green"
    assert len(rig.blue.requests) == len(rig.green.requests) == 1


async def test_a_lookup_that_timed_out_is_not_repeated(rig: Rig) -> None:
    rig.change(timeouts={"first_byte_s": 0.2})
    rig.chat_endpoint(fallback=[])
    rig.blue.answer = lambda body: stream([5.0])
    async with httpx.AsyncClient() as client:
        path = "/serving-endpoints/chat/invocations"
        answer = await client.post(f"{rig.url}{path}", json={"prompt": "hi", "max_tokens": 5, "echo": True})
    assert answer.status_code == 504
    assert len(rig.blue.requests) == 1


async def test_an_answer_that_is_none_is_replaced_once_and_is_a_fault(rig: Rig) -> None:
    rig.chat_endpoint(fallback=["green"])
    rig.blue.answer = lambda body: Response("<h1>It works!</h1>", media_type="text/html")
    for streamed in (False, True):
        answer = await ask(rig, stream=streamed)
        assert answer.status_code == 200
        assert answer.headers["azureml-model-deployment"] == "green"
    assert len(rig.blue.requests) == len(rig.green.requests) == 2
    assert rig.router.state.health.breakers.of("blue").faults == 2


async def test_a_deployment_without_requests_is_tried_again_and_is_well(rig: Rig) -> None:
    """Nobody asks it, since nobody needs it: it would be called failing until somebody does."""
    assert rig.router.state.snapshot is not None
    health, blue = rig.router.state.health, rig.router.state.health.breakers.of("blue")
    blue.checked(False, health.breakers.clock())
    health.check_open(rig.router.state.snapshot)
    assert rig.blue.requests == [], "the trial is not due"
    blue.open_until = health.breakers.clock()
    health.check_open(rig.router.state.snapshot)
    await wait_until_async(lambda: not blue.is_open)
    assert len(rig.blue.requests) == 1


async def test_garbage_in_a_stream_ends_the_engines_work_and_is_a_fault(rig: Rig) -> None:
    """The rest of what the engine sends is not waited for."""
    rig.blue.answer = lambda body: stream([chunk("Hel"), "data: {not json}\n\n", 60.0])
    answer = await ask(rig, stream=True)
    first, error, end = answer.text.split("\n\n")
    assert (f"{first}\n\n", end) == (chunk("Hel"), "")
    assert (
        json.loads(error.removeprefix("data: "))["error"]["message"] == "The deployment returned a malformed response"
    )
    blue = rig.router.state.health.breakers.of("blue")
    await wait_until_async(lambda: blue.faults == 1)
    assert "switchyard_errors_total{" in metrics(rig)


URL = "http://10.0.0.1:8265/x.png"
CONTENT = [{"type": "text", "text": URL}, {"type": "image_url", "image_url": {"url": URL}}]
PICTURES: list[tuple[str, dict[str, Any], str]] = [
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": CONTENT}]},
        "messages[0].content[1].image_url.url",
    ),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": URL, "detail": "auto"}]}]},
        "input[0].content[0].image_url",
    ),
    (
        "/v1/messages",
        {
            "max_tokens": 5,
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": URL}}]},
            ],
        },
        "messages[0].content[0].source.url",
    ),
    (
        "/azure/chat/completions?api-version=2024-05-01-preview",
        {"messages": [{"role": "user", "content": CONTENT}]},
        "messages[0].content[1].image_url.url",
    ),
    (
        "/serving-endpoints/chat/completions",
        {"messages": [{"role": "user", "content": CONTENT}]},
        "messages[0].content[1].image_url.url",
    ),
    (
        "/tgi/chat/v1/chat/completions",
        {"messages": [{"role": "user", "content": CONTENT}]},
        "messages[0].content[1].image_url.url",
    ),
    (
        "/dedicated/v1/chat/completions",
        {"messages": [{"role": "user", "content": CONTENT}]},
        "messages[0].content[1].image_url.url",
    ),
]


@pytest.mark.parametrize(
    ("path", "body", "field"), PICTURES, ids=lambda parameter: parameter if isinstance(parameter, str) else ""
)
def test_a_url_that_the_engine_does_not_fetch_is_an_error_that_names_the_field(
    rig: Rig, path: str, body: dict[str, Any], field: str
) -> None:
    words = "The URL must be from one of the allowed domains: ['none.invalid']. Input URL domain: 10.0.0.1"
    rig.blue.answer = refuse(400, words)
    answer = httpx.post(f"{rig.url}{path}", json={"model": "chat", **body})
    assert answer.status_code == (422 if path.startswith(("/tgi", "/azure")) else 400)
    assert f"{field}: images, audio and video are not fetched from '10.0.0.1'" in answer.text
    assert "none.invalid" not in answer.text
