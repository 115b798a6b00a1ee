"""One answer's way back to the client, in ASGI's words."""

import math
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from app.dialects.base import EVENT_STREAM, Reply
from app.errors import SwitchyardError, Unauthorized
from app.limits.limiter import Reservation
from app.routing.traffic import DEPLOYMENT_HEADER
from app.telemetry.access_log import Record

REQUEST_ID_HEADER = "x-request-id"
Send = Callable[[dict[str, Any]], Awaitable[None]]


def told_by_headers(error: SwitchyardError) -> dict[str, str]:
    """What an error says in headers, whatever the dialect."""
    told: dict[str, str] = {}
    if error.retry_after is not None:
        told["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, Unauthorized):
        told["www-authenticate"] = "Bearer"  # RFC 9110: a 401 must name a scheme
    return told


class ResponseWriter:
    """The answer's way back: status and headers once, then bytes; it remembers what the record must tell."""

    def __init__(self, send: Send, record: Record) -> None:
        self._send = send
        self.record = record
        self.started = False
        self.finished = False
        self.failure: SwitchyardError | None = None
        self.limits: Reservation | None = None
        self._events = 0

    def upstream_id(self) -> str:
        """An id for the engine: the request's, made unique, since clients may send theirs twice at once."""
        return f"{self.record.request_id}-{uuid.uuid4().hex[:8]}"

    def tokens_used(self, prompt: int) -> int:
        """What the request has cost: as the engine counted, or `prompt` and one for every event of its stream; nothing
        before a deployment was asked."""
        if self.record.attempts == 0:
            return 0
        usage = self.record.usage
        return prompt + self._events if usage is None else usage.prompt_tokens + usage.completion_tokens

    async def send(self, reply: Reply) -> None:
        """A whole response."""
        length = {"content-length": str(len(reply.body))}
        await self._start(reply.status, reply.media_type, {**reply.headers, **length})
        await self._send({"type": "http.response.body", "body": reply.body})
        self.finished = True

    async def error(self, error: SwitchyardError, reply: Reply) -> None:
        """The error as the dialect words it; after the first byte there is nothing left to say."""
        self.record.error = error.kind
        if self.started:
            return
        await self.send(replace(reply, headers={**reply.headers, **told_by_headers(error)}))

    async def start_stream(self, headers: Mapping[str, str]) -> None:
        """The head of an event stream."""
        self.record.streamed = True
        await self._start(200, EVENT_STREAM, {"cache-control": "no-cache", "x-accel-buffering": "no", **headers})

    async def send_chunk(self, data: bytes) -> None:
        """Some whole events."""
        self._events += data.count(b"\n\n")
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes) -> None:
        """The last events, if any, and the end."""
        await self._send({"type": "http.response.body", "body": data})
        self.finished = True

    async def _start(self, status: int, media_type: str, headers: Mapping[str, str]) -> None:
        self.started = True
        self.record.status = status
        self.record.first_byte = time.perf_counter()
        told = {"content-type": media_type, **headers, REQUEST_ID_HEADER: self.record.request_id}
        if self.record.deployment:
            told[DEPLOYMENT_HEADER] = self.record.deployment
        if self.limits is not None:
            told |= await self.limits.headers()
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
