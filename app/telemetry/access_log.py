import logging
import sys
import time
import traceback
from dataclasses import dataclass, field

from app.engine.usage import Usage

_access = logging.getLogger("switchyard.access")


@dataclass(slots=True)
class Record:
    """One exchange, as the metrics and the access log will tell it. Times are `time.perf_counter` seconds."""

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
    started: float = field(default_factory=time.perf_counter)
    first_byte: float | None = None

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """Values for the labels that every metric has."""
        return self.endpoint, self.deployment, self.dialect, str(self.status)


def _line(record: Record, elapsed: float) -> dict[str, object]:
    line: dict[str, object] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "request_id": record.request_id,
        "dialect": record.dialect,
        "operation": record.operation,
        "caller": record.caller,
        "endpoint": record.endpoint,
        "deployment": record.deployment,
        "reason": record.reason,
        "status": record.status,
        "stream": record.streamed,
        "duration_ms": round(elapsed * 1000, 1),
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


def where(error: BaseException) -> str:
    """An exception's kind and traceback for the log, without its message: that may hold a client's words."""
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__


def log_to_stderr() -> None:
    """Sends the access log (one JSON object a line) and the router's own messages to stderr.

    For the process's entry point to call, once. It is the process's own stderr: what Serve puts in its place walks the
    stack for every line and holds a thousand of them back.
    """
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("switchyard")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
