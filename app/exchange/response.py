"""Writes the response to the client over ASGI, or the error that takes its place.

Answers name their deployment instead of the engine's model name: clients send the name back.
"""

import asyncio
import logging
import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec.structs import replace
from pydantic_core import from_json

from app.aio import ClientDisconnected
from app.dialects.base import EVENT_STREAM, Reply
from app.dialects.bodies import dump, peek
from app.engine.answers import EventCheck, Learned
from app.errors import (
    CLIENT_GONE,
    ContextExceeded,
    InternalError,
    MethodNotAllowed,
    Rejected,
    SwitchyardError,
    Unauthorized,
    UpstreamError,
    shortened,
)
from app.limits.limiter import Reservation
from app.routing.traffic import DEPLOYMENT_HEADER
from app.sse import datas
from app.telemetry.logs import Record, Said, Sent, event, where
from app.upstream.target import Target

REQUEST_ID_HEADER = "x-request-id"
PLAN_HEADER = "x-switchyard-plan"
REASON_HEADER = "x-switchyard-reason"
NO_SNIFFING = (b"x-content-type-options", b"nosniff")
"""The header with which a browser believes the media type, whatever a caller or a model has written."""

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that disconnected; logged, never sent."""

_log = logging.getLogger("switchyard")
_SLICE = 256 * 1024
_FIRST = 4
"""Events of a stream before or among which its first text is. Anthropic's is the third."""
_LONGEST_FIRST = 4096
"""Bytes: those without text are short, and no stream keeps long ones."""
_LONG_EVENT = b"data: 0\n\n"
_TEXTS = ("content", "reasoning", "reasoning_content", "tool_calls", "refusal", "text")
"""Fields of a choice, or its delta, with a part of the answer."""
_REQUEST_ID = REQUEST_ID_HEADER.encode()
_STREAMED: Mapping[str, str] = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""The headers of every stream."""

Send = Callable[[dict[str, Any]], Awaitable[None]]


@lru_cache(maxsize=1024)
def _raw(name: str, value: str) -> tuple[bytes, bytes]:
    """A header as ASGI has it. Nearly all headers of a response are those of others, too."""
    return name.encode("latin-1"), value.encode("latin-1")


def error_headers(error: SwitchyardError) -> dict[str, str]:
    """The headers of an error response, in every dialect."""
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"  # RFC 9110: a 401 must name a scheme
    if isinstance(error, MethodNotAllowed) and error.allowed:
        headers["allow"] = ", ".join(error.allowed)  # RFC 9110: a 405 must list them
    return headers


def said(error: SwitchyardError, body: bytes = b"") -> Said:
    """What the client is told: the text, code and type of the `body`, which is an error of any dialect, whole or among
    a stream's events; without one, the text of the `error` itself. Bounded as the error's own message is."""
    errors = (told for data in (body, *datas(body)) if {"error", "error_code"} & (told := peek(data)).keys())
    outer: Mapping[str, Any] = next(errors, {})
    inner = outer.get("error")
    named = inner if isinstance(inner, dict) else {}
    texts = (named.get("message"), outer.get("message"), inner, error.message)
    text = next(text for text in texts if isinstance(text, str))
    details = named.get("details")
    inside = details if isinstance(details, dict) else {}
    # Azure's code is beside its `error`, and Anthropic's in the details. A `type` beside it is none of the error's.
    codes = (named.get("code"), outer.get("error_code"), outer.get("code"), inside.get("error_code"))
    types = (named.get("type"), outer.get("error_type"))
    code, type = (shortened(str(next(filter(None, values), "")), 100) for values in (codes, types))
    is_engines = isinstance(error, Rejected) and not isinstance(error, ContextExceeded)
    engine_message = error.engine_message if isinstance(error, UpstreamError) else ""
    return Said(shortened(text, error.longest_message), code, type, error.param or "", is_engines, engine_message)


def _has_text(data: bytes) -> bool:
    """Whether an event of a stream, in any dialect, may hold a part of the answer."""
    try:
        event = from_json(data)
    except ValueError:
        return False  # [DONE]
    if not isinstance(event, dict):
        return True
    choices = event.get("choices")
    if not isinstance(choices, list):
        return "delta" in event or not isinstance(event.get("type"), str)
    for choice in choices:
        said = choice.get("delta", choice) if isinstance(choice, dict) else None
        if not isinstance(said, dict) or any(said.get(name) for name in _TEXTS):
            return True
    return False


def _never() -> bool:
    return False


def _unknown() -> None:
    return None


class ResponseWriter:
    """Writes one ASGI response: status and headers once, then the body. Collects the fields of the access log.

    - `record` holds the request for the metrics and the access log.
    - `started` and `finished`: the head has been sent; the whole body has.
    - `failure` is the error after that point of no return, where raising cannot change the response any more:
      a stream that broke, or an answer cut at its deadline. Set by `fail` only.
    - `reservation` is set by the reservation of the caller's limits once it counts.
    - `events`: how many of a stream have been sent. The first ones are kept until somebody asks how many tokens they
      are: those before the first text are none.
    - `plans` are the ids of the endpoints' plans, for the header of every answer of an endpoint.
    """

    def __init__(self, send: Send, record: Record) -> None:
        self._send = send
        self.record = record
        self.started = False
        self.finished = False
        self.failure: SwitchyardError | None = None
        self.reservation: Reservation | None = None
        self.plans: Mapping[str, str] = {}
        self.events = 0
        self._first: list[bytes] | None = []
        """The first events; None: the first text was among them."""
        self._without_text = 0
        self.forget_stream()

    @property
    def is_answered(self) -> bool:
        """Whether the client has all that it waits for: the whole body, or a stream's terminal event."""
        return self.finished or self._has_ended()

    def forget_stream(self) -> None:
        """Lets go of the stream, which knows this writer: in a cycle, all that belongs to the request would wait for
        the garbage collector."""
        self._has_ended: Callable[[], bool] = _never
        self._tokens_sent: Callable[[], int | None] = _unknown

    def upstream_id(self) -> str:
        """An id for the engine: the request's, made unique, since clients may send theirs twice at once."""
        return f"{self.record.request_id}-{random.getrandbits(32):08x}"

    def tokens_used(self, prompt: int) -> int:
        """The tokens that the request has cost: see `Record.used`. Without an answer it is the `prompt`; none before a
        deployment was called."""
        if self.record.attempts == 0:
            return 0
        used = self.record.used
        return prompt if used is None else used.prompt_tokens + used.completion_tokens

    def sent(self, rest: bytes = b"") -> Sent:
        """What the client has of a stream, or will have with the `rest` of its events, which are sent last."""
        if not self.record.streamed:
            return Sent()
        tokens = self._tokens_sent()
        if tokens is not None:
            return Sent(tokens)
        if self._first is not None:
            self._leave_out_beginning([*self._first, rest])
        return Sent(None, self.events + rest.count(b"\n\n") - self._without_text)

    def _leave_out_beginning(self, first: list[bytes]) -> None:
        """Counts the events before the first text, such as a chat's with the role alone."""
        for data in (data for events in first for data in datas(events)):
            if _has_text(data):
                self._first = None
                return
            self._without_text += 1
        self._first = []

    def fail(self, error: SwitchyardError, end: bytes = b"") -> None:
        """Records a failure after which the response can no longer be replaced. `end`: the events that tell it."""
        self.failure = error
        self.record.error, self.record.said = error.kind, said(error, end)

    async def send(self, reply: Reply) -> None:
        """Sends a whole response."""
        length = {"content-length": str(len(reply.body))}
        await self._start(reply.status, reply.media_type, {**reply.headers, **length})
        await self._send({"type": "http.response.body", "body": reply.body})
        self.finished = True

    async def send_long(self, reply: Reply, pieces: Sequence[bytes | memoryview]) -> None:
        """Like `send`, in pieces, which wait here until the client reads them, rather than in a server's buffer."""
        length = {"content-length": str(sum(map(len, pieces)))}
        await self._start(reply.status, reply.media_type, {**reply.headers, **length})
        for piece in pieces:
            for start in range(0, len(piece), _SLICE):
                part = bytes(piece[start : start + _SLICE])
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
                await asyncio.sleep(0)  # yield: the transport applies back-pressure only after a write
        await self._send({"type": "http.response.body", "body": b""})
        self.finished = True

    async def error(self, error: SwitchyardError, reply: Reply) -> None:
        """Sends the error as the dialect words it, unless the response has started."""
        self.record.error = error.kind
        if self.started:
            self.record.said = said(error)
            return
        self.record.said = said(error, reply.body)
        await self.send(replace(reply, headers={**reply.headers, **error_headers(error)}))

    async def start_stream(
        self,
        headers: Mapping[str, str],
        media_type: str = EVENT_STREAM,
        has_ended: Callable[[], bool] = _never,
        tokens_sent: Callable[[], int | None] = _unknown,
    ) -> None:
        """Sends the head of a stream; `media_type`: server-sent events by default.

        `has_ended`: whether the terminal event has been passed on, after which clients hang up. `tokens_sent`: how many
        of the answer's tokens have been, None if that is not known.
        """
        self.record.streamed = True
        self._has_ended, self._tokens_sent = has_ended, tokens_sent
        await self._start(200, media_type, {**_STREAMED, **headers} if headers else _STREAMED)

    def send_chunk(self, data: bytes) -> Awaitable[None]:
        """Sends some whole events."""
        is_one = data.find(b"\n") == len(data) - 2  # nearly always; to search for one byte is far cheaper
        if self.events < _FIRST and self._first is not None:
            self._first.append(data if len(data) <= _LONGEST_FIRST else _LONG_EVENT)
        self.events += 1 if is_one else data.count(b"\n\n")
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    def keep_alive(self, data: bytes) -> Awaitable[None]:
        """Sends what shows the client that its stream is alive, and is no part of the answer."""
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes = b"", end: bytes = b"") -> None:
        """Sends the last events, then `end`, the router's own ones, and ends the response."""
        self.events += data.count(b"\n\n")
        await self._send({"type": "http.response.body", "body": data + end})
        self.finished = True

    async def _start(self, status: int, media_type: str, headers: Mapping[str, str]) -> None:
        self.started = True
        self.record.status = status
        self.record.first_byte = time.perf_counter()
        raw = [_raw("content-type", media_type), *map(_raw, headers, headers.values())]
        if self.record.deployment:
            raw += _raw(DEPLOYMENT_HEADER, self.record.deployment), _raw(REASON_HEADER, self.record.reason)
        if (plan := self.plans.get(self.record.endpoint)) is not None:
            raw.append(_raw(PLAN_HEADER, plan))
        raw += (_REQUEST_ID, self.record.request_id.encode("latin-1")), NO_SNIFFING
        if self.reservation is not None:
            left = await self.reservation.headers()
            raw += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in left.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


