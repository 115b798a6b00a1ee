"""What all routers report of their requests, in the controller: the `Board`, and the file that it comes from again.

activity/<writer>.msgpack        the counts over time, and callers' use by day; requests are in memory alone
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from app.activity.board import RANGES, Board, Wanted
from app.activity.report import ReplicaStart, Taken, decode
from app.errors import BadRequest
from app.experiments.contract.query import choice
from app.experiments.storage.store import FileStore, StoreError
from app.exposures.controller_client import Answer

FOLDER = "activity"
SAVE_S = 300.0
"""Routers keep counts until they are written: of a controller that is killed, the next one gets them again."""


class ActivityKeeper:
    """`open_store` opens the ledger's directory once it is needed. `clock`: Unix seconds. Not thread-safe."""

    def __init__(self, open_store: Callable[[], FileStore], clock: Callable[[], float]) -> None:
        self.board = Board()
        self._open_store, self._clock = open_store, clock
        self._opened: FileStore | None = None
        self._id = secrets.token_hex(8)
        self._path = f"{FOLDER}/{self._id}.msgpack"
        self._saved: dict[str, float] = {}
        """The last period of each router that is on disk."""
        self._saved_at = clock()

    def take(self, body: bytes) -> Answer:
        """Takes a router's report. Raises BadRequest."""
        try:
            report = decode(body)
        except msgspec.DecodeError as error:
            raise BadRequest(f"This is no report of a router's activity: {error}") from None
        self._load()
        is_for_this = self._opened is not None and report.keeper == self._id
        self.board.take(report if is_for_this else replace(report, periods=[]), self._clock())
        taken = Taken(self._id if self._opened is not None else "", self._saved.get(report.router, 0.0))
        return Answer(200, msgspec.json.encode(taken))

    def requests(self, body: bytes) -> Answer:
        """The requests that a `Wanted` asks for. Raises BadRequest."""
        return Answer(200, msgspec.json.encode(self.board.requests(decode_wanted(body), self._clock())))

    def history(self, query: Mapping[str, str], body: bytes) -> Answer:
        """The counts over time of the endpoints in the body, null for all. Raises BadRequest."""
        endpoints = msgspec.json.decode(body, type=list[str] | None)
        name = choice({"range": "1h", **query}, "range", tuple(RANGES))
        self._load()
        return Answer(200, msgspec.json.encode(self.board.history(name, self._clock(), endpoints)))

    def uses(self, query: Mapping[str, str]) -> Answer:
        """What each caller used on each of the last `days`, and when its key was used last, by the caller's id."""
        self._load()
        days = int(query["days"])
        content = {"uses": self.board.uses(days, self._clock()), "used": self.board.used}
        return Answer(200, msgspec.json.encode(content))

    def started(self, starts: Sequence[ReplicaStart]) -> None:
        """Adds starts of replicas."""
        self._load()
        self.board.started(starts, self._clock())

    def starts(self) -> Answer:
        """The starts of replicas by application, null if nobody watches them."""
        self._load()
        return Answer(200, msgspec.json.encode(self.board.starts(self._clock())))

    def save_if_due(self) -> None:
        """Writes the counts every few minutes. Raises StoreError."""
        if self._opened is not None and self._clock() - self._saved_at >= SAVE_S:
            self.save()

    def save(self) -> None:
        """Writes the counts, and deletes what earlier controllers wrote. Raises StoreError."""
        if self._opened is None:  # nothing was reported
            return
        self._saved_at = self._clock()
        periods = self.board.periods()
        self._opened.write(self._path, self.board.dump())
        self._saved = periods
        for file in self._opened.list(FOLDER):
            if file.path != self._path:
                self._opened.delete(file.path)

    def _load(self) -> None:
        """Reads the counts of the controller before. Where the directory fails they are read later; no report waits."""
        if self._opened is not None:
            return
        with suppress(StoreError, msgspec.DecodeError):
            store = self._open_store()
            files = sorted(store.list(FOLDER), key=lambda file: file.modified_at)
            self._opened = store
            if files:
                with store.open(files[-1].path) as file:
                    self.board.load(file.read(), self._clock())
                self._saved = self.board.periods()


def decode_wanted(body: bytes) -> Wanted:
    """A router's question for requests. Raises BadRequest."""
    try:
        return msgspec.json.decode(body, type=Wanted)
    except msgspec.DecodeError as error:
        raise BadRequest(f"This is no question for requests: {error}") from None
