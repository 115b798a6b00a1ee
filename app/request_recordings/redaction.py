"""Removes from a request's body what names its caller, and what matches the patterns of `redact`. Pure.

A pattern may take exponential time, and Python's `re` holds the interpreter's lock meanwhile: with patterns, call this
in the process of `redaction_worker` only.

A process that redacts: a length and a message in, a length and a message out, until its input ends.
"""

import os
import re
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

import msgspec

REDACTED = "[redacted]"

CALLERS = frozenset(
    "user safety_identifier prompt_cache_key prompt_cache_retention metadata session_id request_id cache_salt".split()
)
"""Fields that name the caller or hold its own records: they are never written down."""

_DEEPEST = 100
"""JSON that is nested deeper is left out: no model would answer such a request."""


class NotRedactable(Exception):
    """The body holds text in a form in which patterns cannot find anything."""


def anonymous(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body without the fields that name its caller."""
    return {name: value for name, value in body.items() if name not in CALLERS}


def redacted(body: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    """The body with `[redacted]` for every match of a pattern in a string, the names of members included.

    Below the first level, a number that matches becomes the string `[redacted]`, too. Raises NotRedactable for prompts
    that are token ids or embeddings, and for JSON that is nested too deep.
    """
    if not patterns:
        return dict(body)
    if "prompt_embeds" in body or any(_holds_token_ids(body.get(name)) for name in ("prompt", "input")):
        raise NotRedactable
    compiled = [re.compile(pattern) for pattern in patterns]
    return _members(
        (_text(name, compiled), value if _is_number(value) else _value(value, compiled, 1))
        for name, value in body.items()
    )


def _holds_token_ids(value: Any) -> bool:
    return isinstance(value, list) and any(_is_number(item) or _holds_token_ids(item) for item in value)


def _value(value: Any, patterns: Sequence[re.Pattern[str]], depth: int) -> Any:
    if depth > _DEEPEST:
        raise NotRedactable
    if isinstance(value, str):
        return _text(value, patterns)
    if isinstance(value, list):
        return [_value(part, patterns, depth + 1) for part in value]
    if isinstance(value, dict):
        return _members((_text(name, patterns), _value(part, patterns, depth + 1)) for name, part in value.items())
    if _is_number(value) and any(pattern.search(str(value)) for pattern in patterns):
        return REDACTED
    return value


def _members(members: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An object; names that have become equal get a number."""
    redacted: dict[str, Any] = {}
    for name, value in members:
        unique, count = name, 1
        while unique in redacted:
            count += 1
            unique = f"{name} {count}"
        redacted[unique] = value
    return redacted


def _text(text: str, patterns: Sequence[re.Pattern[str]]) -> str:
    for pattern in patterns:
        text = pattern.sub(REDACTED, text)
    return text


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# It ends itself when one message takes too much processor time: nothing else stops a regular expression. Its parent,
# the router, starts another one. Run as ``python -m app.request_recordings.redaction``.

LIMIT_S = 0.5
"""Processor time for one message."""

LENGTH_BYTES = 4
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder()


def main(source: IO[bytes], target: IO[bytes]) -> None:
    """Each message is MessagePack: patterns and a body in, the redacted body or nil out."""
    while (message := read_message(source)) is not None:
        patterns, body = _decoder.decode(message)
        # The signal's default action ends the process, also in the middle of a search.
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        try:
            answer = redacted(body, patterns)
        except (NotRedactable, RecursionError):
            answer = None
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_message(target, _encoder.encode(answer))


def read_message(source: IO[bytes]) -> bytes | None:
    """The next message; None at the end, or where the other side broke off."""
    head = source.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    size = int.from_bytes(head)
    message = source.read(size)
    return message if len(message) == size else None


def write_message(target: IO[bytes], message: bytes) -> None:
    """Raises OSError if the other side has closed."""
    target.write(len(message).to_bytes(LENGTH_BYTES) + message)
    target.flush()


if __name__ == "__main__":
    os.nice(10)
    main(sys.stdin.buffer, sys.stdout.buffer)
