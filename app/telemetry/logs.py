"""Logs: every line of the `switchyard` loggers is one JSON object.

``ts`` (UTC), ``level``, ``event`` (a stable snake_case name), ``message`` where there is one, and the event's fields:

    _log.warning("The deployment failed; retrying", extra=event("retry", request_id=id, deployment=name))

Fields hold neither prompts nor keys: an exception is logged by its type and its places in the code (`where`), never by
its message.
"""

import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic_core import to_json


def _encode(line: Mapping[str, object]) -> str:
    try:
        return to_json(line, fallback=str).decode()
    except ValueError:  # half of a surrogate pair, which UTF-8 cannot hold
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
        line: dict[str, object] = {
            "ts": f"{_stamp(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
        }
        if message := record.getMessage():
            line["message"] = message
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = where(record.exc_info[1])
        return _encode(line)


def log_to_stderr() -> None:
    """Sends the `switchyard` loggers' lines to stderr. The process's entry point calls it once.

    It writes to the process's own stderr: the one that Serve puts in its place walks the stack for every line and
    buffers a thousand of them. Other loggers, Ray's among them, are left as they are.
    """
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("switchyard")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
