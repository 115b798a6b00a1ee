"""The internal key: an engine answers the router and nobody else.

vLLM's own server has every route switched on and knows no callers. It is mounted where clients could
reach it (`/deployments/<name>`), so each replica refuses what does not carry the key that the router
and the engines share. Serve and HAProxy probe `/-/healthz`, which Serve answers before this is asked.
"""

import hmac

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.internal_api import INTERNAL_KEY_HEADER, INTERNAL_KEY_VARIABLE

NOT_SET = (
    f"This deployment has no internal key, so it refuses every request. Set the environment variable "
    f"{INTERNAL_KEY_VARIABLE} to one secret value on every node of the cluster before Ray starts."
)

REFUSED = (
    f"This is a model deployment's own address; it answers the router only. Send the request to the "
    f"router's /v1 instead, or the internal key in the header {INTERNAL_KEY_HEADER}."
)


class InternalKeyMiddleware:
    """Refuses every request and WebSocket without the key. With no key at all it refuses everything."""

    def __init__(self, app: ASGIApp, *, key: str | None) -> None:
        self._app = app
        self._key = (key or "").encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._may_pass(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "internal key required"})
        else:
            await self._refusal()(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if not self._key:
            return False
        given = Headers(scope=scope).get(INTERNAL_KEY_HEADER, "")
        return hmac.compare_digest(given.encode("latin-1"), self._key)

    def _refusal(self) -> JSONResponse:
        error = {
            "message": REFUSED if self._key else NOT_SET,
            "type": "authentication_error",
            "param": None,
            "code": "invalid_internal_key" if self._key else "internal_key_not_set",
        }
        return JSONResponse({"error": error}, status_code=401)
