"""The replica's age in the responses of a model application."""

import asyncio

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from app.internal_api import REPLICA_AGE_HEADER
from deployments.engine.server import ReplicaAgeMiddleware


async def hello(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


def test_responses_say_how_long_ago_the_replica_was_ready() -> None:
    now = iter([100.0, 103.25, 190.0])
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("x")), WebSocketRoute("/ws", hello)])
    client = TestClient(ReplicaAgeMiddleware(app, clock=lambda: next(now)))
    assert client.get("/").headers[REPLICA_AGE_HEADER] in ("3.2", "3.3")
    assert client.get("/gone").headers[REPLICA_AGE_HEADER] == "90.0"
    with client.websocket_connect("/ws") as socket:
        assert socket.receive_text() == "hello"


def test_the_age_is_added_once_to_a_response_in_parts() -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        for message in (
            {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]},
            {"type": "http.response.body", "body": b"x", "more_body": True},
            {"type": "http.response.body", "body": b""},
        ):
            await send(message)  # type: ignore[operator]

    sent: list[object] = []

    async def send(message: object) -> None:
        sent.append(message)

    asyncio.run(ReplicaAgeMiddleware(app, clock=lambda: 0.0)({"type": "http"}, None, send))  # type: ignore[arg-type]
    assert sent[0] == {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"a", b"b"), (REPLICA_AGE_HEADER.encode(), b"0.0")],
    }
    assert len(sent) == 3
