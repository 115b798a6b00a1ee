"""Whole answers whose head comes before the engine works."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.internal_api import HEAD_FIRST_HEADER
from deployments.engine.head_first import HeadFirstMiddleware

ASKED = (HEAD_FIRST_HEADER.encode(), b"1")


def served(app: ASGIApp, *, asks: bool = True, body: Sequence[bytes] = (b"{}",)) -> list[Message]:
    """What is sent for a request, with "received" where its body is read to the end."""
    sent: list[Message] = []
    parts = [{"type": "http.request", "body": part, "more_body": True} for part in body[:-1]]
    parts.append({"type": "http.request", "body": body[-1], "more_body": False})

    async def receive() -> Message:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [ASKED] if asks else []}
    try:
        asyncio.run(HeadFirstMiddleware(app)(scope, receive, send))
    except ValueError as error:
        sent.append({"type": str(error)})
    return sent


def answering(status: int, media_type: str, parts: Sequence[bytes], *, reads: bool = True) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while reads and (await receive()).get("more_body", False):
            pass
        head = [(b"content-type", media_type.encode())]
        await send({"type": "http.response.start", "status": status, "headers": head})
        for number, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(parts)})

    return app


@given(
    st.integers(200, 599),
    st.sampled_from(["application/json", "text/plain; charset=utf-8", ""]),
    st.lists(st.binary(max_size=9), min_size=1, max_size=4),
    st.lists(st.binary(max_size=9), min_size=1, max_size=4),
)
def test_any_answer_is_the_one_without_the_header_behind_its_first_line(
    status: int, media_type: str, parts: list[bytes], body: list[bytes]
) -> None:
    app = answering(status, media_type, parts)
    head, *rest = served(app, body=body)
    assert head == {"type": "http.response.start", "status": 200, "headers": [ASKED]}
    line = f"{status} {media_type}\n".encode()
    assert b"".join(message["body"] for message in rest) == line + b"".join(parts)
    assert [message["more_body"] for message in rest] == [True] * (len(parts) - 1) + [False]
    start, *_ = served(app, asks=False, body=body)
    assert (start["status"], start["headers"]) == (status, [(b"content-type", media_type.encode())])


def test_the_head_is_sent_before_the_application_works() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        raise ValueError("the engine works")

    assert served(app)[0]["type"] == "http.response.start"


def test_what_is_answered_without_its_body_has_its_own_head() -> None:
    start, end = served(answering(401, "application/json", [b"{}"], reads=False))
    assert (start["status"], end["body"]) == (401, b"{}")


@pytest.mark.parametrize("begun", [False, True])
def test_an_application_that_fails_is_no_engine_that_has_died(begun: bool) -> None:
    """An answer that breaks off counts as a death."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ValueError("a bug")

    _, *rest, error = served(app)
    assert error == {"type": "a bug"}, "the server logs it"
    if begun:
        assert [message["body"] for message in rest] == [b"200 \nhalf"]
    else:
        assert rest[-1]["body"].startswith(b"500 application/json\n{")
