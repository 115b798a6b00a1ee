"""The access log: one line per request, written when its response has ended.

Logs: every line of the `switchyard` loggers is one JSON object.
"""

import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple, TextIO

import msgspec
from msgspec.structs import replace

from app.engine.output import Usage
from app.errors import TooManyRefusals, Unauthorized

# ``ts`` (UTC), ``level``, ``event`` (a stable snake_case name), ``message`` where there is one, and the event's fields:
#
#     _log.warning("The deployment failed; retrying", extra=event("retry", request_id=id, deployment=name))
#
# Fields hold neither prompts nor keys: an exception is logged by its type and its places in the code (`where`), never
# by its message.


_ENCODER = msgspec.json.Encoder(enc_hook=str)


def _encode(line: Mapping[str, object]) -> str:
    try:
        return _ENCODER.encode(line).decode()
    except (ValueError, OverflowError):  # half of a surrogate pair, which UTF-8 cannot hold; a very long integer
        return json.dumps(line, default=str)


def event(name: str, /, **fields: object) -> dict[str, Any]:
    """The `extra` of a logging call: the event's name and its fields, which must be JSON values."""
    return {"event": name, "fields": fields}


def where(error: BaseException) -> str:
    """An exception's type and traceback, without its message, which may quote the client."""
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__


@lru_cache(maxsize=2)
def _stamp(second: int) -> str:
    """A second in UTC, from Unix time."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


class JsonFormatter(logging.Formatter):
    """A log record as one line of JSON. Records without `event` are called ``log``."""

    def format(self, record: logging.LogRecord) -> str:
        given = vars(record)
        line: dict[str, object] = {
            "ts": f"{_stamp(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": given.get("event", "log"),
        }
        if record.msg and (message := record.getMessage()):
            line["message"] = message
        line |= given.get("fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = where(record.exc_info[1])
        return _encode(line)


class _LineBuffered(logging.StreamHandler[TextIO]):
    """For a stream that writes each line at its end, as stderr does, in one call: `StreamHandler` flushes it again, and
    takes a lock for the two."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Writes the record; there are no filters."""
        try:
            self.stream.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001  as in `StreamHandler`: a line that cannot be written fails no request
            self.handleError(record)
        return True


def log_to_stderr() -> None:
    """Sends the `switchyard` loggers' lines to stderr. The process's entry point calls it once.

    It writes to the process's own stderr: the one that Serve puts in its place walks the stack for every line and
    buffers a thousand of them. Other loggers, Ray's among them, are left as they are.
    """
    handler = _LineBuffered(sys.__stderr__)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("switchyard")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


SUMMED = frozenset({Unauthorized.kind, TooManyRefusals.kind})
"""The errors of requests that get no line: anyone can send them, as fast as the network allows. The event
``requests_unauthorized`` has their sum (`app.access.refusals`)."""

MOST_PAUSES = 20
"""Of one request, which a page shows one by one; the further ones are in their sum alone."""

_log = logging.getLogger("switchyard.access")


class Sent(NamedTuple):
    """What a client has of a stream: the answer's `tokens`, or its `events` where the tokens are not known."""

    tokens: int | None = None
    events: int | None = None


class Lack(msgspec.Struct):
    """A request's wait for a replica, of which its deployment has none, in seconds of `time.perf_counter`. `until`:
    when there was one, or the wait ended otherwise; None: it waits."""

    since: float
    until: float | None = None


class Said(msgspec.Struct, frozen=True):
    """What a client was told of its request's failure: the text, the code, the type, and the field at fault, "" where
    it was told none.
    `is_engines`: the text is the engine's, which may quote the prompt. `engine_message`: its own words where the client
    was told others."""

    text: str
    code: str = ""
    type: str = ""
    param: str = ""
    is_engines: bool = False
    engine_message: str = ""


class FailedAttempt(msgspec.Struct, frozen=True):
    """A call of a deployment that has failed: why, in words, and from when until when, in seconds since the request's
    arrival. `engine`: the replica, "" if it has not told its name. `interrupted`: its engine was lost in the middle of
    a stream, which another one may continue; `continued`: another one has."""

    deployment: str
    at_s: float
    until_s: float
    why: str
    engine: str = ""
    continued: bool = False
    interrupted: bool = False


