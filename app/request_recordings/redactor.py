"""Redacts in a separate process: a search takes the interpreter's lock, and no request may wait for one."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from app.request_recordings.redaction import read_message, write_message
from app.telemetry.logs import event

REST_S = 10.0
"""The time for which no text is recorded after a pattern took too long: it would at the next request, too."""

_log = logging.getLogger("switchyard")
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder()


class Redactor:
    """Starts its process with the first body. Blocks while it works: call it in a thread, with one body at a time."""

    def __init__(self, *, rest_s: float = REST_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest_s, self._clock = rest_s, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = float("-inf")

    def redacted(self, body: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any] | None:
        """The redacted body; None if it cannot be redacted, or a pattern takes too long for it."""
        if self._clock() < self._not_before:
            return None
        try:
            message = _encoder.encode((patterns, body))
        except (ValueError, TypeError, OverflowError, RecursionError):  # half of a surrogate pair, 30 digits
            return None
        try:
            process = self._process = self._process or _started()
            assert process.stdin is not None
            assert process.stdout is not None
            write_message(process.stdin, message)
            answer = read_message(process.stdout)
        except OSError:
            answer = None
        if answer is None:
            self._rest()
            return None
        document: dict[str, Any] | None = _decoder.decode(answer)
        return document

    def close(self) -> None:
        """Ends the process."""
        if (process := self._process) is not None:
            self._process = None
            process.kill()
            process.communicate()

    def _rest(self) -> None:
        self.close()
        self._not_before = self._clock() + self._rest_s
        _log.warning(
            "A pattern of `record.redact` took too long for a request; for a while, no text is recorded",
            extra=event("redaction_failed", rest_s=self._rest_s),
        )


def _started() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-m", "app.request_recordings.redaction"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # an interrupt at the terminal is the router's; this process ends with its input
    )
