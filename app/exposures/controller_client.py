"""The interface of a router to the controller of experiments, wherever that runs."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """The controller's answer to a question: an HTTP status, a body, and its media type."""

    status: int
    body: bytes
    media_type: str = "application/json"


class ControllerClient(Protocol):
    """Both calls raise UpstreamError if the controller does not answer."""

    async def send(self, batch: bytes) -> bytes:
        """Hands over an encoded `Batch`; returns the encoded `Acknowledgement`."""

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        """A question below ``/api``, as `app.experiments.api` answers them; `path` begins with a slash.

        The router checks permissions before.
        """


@dataclass(frozen=True, slots=True)
class Export:
    """An export as its ledger gives it: a description of the file, and its bytes."""

    media_type: str
    pieces: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class ExportStream:
    """An export as a router passes it on."""

    media_type: str
    pieces: AsyncIterator[bytes]


class ExportClient(Protocol):
    """The same interface for exports of recorded exposures."""

    def export(self, query: Mapping[str, str]) -> AbstractAsyncContextManager[ExportStream | Answer]:
        """The export that a query asks for (`app.experiments.export`); an Answer is a refusal.

        Raises UpstreamError, and the pieces do if the controller becomes unreachable meanwhile.
        """


class RecordingClient(Protocol):
    """The same interface for recordings of requests."""

    async def record(self, recording: bytes) -> None:
        """Hands over an encoded `RecordingFile`; it is durable when this returns. Raises any error of the delivery."""
