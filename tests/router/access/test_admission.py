"""Requests that the router rejects before it calls a deployment: too many, too long, too slow, or too deeply nested."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from app.access.keys import append, create
from app.errors import LimitExceeded, Unavailable
from app.limits.bodies import Bodies, Room
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import chat, chunk, stream
from tests.support.waiting import wait_until_async

QUESTION: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


async def ask(rig: Rig, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30) as client:
        return await client.post(f"{rig.url}/v1/chat/completions", json={**QUESTION, **fields})


async def until_called(rig: Rig, count: int) -> None:
    await wait_until_async(lambda: len(rig.blue.requests) >= count)


async def until_queued(rig: Rig, count: int) -> None:
    queue = rig.router.state.queues["chat"]
    await wait_until_async(lambda: queue.waiting == count, lambda: f"{queue.waiting} requests are queued, not {count}")


def metrics(rig: Rig) -> dict[str, float]:
    """The endpoint's queue metrics: values by name, and by cause if there is one."""
    found = {}
    for line in httpx.get(f"{rig.url}/metrics").text.splitlines():
        shown = re.fullmatch(r'(switchyard_admission_\w+)\{(?:cause="(\w+)",)?endpoint="chat"\} (.+)', line)
        if shown is not None:
            found[":".join(filter(None, shown.groups()[:2]))] = float(shown[3])
    return found


async def test_a_full_endpoint_rejects_with_retry_after_and_serves_its_queue(rig: Rig) -> None:
    rig.chat_endpoint(admission={"max_concurrent": 1, "max_queued": 1, "max_wait_s": 20})
    rig.blue.answer = lambda body: stream([3.0, chunk("a", finish_reason="stop"), "data: [DONE]\n\n"])
    first = asyncio.create_task(ask(rig, stream=True))
    await until_called(rig, 1)
    rig.blue.answer = chat
    second = asyncio.create_task(ask(rig))
    await until_queued(rig, 1)
    third = await ask(rig)
    assert third.status_code == 503
    assert third.headers["retry-after"] == "1"
    assert "Endpoint 'chat' is at capacity (1 running, 1 queued)" in third.json()["error"]["message"]
    shown = metrics(rig)
    assert shown["switchyard_admission_slots"] == shown["switchyard_admission_running"] == 1.0
    assert shown["switchyard_admission_waiting"] == 1.0
    assert shown["switchyard_admission_refused_total:full"] == 1.0
    assert "switchyard_admission_wait_seconds_count" not in shown, (
        "the second is still waiting; the others never waited"
    )
    assert (await first).status_code == 200
    assert (await second).status_code == 200
    assert len(rig.blue.requests) == 2
    shown = metrics(rig)
    assert shown["switchyard_admission_running"] == shown["switchyard_admission_waiting"] == 0.0
    assert shown["switchyard_admission_wait_seconds_count"] == 1.0
    assert shown["switchyard_admission_wait_seconds_sum"] > 0


async def test_a_request_that_waits_too_long_is_counted(rig: Rig) -> None:
    rig.chat_endpoint(admission={"max_concurrent": 1, "max_queued": 1, "max_wait_s": 0.05})
    rig.blue.answer = lambda body: stream([0.4, chunk("a", finish_reason="stop"), "data: [DONE]\n\n"])
    first = asyncio.create_task(ask(rig, stream=True))
    await until_called(rig, 1)
    assert (await ask(rig)).status_code == 503
    shown = metrics(rig)
    assert shown["switchyard_admission_refused_total:timeout"] == 1.0
    assert shown["switchyard_admission_wait_seconds_count"] == 1.0
    await first


async def test_a_client_that_leaves_the_queue_makes_room(rig: Rig) -> None:
    rig.chat_endpoint(admission={"max_concurrent": 1, "max_queued": 1})
    rig.blue.answer = lambda body: stream([1.0, chunk("a", finish_reason="stop"), "data: [DONE]\n\n"])
    first = asyncio.create_task(ask(rig, stream=True))
    await until_called(rig, 1)
    second = asyncio.create_task(ask(rig))
    await until_queued(rig, 1)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await until_queued(rig, 0)
    rig.blue.answer = chat
    third = asyncio.create_task(ask(rig))
    assert (await first).status_code == (await third).status_code == 200
    assert len(rig.blue.requests) == 2