class StreamAborted(Exception):
    """The stream failed and its format has no error event: the connection must be broken off."""


class ErrorRenderer:
    """Sends the error that the block raises, in the form of `render`, unless the response has started."""

    __slots__ = ("_render", "_writer")

    def __init__(self, writer: ResponseWriter, render: Callable[[SwitchyardError], Reply]) -> None:
        self._writer, self._render = writer, render

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:  # nearly always
            return False
        record = self._writer.record
        match error:
            case StreamAborted():
                return True  # an unfinished response makes the server break the connection
            case ClientDisconnected():
                record.status, record.error = CLIENT_CLOSED_REQUEST, CLIENT_GONE
                return True
            case asyncio.CancelledError():  # how Serve reports that the client disconnected
                if not self._writer.is_answered:
                    record.status, record.error = CLIENT_CLOSED_REQUEST, CLIENT_GONE
            case SwitchyardError():
                await self._writer.error(error, self._render(error))
                return True
            case Exception():  # last resort: a bug must neither hang nor leak
                crash = event("request_failed", request_id=record.request_id, traceback=where(error))
                _log.error("The router failed to serve a request", extra=crash)
                failure = InternalError("The router failed to serve the request")
                await self._writer.error(failure, self._render(failure))
                return True
        return False


# Names are replaced in finished bytes, of every dialect. A pattern cannot match inside a JSON string: there the quotes
# are escaped.

