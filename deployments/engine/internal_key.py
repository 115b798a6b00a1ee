"""The internal key: an engine serves the router only.

vLLM's own server enables every route and has no authentication. It is mounted where clients could reach it
(`/deployments/<name>`), so each replica rejects requests without the key that the router and the engines share. Serve
and HAProxy probe `/-/healthz`, which Serve answers before this middleware.
"""

import hmac

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.internal_api import INTERNAL_KEY_HEADER, INTERNAL_KEY_VARIABLE

NOT_SET = (
    f"This deployment has no internal key, so it rejects every request. Set the environment variable "
    f"{INTERNAL_KEY_VARIABLE} to one secret value on every node of the cluster before Ray starts."
)

REJECTED = (
    f"This is a model deployment's own address; it serves the router only. Send the request to the "
    f"router's /v1 instead, or the internal key in the header {INTERNAL_KEY_HEADER}."
)


class InternalKeyMiddleware:
    """Rejects every request and WebSocket without the key; if no key is configured, it rejects all of them."""

    def __init__(self, app: ASGIApp, *, key: str | None) -> None:
        self._app = app
        self._key = (key or "").encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._is_authorized(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "internal key required"})
        else:
            await self._rejection()(scope, receive, send)

    def _is_authorized(self, scope: Scope) -> bool:
        if not self._key:
            return False
        key = Headers(scope=scope).get(INTERNAL_KEY_HEADER, "")
        return hmac.compare_digest(key.encode("latin-1"), self._key)

    def _rejection(self) -> JSONResponse:
        error = {
            "message": REJECTED if self._key else NOT_SET,
            "type": "authentication_error",
            "param": None,
            "code": "invalid_internal_key" if self._key else "internal_key_not_set",
        }
        return JSONResponse({"error": error}, status_code=401)
