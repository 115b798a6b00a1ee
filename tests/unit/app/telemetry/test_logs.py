"""Every log line is one JSON object, and an exception's message is never in it."""

import json
import logging
import re
import sys
import time

import pytest

from app.telemetry.logs import MOST_PAUSES, JsonFormatter, Record, event, log_request, log_to_stderr, where

SECRET = "what the client wrote"


def line(record: logging.LogRecord) -> dict[str, object]:
    text = JsonFormatter().format(record)
    assert "\n" not in text
    fields: dict[str, object] = json.loads(text)
    return fields


def record(message: str, **extra: object) -> logging.LogRecord:
    return logging.getLogger("switchyard").makeRecord(
        "switchyard", logging.WARNING, __file__, 1, message, (), None, extra=extra
    )


def failure() -> BaseException:
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        return error


def test_a_line_has_the_event_its_fields_and_the_message() -> None:
    logged = line(record("Retrying", **event("retry", request_id="r-1", deployment="blue")))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(logged.pop("ts")))
    assert logged == {
        "level": "warning",
        "event": "retry",
        "message": "Retrying",
        "request_id": "r-1",
        "deployment": "blue",
    }


def test_a_wait_for_another_engine_has_its_place_and_the_first_are_kept_one_by_one() -> None:
    request = Record("openai", "chat", "r-1")
    request.started -= 100
    request.sent, request.attempts = request.started, 1
    for number in range(MOST_PAUSES + 1):
        request.engine_lost("its connection ended", f"r{number}", 3.0)
        request.wait_ended(f"r{number + 1}")
    assert request.pause_s == pytest.approx(3.0 * (MOST_PAUSES + 1), abs=1)
    assert request.moves == MOST_PAUSES + 1
    assert len(request.pauses) == len(request.failed_attempts) == MOST_PAUSES
    at, seconds = request.pauses[0]
    assert at == pytest.approx(97, abs=1)
    assert seconds == pytest.approx(3.0, abs=1)


def test_a_wait_for_another_engine_begins_no_sooner_than_the_answer() -> None:
    request = Record("openai", "chat", "r-1", attempts=1)
    request.sent, request.first_byte = request.started, time.perf_counter()
    request.engine_lost("its connection ended", "r0", 3.0)
    assert request.paused == request.first_byte


def test_a_lost_stream_was_continued_only_once_another_engine_has_gone_on() -> None:
    request = Record("openai", "chat", "r-1", deployment="blue", engine="r0", attempts=1)
    request.sent = request.started
    request.engine_lost("its connection ended", "r0", 3.0)
    assert [(one.engine, one.interrupted, one.continued) for one in request.failed_attempts] == [("r0", True, False)]
    assert request.paused == pytest.approx(time.perf_counter() - 3, abs=1)
    request.wait_ended("r1")
    assert (request.moves, request.engine, request.paused) == (1, "r1", None)
    request.engine_lost("it failed", "r1", 0.0)
    request.wait_ended(None)
    assert [(one.engine, one.continued) for one in request.failed_attempts] == [("r0", True), ("r1", False)]
    assert (request.moves, request.engine) == (1, "r1")
    request.attempt_failed("its answer ended before it was complete", "r1")  # that is known
    assert len(request.failed_attempts) == 2
    request.attempts, request.deployment = 2, "green"
    request.attempt_failed("it could not be reached", "")
    assert [one.deployment for one in request.failed_attempts] == ["blue", "blue", "green"]


def test_a_record_without_an_event_is_json_too() -> None:
    assert line(record("two\nlines")) | {"ts": ""} == {
        "ts": "",
        "level": "warning",
        "event": "log",
        "message": "two\nlines",
    }


def test_an_exception_is_logged_by_its_place_and_never_by_its_message() -> None:
    error = failure()
    with_error = record("Failed")
    with_error.exc_info = (type(error), error, error.__traceback__)
    for logged in (line(with_error), line(record("Failed", **event("x", traceback=where(error))))):
        assert str(logged["traceback"]).endswith("ValueError")
        assert "in failure" in str(logged["traceback"])
        assert SECRET not in str(logged)


def test_a_request_is_one_line_without_a_message() -> None:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler, logger = Keep(), logging.getLogger("switchyard.access")
    handler.setFormatter(JsonFormatter())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        log_request(Record("openai", "chat", "r-1", endpoint="chat", deployment="blue", status=200), 0.5)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    (logged,) = map(json.loads, lines)
    assert (logged["event"], logged["request_id"], logged["status"], logged["duration_ms"]) == (
        "request",
        "r-1",
        200,
        500,
    )
    assert "message" not in logged


def test_switchyard_lines_go_to_the_process_s_stderr_and_no_further() -> None:
    logger = logging.getLogger("switchyard")
    before = logger.handlers, logger.level, logger.propagate
    try:
        log_to_stderr()
        (handler,) = logger.handlers
        assert isinstance(handler, logging.StreamHandler)
        assert handler.stream is sys.__stderr__
        assert isinstance(handler.formatter, JsonFormatter)
        assert not logger.propagate
    finally:
        logger.handlers, logger.level, logger.propagate = before