_HEAD = 1024
PIECE = 1024 * 1024
"""Bytes of a long answer that are searched at a time."""

_MOST = 4096

_SPACED = re.compile(rb'\s*\{\s*"[^"\\]*": ')
"""The beginning of a JSON object that is not compact, as vLLM's are."""


class DeploymentNames:
    """Rewrites `model` and `system_fingerprint` in the answers of one deployment."""

    def __init__(self, name: str, model: str) -> None:
        """The deployment's name, and the engine's name for its model."""
        self._names = name, model
        own = dump(name)
        self._engine_model, self._model = b'"model":' + dump(model), b'"model":' + own
        self._fingerprint = b'"system_fingerprint":"'
        self._own_fingerprint = self._fingerprint + own[1:-1] + b"-"
        self._spaced = [
            (engines.replace(b":", b": ", 1), ours.replace(b":", b": ", 1))
            for engines, ours in ((self._engine_model, self._model), (self._fingerprint, self._own_fingerprint))
        ]

    def in_events(self, frames: bytes) -> bytes:
        """Whole frames of an event stream with the deployment's names."""
        frames = frames.replace(self._engine_model, self._model).replace(self._fingerprint, self._own_fingerprint)
        if frames.find(b'": "') >= 0:  # a server other than vLLM may put spaces into its JSON
            for engines, ours in self._spaced:
                frames = frames.replace(engines, ours)
        return frames

    def in_answer(self, body: bytes) -> bytes:
        """A whole answer with the deployment's names. Members of inner objects, like a tool's input, stay."""
        if _SPACED.match(body):
            body = dump(from_json(body))
        if not self._names_outside(body) and body.count(self._engine_model) > 1:
            answer, (name, model) = from_json(body), self._names
            if answer.get("model") == model:
                answer["model"] = name
            body = dump(answer)
        else:
            body = body.replace(self._engine_model, self._model, 1)
        return body.replace(self._fingerprint, self._own_fingerprint, 1)

    def in_long_answer(self, body: bytes, piece: int = PIECE) -> Sequence[bytes | memoryview]:
        """`in_answer` in pieces: copying megabytes takes milliseconds, and so does searching them, which is done
        `piece` by piece so that other threads can run."""
        if not self._names_outside(body):
            return [self.in_answer(body)]
        model, fingerprint = body.find(self._engine_model), _found(body, self._fingerprint, piece)
        renamed = [(model, self._engine_model, self._model)]
        if fingerprint >= 0:
            renamed.append((fingerprint, self._fingerprint, self._own_fingerprint))
        rest, done = memoryview(body), 0
        pieces: list[bytes | memoryview] = []
        for at, old, new in sorted(renamed):
            pieces += [rest[done:at], new]
            done = at + len(old)
        return [*pieces, rest[done:]]

    def _names_outside(self, body: bytes) -> bool:
        """Whether the answer's own name comes before any nested object, as nearly always: then it is the first."""
        at = body.find(self._engine_model, 0, _HEAD)
        return at >= 0 and body.count(b"{", 0, at) == 1 and body.find(b"[", 0, at) < 0