async def test_a_request_that_arrives_too_slowly_is_given_up(rig: Rig) -> None:
    rig.change(timeouts={"body_s": 0.2})
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900\r\n\r\n{"model":')
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    body = await reader.read(4096)
    assert b"did not arrive within 0.2 s" in body
    writer.close()
    await writer.wait_closed()


async def test_the_size_of_headers_is_bounded(rig: Rig) -> None:
    rig.change(max_header_bytes=2048)
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{rig.url}/v1/chat/completions", json=QUESTION, headers={"x-padding": "x" * 2048})
    assert answer.status_code == 431
    assert rig.blue.requests == []


async def test_the_length_of_a_conversation_is_bounded(rig: Rig) -> None:
    rig.change(max_messages=2)
    assert (await ask(rig, messages=QUESTION["messages"] * 2)).status_code == 200
    refused = await ask(rig, messages=QUESTION["messages"] * 3)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")


@pytest.mark.parametrize("path", ["/v1/completions", "/serving-endpoints/chat/invocations"])
@pytest.mark.parametrize("field", ["n", "best_of"])
async def test_the_choices_of_all_prompts_together_are_bounded(rig: Rig, path: str, field: str) -> None:
    rig.change(max_messages=8)
    for prompts, choices, accepted in ((8, 1, True), (2, 4, True), (1, 9, True), (2, 5, False), (8, 2, False)):
        rig.blue.requests.clear()
        body = {"model": "chat", "prompt": ["a"] * prompts, field: choices, "max_tokens": 1}
        answer = await post(rig, path, json.dumps(body).encode())
        assert bool(rig.blue.requests) == accepted, answer.text
        assert accepted or (answer.status_code, f"{field}:" in answer.text) == (400, True)


async def test_the_length_of_a_conversation_in_a_string_is_bounded(rig: Rig) -> None:
    """Databricks' `extra_params` are fields as JSON texts, in which commas may be escaped."""
    rig.change(max_messages=8)
    for count, status in ((8, 200), (9, 400)):
        messages = json.dumps(QUESTION["messages"] * count).replace('"', '\\"').replace(",", "\\u002c")
        body = f'{{"extra_params":{{"messages":"{messages}"}}}}'.encode()
        assert body.count(b",") < 8
        answer = await post(rig, "/serving-endpoints/chat/invocations", body)
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
async def test_the_depth_of_nesting_is_bounded(rig: Rig, opening: bytes) -> None:
    body = b'{"model":"chat","messages":' + opening * 10_000
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{rig.url}/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert "recursion" in answer.json()["error"]["message"]
    assert rig.blue.requests == []


async def post(rig: Rig, path: str, body: bytes, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30) as client:
        return await client.post(rig.url + path, content=body, headers=headers)


async def test_the_number_of_values_is_bounded(rig: Rig) -> None:
    rig.change(max_json_values=1000)
    assert (await ask(rig, metadata={"ids": [1] * 900})).status_code == 200
    assert (await ask(rig, metadata={"text": ",{[:" * 900})).status_code == 200, "texts have no values"
    bodies: list[Any] = [[1] * 1100, [{}] * 130, {str(n): 1 for n in range(130)}]
    for many in bodies:
        refused = await ask(rig, metadata={"ids": many})
        assert (refused.status_code, "more than 1000 values" in refused.json()["error"]["message"]) == (413, True)
    assert len(rig.blue.requests) == 2


async def test_a_text_of_brackets_takes_the_memory_of_a_text(rig: Rig) -> None:
    rig.change(max_bodies_bytes=64 * 1024 * 1024)
    for text in ("[" * 3_000_000, "{}:," * 900_000):
        assert (await ask(rig, messages=[{"role": "user", "content": text}])).status_code == 200


async def test_a_number_has_a_bounded_length(rig: Rig) -> None:
    body = b'{"model":"chat","messages":[],"n":[%b]}' % b",".join([b"9" * 1001] * 100)
    refused = await post(rig, "/v1/chat/completions", body)
    assert (refused.status_code, "digits" in refused.json()["error"]["message"]) == (413, True)


async def test_endpoints_have_their_own_bounds_of_bodies(rig: Rig) -> None:
    large = {"messages": [{"role": "user", "content": "x" * 30_000}]}
    rig.change(max_body_bytes=20_000)
    assert (await ask(rig, **large)).status_code == 413
    rig.chat_endpoint(max_body_bytes=40_000)
    assert (await ask(rig, **large)).status_code == 200
    refused = await post(rig, "/v1/embeddings", b'{"model":"embed","input":"%b"}' % (b"x" * 30_000))
    assert (refused.status_code, refused.json()["error"]["message"]) == (413, "The body is larger than 20000 bytes")
    by_path = await post(rig, "/openai/deployments/embed/embeddings", b'{"input":"%b"}' % (b"x" * 30_000))
    assert by_path.status_code == 413
    rig.chat_endpoint(max_body_bytes=None)
    rig.change(deployments={"blue": {**rig.config["deployments"]["blue"], "images": True}})
    assert (await ask(rig, **large)).status_code == 200, "a deployment reads images"


def test_a_caller_has_half_of_the_memory_for_several_bodies_and_all_of_it_for_one() -> None:
    bodies = Bodies()
    with Room(bodies, 100) as first, Room(bodies, 100) as second, Room(bodies, 100) as others:
        first.holder = second.holder = "ann"
        first.take(40)
        second.take(10)
        for room in (first, second):
            with pytest.raises(LimitExceeded):
                room.take(1)
        others.holder = "bob"
        others.take(50)
        others.give_back()
        first.give_back()
        second.take(90)
        with pytest.raises(Unavailable):
            second.take(1)
    assert (bodies.held, bodies.held_by) == (0, {})


async def test_a_callers_unfinished_bodies_leave_room_for_others(rig: Rig, tmp_path: Path) -> None:
    secrets = {}
    for name in ("ann", "bob"):
        secrets[name], record = create(name)
        append(tmp_path / "keys.yaml", record.line)
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml")}, max_bodies_bytes=64 * 1024 * 1024)
    host, port = rig.url.removeprefix("http://").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secrets['ann']}\r\n"
    uploads = [await asyncio.open_connection(host, int(port)) for _ in range(24)]
    for _, writer in uploads:
        writer.write(f"{head}content-length: 4000000\r\n\r\n".encode() + b" " * 3_900_000)
    refused = [reader for reader, _ in uploads]
    bodies = rig.router.state.access.bodies
    await wait_until_async(lambda: bodies.held > 24 * 1024 * 1024)
    done, _ = await asyncio.wait(
        [asyncio.create_task(reader.readuntil(b"\r\n\r\n")) for reader in refused], return_when="FIRST_COMPLETED"
    )
    assert {task.result()[:12] for task in done} == {b"HTTP/1.1 429"}
    assert bodies.held <= 32 * 1024 * 1024
    async with httpx.AsyncClient() as client:
        answer = await client.post(
            f"{rig.url}/v1/chat/completions", json=QUESTION, headers={"authorization": f"Bearer {secrets['bob']}"}
        )
    assert answer.status_code == 200
    for _, writer in uploads:
        writer.close()


