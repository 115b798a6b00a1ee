"""A controller in memory, for routers: answers by `ControllerApi` on a fake read side, or fails."""

from collections.abc import Mapping

from app.errors import Unavailable
from app.experiments.api import ControllerApi
from app.exposures.controller_client import Answer
from app.exposures.wire import Acknowledgement, Batch, decode_batch, encode_acknowledgement
from tests.support.experiments.reader import FakeReader


class FakeController:
    """Keeps the batches that it receives."""

    def __init__(self) -> None:
        self.reader = FakeReader()
        self.answers = ControllerApi(self.reader)
        self.batches: list[Batch] = []
        self.calls: list[str] = []
        self.absent = False

    async def send(self, batch: bytes) -> bytes:
        if self.absent:
            raise Unavailable("no controller")
        if (decoded := decode_batch(batch)).number:
            self.batches.append(decoded)
        number = self.batches[-1].number if self.batches else 0
        return encode_acknowledgement(Acknowledgement(number, number))

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        self.calls.append(f"{method} {path}")
        if self.absent:
            raise Unavailable("The controller of experiments cannot be reached")
        return self.answers.answer(method, path, query, body)