class EventNames:
    """Does what `DeploymentNames.in_events` does, for one stream with its `check`: of events that differ in a text
    alone, what surrounds it is searched once."""

    def __init__(self, names: DeploymentNames, check: EventCheck | None) -> None:
        self._names, self._check = names, check
        self._learned: Learned | None = None
        self._before = self._after = b""

    def renamed(self, frames: bytes, *, are_checked: bool) -> bytes:
        """Whole frames with the deployment's names. `are_checked`: they are what the check has seen last."""
        check = self._check
        if check is None or not are_checked or check.varying is None:
            return self._names.in_events(frames)
        if check.learned is not self._learned and not self._learn(check.learned):
            return self._names.in_events(frames)
        return self._before + check.varying + self._after

    def _learn(self, learned: Learned) -> bool:
        """Whether no name is in the part that varies. No name begins or ends in a text without quotes."""
        before, between, after = map(self._names.in_events, learned[:3])
        if between != learned[1]:
            return False
        self._learned, self._before, self._after = learned, before, after
        return True


@lru_cache(_MOST)
def _names(name: str, model: str) -> DeploymentNames:
    return DeploymentNames(name, model)


def names_of(target: Target) -> DeploymentNames:
    """The names for the answers of this deployment."""
    return _names(target.name, target.model)


def _found(body: bytes, what: bytes, piece: int) -> int:
    """`body.find(what)`, for a `what` with an underscore."""
    for start in range(0, len(body), piece):
        end = start + piece + len(what) - 1
        # Embeddings, the longest answers, have no underscore among their numbers, and a single byte is found ten times
        # as fast.
        if body.find(b"_", start, end) >= 0 and (at := body.find(what, start, end)) >= 0:
            return at
    return -1