class Record(msgspec.Struct):
    """One request, for the metrics and the access log. Times are in seconds of `time.perf_counter`."""

    dialect: str
    operation: str
    request_id: str
    caller: str = ""
    endpoint: str = ""
    deployment: str = ""
    reason: str = ""
    status: int = 0
    error: str = ""
    said: Said | None = None
    stream: bool = False
    """Whether the client has asked for a stream."""
    streamed: bool = False
    """Whether its answer has begun as one."""
    attempts: int = 0
    failed_attempts: tuple[FailedAttempt, ...] = ()
    """The first `MOST_PAUSES`."""
    engine: str = ""
    """The replica that has begun the answer, or continued it, as far as it has told its name."""
    moves: int = 0
    """How often another engine has continued the stream."""
    pause_s: float = 0.0
    """How long the client had no token for want of an engine, in all: from the last one before to the first after."""
    pauses: tuple[tuple[float, float], ...] = ()
    """When that began, in seconds since the request's arrival, and how long it took: the first `MOST_PAUSES`."""
    paused: float | None = None
    """Since when it has waited for another engine, if it does so now."""
    text: str = ""
    """What is recorded of the request's text: `whole`, `redacted`, or "" for none."""
    usage: Usage | None = None
    max_tokens: int | None = None
    prompt_estimate: int | None = None
    """The prompt's tokens as limits count them before the engine has, once somebody wants to know."""
    sent_tokens: int | None = None
    """Of a stream whose engine has counted nothing: the tokens of the answer that were sent."""
    sent_events: int | None = None
    """The same for a stream whose tokens are not known: its events."""
    manages: bool = False
    """Whether the request reads or changes how an endpoint is served, and is none of its requests."""
    started: float = msgspec.field(default_factory=time.perf_counter)
    admitted: float | None = None
    """When limits and the endpoint's queue had let it pass."""
    sent: float | None = None
    """When the last deployment was called."""
    first_byte: float | None = None
    lack: Lack | None = None
    """Its last wait for a replica to start."""
    own_limit_s: float | None = None
    """The seconds that the request itself has allowed, if they were over before its end."""

    def lacks(self, lack: Lack) -> None:
        """Notes that no replica runs that could take it."""
        self.lack = lack

    def manage(self, endpoint: str) -> None:
        """Says whose management the request is."""
        self.endpoint, self.manages = endpoint, True

    def engine_lost(self, why: str, engine: str, silent_s: float) -> None:
        """Notes that the stream waits for another engine, after `silent_s` seconds without a token: at most since its
        first byte, which may be sent a moment after the last token has come."""
        self.attempt_failed(why, engine, interrupted=True)
        last = time.perf_counter() - silent_s
        self.paused = max(last, self.first_byte or last)

    def wait_ended(self, successor: str | None) -> float:
        """Notes the end of that wait, and returns its seconds. `successor`: the engine that goes on; None: none."""
        since, self.paused = self.paused or 0.0, None
        seconds = time.perf_counter() - since
        self.pause_s += seconds
        if len(self.pauses) < MOST_PAUSES:
            self.pauses = (*self.pauses, (since - self.started, seconds))
        if successor is not None:
            self.moves += 1
            self.engine = successor
            *before, lost = self.failed_attempts
            self.failed_attempts = (*before, replace(lost, continued=True))
        return seconds

    def attempt_failed(self, why: str, engine: str, *, interrupted: bool = False) -> None:
        """Notes the end of an attempt, which has failed now, unless it is known: one that nobody has continued."""
        is_known = sum(not failed.continued for failed in self.failed_attempts) >= self.attempts
        if self.sent is not None and not is_known and len(self.failed_attempts) < MOST_PAUSES:
            now = time.perf_counter() - self.started
            at = max(self.sent - self.started, sum(self.pauses[-1]) if self.pauses else 0.0)
            failed = FailedAttempt(self.deployment, at, now, why, engine, interrupted=interrupted)
            self.failed_attempts = (*self.failed_attempts, failed)

    @property
    def has_failed(self) -> bool:
        """Whether its client got an error or an answer that was cut short, or left before its end."""
        return bool(self.error) or self.status >= 400

    @property
    def used(self) -> Usage | None:
        """The tokens that it has cost: as the engine counted them; else those of a stream that were sent, and for its
        prompt the estimate. None if neither is known."""
        sent = self.sent_tokens if self.sent_tokens is not None else self.sent_events
        if self.usage is not None or sent is None:
            return self.usage
        return Usage(self.prompt_estimate or 0, sent)

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """Values for the labels that every metric has."""
        return "" if self.manages else self.endpoint, self.deployment, self.dialect, str(self.status)


def log_request(record: Record, elapsed_s: float) -> None:
    """Writes the request's line: the event ``request``. Those without valid credentials have none."""
    if record.error in SUMMED:
        return
    if _log.isEnabledFor(logging.INFO):
        _log.callHandlers(_line(_fields(record, elapsed_s)))  # it has no filters


@cache
def _common() -> dict[str, object]:
    """The attributes that the log records of all requests share, and the places of the others."""
    extra = event("request")
    return vars(_log.makeRecord(_log.name, logging.INFO, __file__, 0, "", (), None, extra=extra))


def _line(fields: dict[str, object]) -> logging.LogRecord:
    """A request's log record as from `_log.makeRecord`, which looks up process, thread and file name for each line."""
    line, now, given = logging.LogRecord.__new__(logging.LogRecord), time.time(), _common().copy()
    given["created"], given["msecs"], given["fields"] = now, now % 1 * 1000, fields
    line.__dict__ = given
    return line


def _fields(record: Record, elapsed_s: float) -> dict[str, object]:
    line: dict[str, object] = {
        "request_id": record.request_id,
        "dialect": record.dialect,
        "operation": record.operation,
        "caller": record.caller,
        "endpoint": record.endpoint,
        "deployment": record.deployment,
        "reason": record.reason,
        "status": record.status,
        "stream": record.stream,
        "duration_ms": _ms(elapsed_s),
    }
    if record.attempts > 1:
        line["attempts"] = record.attempts
    if record.moves or record.pause_s:
        line["moves"], line["pause_ms"] = record.moves, _ms(record.pause_s)
    if record.first_byte is not None:
        line["first_byte_ms"] = _ms(record.first_byte - record.started)
    if (used := record.used) is not None:
        line["prompt_tokens"] = used.prompt_tokens
        line["completion_tokens"] = used.completion_tokens
    if record.error:
        line["error"] = record.error
    return line


def _ms(seconds: float) -> float:
    """Milliseconds, to a tenth: `round` takes five times as long."""
    return int(seconds * 10_000 + 0.5) / 10
