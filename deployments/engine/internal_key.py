"""The internal key: an engine, and the controller of experiments, serve the router only.

vLLM's own server enables every route and has no authentication. It is mounted where clients could reach it
(`/deployments/<name>`), so each replica rejects requests without the key that the router sends to engines
(`app.internal_keys`). Serve and HAProxy probe `/-/healthz`, which Serve answers before this middleware.
"""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.internal_api import ENGINE_KEY_VARIABLE, INTERNAL_KEY_HEADER, INTERNAL_KEY_VARIABLE
from app.internal_keys import opens
from app.limits.bodies import CloseUnread

NOT_SET = (
    f"This deployment has no internal key, so it rejects every request. Set the environment variable "
    f"{INTERNAL_KEY_VARIABLE}, or {ENGINE_KEY_VARIABLE} where only engines run, on the nodes before Ray starts."
)

REJECTED = (
    f"This is a model deployment's own address; it serves the router only. Send the request to the "
    f"router's /v1 instead, or the internal key in the header {INTERNAL_KEY_HEADER}."
)


class InternalKeyMiddleware:
    """Rejects every request and WebSocket without one of `keys`; without keys it rejects all of them."""

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys if key]
        self._rejected = CloseUnread(self._rejection())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._is_authorized(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "internal key required"})
        else:
            await self._rejected(scope, receive, send)

    def _is_authorized(self, scope: Scope) -> bool:
        return opens(Headers(scope=scope).get(INTERNAL_KEY_HEADER, ""), self._keys)

    def _rejection(self) -> JSONResponse:
        error = {
            "message": REJECTED if self._keys else NOT_SET,
            "type": "authentication_error",
            "param": None,
            "code": "invalid_internal_key" if self._keys else "internal_key_not_set",
        }
        return JSONResponse({"error": error}, 401, {"x-content-type-options": "nosniff"})
