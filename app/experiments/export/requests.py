"""Exported exposures as requests of a recording, of which traces are made: times and lengths, no texts."""

import json
from collections.abc import Iterable, Iterator

from app.request_recordings.recorder import RecordedRequest


def as_requests(pieces: Iterable[bytes]) -> list[RecordedRequest]:
    """The requests of an export in JSON lines, in the order of arrival. `pieces` may end anywhere."""
    return sorted((_request(line) for line in _lines(pieces)), key=lambda it: it.at)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _request(line: bytes) -> RecordedRequest:
    row = json.loads(line)
    return RecordedRequest(
        at=row["at"],
        endpoint=row["endpoint"],
        plan=row["plan"],
        dialect=row["dialect"],
        task=row["task"],
        stream=row["stream"],
        unit=row["unit"],
        turn=row["turn"],
        status=row["status"],
        prompt_bytes=row["prompt_bytes"],
        prompt_tokens=_count(row["prompt_tokens"]),
        completion_tokens=_count(row["completion_tokens"]),
        parameters={} if row["max_tokens"] is None else {"max_tokens": int(row["max_tokens"])},
    )


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)
