"""The access log: one line per request, written when its response has ended."""

import logging
import time
from dataclasses import dataclass, field
from functools import cache

from app.engine.usage import Usage
from app.errors import TooManyRefusals, Unauthorized
from app.telemetry.logs import event

_SUMMED = frozenset({Unauthorized.kind, TooManyRefusals.kind})
"""The errors of requests that get no line: anyone can send them, as fast as the network allows. The event
``requests_unauthorized`` has their sum (`app.access.refusals`)."""

_log = logging.getLogger("switchyard.access")


@dataclass(slots=True)
class Record:
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
    streamed: bool = False
    attempts: int = 0
    usage: Usage | None = None
    max_tokens: int | None = None
    manages: bool = False
    """Whether the request reads or changes how an endpoint is served, and is none of its requests."""
    started: float = field(default_factory=time.perf_counter)
    first_byte: float | None = None

    def manage(self, endpoint: str) -> None:
        """Says whose management the request is."""
        self.endpoint, self.manages = endpoint, True

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """Values for the labels that every metric has."""
        return "" if self.manages else self.endpoint, self.deployment, self.dialect, str(self.status)


def log_request(record: Record, elapsed_s: float) -> None:
    """Writes the request's line: the event ``request``. Those without valid credentials have none."""
    if record.error in _SUMMED:
        return
    if _log.isEnabledFor(logging.INFO):
        _log.handle(_line(event("request", **_fields(record, elapsed_s))))


@cache
def _common() -> dict[str, object]:
    """The fields that the log records of all requests share."""
    return vars(_log.makeRecord(_log.name, logging.INFO, __file__, 0, "", (), None))


def _line(extra: dict[str, object]) -> logging.LogRecord:
    """A log record as from `_log.makeRecord`, which looks up process, thread and file name for each line."""
    line, now = logging.LogRecord.__new__(logging.LogRecord), time.time()
    vars(line).update(_common(), created=now, msecs=now % 1 * 1000, **extra)
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
        "stream": record.streamed,
        "duration_ms": round(elapsed_s * 1000, 1),
    }
    if record.attempts > 1:
        line["attempts"] = record.attempts
    if record.first_byte is not None:
        line["first_byte_ms"] = round((record.first_byte - record.started) * 1000, 1)
    if record.usage is not None:
        line["prompt_tokens"] = record.usage.prompt_tokens
        line["completion_tokens"] = record.usage.completion_tokens
    if record.error:
        line["error"] = record.error
    return line
