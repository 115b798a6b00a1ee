"""A process that redacts: a length and a message in, a length and a message out, until its input ends.

It ends itself when one message takes too much processor time: nothing else stops a regular expression. Its parent, the
router, starts another one. Run as ``python -m app.ledger.recordings.redaction_worker``.
"""

import os
import signal
import sys
from typing import IO

import msgspec

from app.ledger.recordings.redaction import NotRedactable, redacted

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
