"""The seam between a router and the controller of experiments, wherever that runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """The controller's answer to a question: an HTTP status, a body, and what the body is."""

    status: int
    body: bytes
    media_type: str = "application/json"


class ControllerClient(Protocol):
    """Both calls raise UpstreamError if the controller does not answer."""

    async def send(self, batch: bytes) -> bytes:
        """Hands over an encoded `Batch`; returns the encoded `Acknowledgement`."""

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        """A question below ``/api``, as `app.experiments.answers` answers them; `path` begins with a slash.

        Who may ask what is the router's to check, before.
        """


class RecordingClient(Protocol):
    """The same seam for recordings of requests."""

    async def record(self, recording: bytes) -> None:
        """Hands over an encoded `RecordingFile`; it is written for good when this returns. Raises whatever went
        wrong."""
