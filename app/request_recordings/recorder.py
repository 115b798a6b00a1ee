"""Recordings of requests on a router: their choice, and their lines. `sender.Sender` sends them to the controller.

Synchronous. `begin` and `end` run on the event loop and only append to a list, `lines` runs in a thread.

- The numbers of a request that decide its cost. Pure functions of a request in vLLM's fields.
- The record of a request, and its transport to the controller: gzipped JSON lines in a message.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from app.config.endpoints import Recording
from app.config.schema import Config
from app.engine.output import Usage
from app.exposures.identity import turns
from app.request_recordings.redaction import anonymous

_NUMBERS = {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "min_tokens": "min_tokens",
    "n": "n",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "logprobs": "logprobs",
    "top_logprobs": "top_logprobs",
    "dimensions": "dimensions",
}
"""Fields of requests, and the names under which they are recorded."""

_COUNTS = {"stop": "stop", "stop_sequences": "stop", "tools": "tools"}
_INPUTS = {"completions": "prompt", "embeddings": "input", "rerank": "documents", "classify": "input"}
_LARGEST = 2**53
"""The largest number recorded. JSON numbers are unbounded, and a larger one is meaningless."""


def parameters(task: str, body: Mapping[str, Any]) -> dict[str, int | float]:
    """Sampling parameters as they are if they are numbers, `stop` and `tools` as counts; `inputs` is the number of
    prompts of a batch, if there are several. Never any text.
    """
    parameters: dict[str, int | float] = {}
    for name, recorded in _NUMBERS.items():
        value = body.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST:
            parameters[recorded] = value
    for name, recorded in _COUNTS.items():
        if value := body.get(name):
            parameters[recorded] = len(value) if isinstance(value, list) else 1
    inputs = body.get(_INPUTS.get(task, ""))
    if isinstance(inputs, list) and len(inputs) > 1 and not isinstance(inputs[0], int):
        parameters["inputs"] = len(inputs)
    return parameters


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
    request: str = ""
    """16 hexadecimal digits: the hash of the request's id, the same as in exposures. Only with a body."""


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


MOST_PENDING = 4096
MOST_PENDING_BYTES = 32 * 1024 * 1024
"""Requests that wait for their line, and the bodies of those whose text is recorded."""

MOST_TEXT_BYTES = 256 * 1024
"""The text of a larger request is left out."""

Outcome = Literal["recorded", "without_text", "lost"]
Redact = Callable[[Mapping[str, Any], Sequence[str]], dict[str, Any] | None]
"""The type of `redactor.Redactor.redacted`."""


@dataclass(frozen=True, slots=True)
class RecordedEndpoint:
    """The recording of an endpoint: its settings, and which units' hashes are below `limit` of 2**64."""

    endpoint: str
    settings: Recording
    limit: int

    def text_of(self, size: int) -> str:
        """What is recorded of the text of a request with this many bytes: `whole`, `redacted`, or "" for none."""
        if self.settings.text != "full" or size > MOST_TEXT_BYTES:
            return ""
        return "redacted" if self.settings.redact else "whole"


@dataclass(slots=True)
class PendingRequest:
    """A request whose line is to be written. `body` is the request in vLLM's fields; None once it is not needed any
    more.
    """

    scope: RecordedEndpoint
    at: float
    plan: str
    dialect: str
    task: str
    stream: bool
    unit: int
    prompt_bytes: int
    body: Mapping[str, Any] | None
    status: int = 0
    usage: Usage | None = None
    request: int = 0
    """The hash of the request's id."""
    max_tokens: object = None
    """The tokens that the engine was allowed to write."""
    turn: int = 0
    parameters: dict[str, int | float] = field(default_factory=dict)


class Line(msgspec.Struct, frozen=True):
    """A line as it is sent, and its request's outcome."""

    endpoint: str
    outcome: Outcome
    line: bytes