async def test_bodies_together_take_bounded_memory(rig: Rig) -> None:
    rig.change(max_bodies_bytes=64 * 1024 * 1024)
    bodies = rig.router.state.access.bodies
    assert (await ask(rig)).status_code == 200
    await wait_until_async(lambda: bodies.held == 0)
    with Room(bodies, 2**40) as others:
        others.take(64 * 1024 * 1024 - 10)
        refused = await ask(rig)
        score = b'{"request_id":"a","metric":"m","value":1}'
        managed = await post(rig, "/api/feedback", score, **{"content-type": "application/json"})
    assert (refused.status_code, refused.headers["retry-after"], managed.status_code) == (503, "1", 503)
    assert (await ask(rig)).status_code == 200
    await wait_until_async(lambda: bodies.held == 0)


async def test_answers_that_clients_do_not_read_count_too(rig: Rig) -> None:
    rig.change(max_bodies_bytes=64 * 1024 * 1024)
    size = 16 * 1024 * 1024
    rig.blue.answer = lambda body: Response(
        bytes(chat(body).body).replace(b"Hel", b"a" * size), media_type="application/json"
    )
    bodies, (host, port) = rig.router.state.access.bodies, rig.url.removeprefix("http://").split(":")
    sent = json.dumps(QUESTION).encode()
    _, unread = await asyncio.open_connection(host, int(port), limit=4096)
    unread.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(sent), sent)
    )
    await wait_until_async(lambda: bodies.held > size // 4)
    with Room(bodies, 2**40) as others:
        others.take(64 * 1024 * 1024 - bodies.held - size // 8)
        refused = await ask(rig)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert len(rig.blue.requests) == 2, "no other deployment or replica makes the answer again"
    assert (await ask(rig)).status_code == 200
    unread.close()
    await wait_until_async(lambda: bodies.held == 0)
