"""The record of a request, and its transport to the controller: gzipped JSON lines in a message."""

from typing import Any

import msgspec

VERSION = 1


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a recording. Sizes are in bytes or tokens; None where the engine reported none."""

    at: float
    """Unix seconds of the arrival, by the router's clock."""
    endpoint: str
    plan: str
    dialect: str
    task: str
    """A `config.schema.Task`."""
    stream: bool
    unit: str
    """16 hexadecimal digits: the hash of the unit, the same as in exposures."""
    turn: int = 0
    """The model's earlier turns that the request holds."""
    status: int
    prompt_bytes: int
    """Size of the whole body, as it arrived."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    parameters: dict[str, int | float] = {}
    """Numeric parameters that decide the cost: `facts.parameters`."""
    body: dict[str, Any] | None = None
    """The request in vLLM's fields, redacted; only with `text: full`. Never headers, callers' names or keys."""


class RecordingFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a recording, on its way to the controller. Its name makes repeats harmless."""

    version: int
    router: str
    """A random id of the router process, 16 hexadecimal digits."""
    number: int
    """1, 2, 3, …"""
    written_at: float
    """Unix seconds."""
    lines: bytes
    """Gzipped JSON lines, a `RecordedRequest` each."""


encoder = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(RecordedRequest)
_files = msgspec.msgpack.Decoder(RecordingFile)


def encode_file(file: RecordingFile) -> bytes:
    """The file as MessagePack."""
    return msgspec.msgpack.encode(file)


def decode_file(data: bytes) -> RecordingFile:
    """Raises msgspec.DecodeError on anything else."""
    return _files.decode(data)


def decode_line(line: bytes) -> RecordedRequest:
    """Raises msgspec.DecodeError on anything else."""
    return _lines.decode(line)