class Recorder:
    """`unit_of` returns the hash of a sticky key, `draw` 64 random bits. `enabled` False: no controller accepts
    recordings.
    """

    def __init__(
        self,
        unit_of: Callable[[str], int],
        draw: Callable[[], int],
        *,
        enabled: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lost: Counter[str] = Counter()
        """Requests that were dropped because too many waited, by endpoint."""
        self._unit_of, self._draw, self._enabled, self._clock = unit_of, draw, enabled, clock
        self.scopes: Mapping[str, RecordedEndpoint] = {}
        """The endpoints that are recorded, by name."""
        self._pending: list[PendingRequest] = []
        self._size = 0

    def configure(self, config: Config) -> None:
        """Applies the recording settings of `config`, from the next request on."""
        recorded = {name: endpoint.record for name, endpoint in config.endpoints.items() if self._enabled}
        self.scopes = {
            name: RecordedEndpoint(name, settings, round(settings.percent / 100 * 2**64))
            for name, settings in recorded.items()
            if settings is not None
        }
        if self.scopes:
            self._unit_of("")  # reads the secret now, not with the first request

    def unit(self, scope: RecordedEndpoint, key: str | None) -> int | None:
        """The hash of the unit with this sticky key, or of a request that has none; None if it is not recorded."""
        unit = self._unit_of(key) if key is not None else self._draw()
        return unit if _place(unit) < scope.limit else None

    def end(self, request: PendingRequest) -> None:
        """Records that the request is over: its line is written later, and its body kept until then if its text is
        recorded.
        """
        body = request.body or {}
        request.turn = turns(request.task, body)
        request.parameters = parameters(request.task, {"max_tokens": request.max_tokens, **body})
        keeps = bool(request.scope.text_of(request.prompt_bytes))
        if not keeps:
            request.body = None
        size = request.prompt_bytes if keeps else 0
        if len(self._pending) >= MOST_PENDING or self._size + size > MOST_PENDING_BYTES:
            self.lost[request.scope.endpoint] += 1
            return
        self._pending.append(request)
        self._size += size

    def take(self) -> list[PendingRequest]:
        """The requests that wait."""
        pending, self._pending, self._size = self._pending, [], 0
        return pending

    def now(self, age_s: float) -> float:
        """Unix seconds of `age_s` ago."""
        return self._clock() - age_s


def line_of(request: PendingRequest, redact: Redact) -> Line:
    """The request's line. May take as long as `redact`."""
    settings = request.scope.settings
    text: dict[str, Any] | None = None
    outcome: Outcome = "recorded"
    if settings.text == "full":
        text = _text(request, redact)
        outcome = "recorded" if text is not None else "without_text"
    usage = request.usage
    recorded = RecordedRequest(
        at=request.at,
        endpoint=request.scope.endpoint,
        plan=request.plan,
        dialect=request.dialect,
        task=request.task,
        stream=request.stream,
        unit=f"{request.unit:016x}",
        turn=request.turn,
        status=request.status,
        prompt_bytes=request.prompt_bytes,
        prompt_tokens=usage.prompt_tokens if usage is not None else None,
        completion_tokens=usage.completion_tokens if usage is not None else None,
        parameters=request.parameters,
        body=text,
        request=f"{request.request:016x}" if text is not None else "",
    )
    try:
        line = encoder.encode(recorded)
    except (ValueError, TypeError, OverflowError, RecursionError):  # half of a surrogate pair is no text
        line, outcome = encoder.encode(msgspec.structs.replace(recorded, body=None, request="")), "without_text"
    return Line(request.scope.endpoint, outcome, line)


def _text(request: PendingRequest, redact: Redact) -> dict[str, Any] | None:
    if request.body is None:
        return None
    body, patterns = anonymous(request.body), request.scope.settings.redact
    return redact(body, patterns) if patterns else body


def _place(unit: int) -> int:
    """A unit's position among all units: independent of the hash that draws its arm."""
    return int.from_bytes(hashlib.blake2b(unit.to_bytes(8), person=b"recordings", digest_size=8).digest())
