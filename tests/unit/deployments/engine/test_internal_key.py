"""An engine answers only requests that carry the internal key."""

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from app.internal_api import INTERNAL_KEY_HEADER, INTERNAL_KEY_VARIABLE
from deployments.engine.internal_key import InternalKeyMiddleware


async def engine(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"generated"})


async def ask(key: str | None, headers: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app=InternalKeyMiddleware(engine, keys=[key] if key is not None else []))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        return await client.post("/v1/chat/completions", headers=headers)


async def test_the_right_key_reaches_the_engine() -> None:
    response = await ask("secret", {INTERNAL_KEY_HEADER: "secret"})
    assert (response.status_code, response.text) == (200, "generated")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="none"),
        pytest.param({INTERNAL_KEY_HEADER: ""}, id="empty"),
        pytest.param({INTERNAL_KEY_HEADER: "secre"}, id="prefix"),
        pytest.param({INTERNAL_KEY_HEADER: "secret2"}, id="longer"),
        pytest.param({"authorization": "Bearer secret"}, id="another header"),
    ],
)
async def test_any_other_request_is_rejected(headers: dict[str, str]) -> None:
    response = await ask("secret", headers)
    assert response.status_code == 401
    assert response.headers["x-content-type-options"] == "nosniff"
    error = response.json()["error"]
    assert error["code"] == "invalid_internal_key"
    assert "secret" not in error["message"]


@pytest.mark.parametrize("key", [None, ""])
@pytest.mark.parametrize("headers", [{}, {INTERNAL_KEY_HEADER: ""}, {INTERNAL_KEY_HEADER: "secret"}])
async def test_without_a_configured_key_everything_is_rejected(key: str | None, headers: dict[str, str]) -> None:
    response = await ask(key, headers)
    assert response.status_code == 401
    assert INTERNAL_KEY_VARIABLE in response.json()["error"]["message"]


async def test_a_websocket_without_the_key_is_closed_before_it_is_accepted() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    app = InternalKeyMiddleware(engine, keys=["secret"])
    await app({"type": "websocket", "path": "/v1/realtime", "headers": []}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_lifespan_messages_pass() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        pass

    await InternalKeyMiddleware(app, keys=[])({"type": "lifespan"}, receive, send)
    assert seen == ["lifespan"]
