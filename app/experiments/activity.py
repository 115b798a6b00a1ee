"""What all routers report of their requests, in the controller: the `Board`, and the file that it comes from again.

activity/<writer>.msgpack        the counts over time, and callers' use by day; requests are in memory alone
routers/<writer>.msgpack         when routers served
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from app.activity.board import RANGES, Board, Wanted
from app.activity.outages import NEXT_REPORT_S, Span
from app.activity.report import ReplicaStart, Taken, decode
from app.errors import BadRequest
from app.experiments.contract.query import choice
from app.experiments.storage.store import FileStore, StoreError
from app.exposures.controller_client import Answer

FOLDER, ROUTERS = "activity", "routers"
SAVE_S = 300.0
"""Routers keep counts until they are written: of a controller that is killed, the next one gets them again."""
MARK_S = 10.0
"""Seconds after which it is written that routers serve: those that end with the controller cannot tell it any more."""
_LIVES = list[Span]


class ActivityKeeper:
    """`open_store` opens the ledger's directory once it is needed. `clock`: Unix seconds. Not thread-safe."""

    def __init__(self, open_store: Callable[[], FileStore], clock: Callable[[], float]) -> None:
        self.board = Board()
        self._open_store, self._clock = open_store, clock
        self._opened: FileStore | None = None
        self._id = secrets.token_hex(8)
        self._path, self._mark_path = (f"{folder}/{self._id}.msgpack" for folder in (FOLDER, ROUTERS))
        self._saved: dict[str, float] = {}
        """The last period of each router that is on disk."""
        self._saved_at = clock()
        self._marked_at = -MARK_S
        self._marked: list[Span] = []

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
        """Writes the counts every few minutes, and that routers serve every few seconds. Raises StoreError."""
        if self._opened is None:
            return
        now = self._clock()
        if not 0 <= now - self._marked_at < MARK_S and self.board.served.spans != self._marked:
            # The next one may be late by a tick and the time of its writing.
            self._mark(self._opened, self.board.served.until_next(MARK_S + NEXT_REPORT_S, now))
        if now - self._saved_at >= SAVE_S:
            self._save(self._opened)

    def save(self) -> None:
        """Writes everything at the end. Raises StoreError."""
        if self._opened is None:  # nothing was reported
            return
        self._mark(self._opened, self.board.served.spans)
        self._save(self._opened)

    def _save(self, store: FileStore) -> None:
        """Writes the counts, and deletes what earlier controllers wrote."""
        self._saved_at = self._clock()
        periods = self.board.periods()
        store.write(self._path, self.board.dump())
        self._saved = periods
        for folder, own in ((FOLDER, self._path), (ROUTERS, self._mark_path)):
            for file in store.list(folder):
                if file.path != own:
                    store.delete(file.path)

    def _mark(self, store: FileStore, spans: list[Span]) -> None:
        """Writes when routers served. Where the directory fails the next mark says it."""
        self._marked_at, self._marked = self._clock(), self.board.served.spans
        with suppress(StoreError):
            store.write(self._mark_path, msgspec.msgpack.encode(spans))

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
        if self._opened is not None:
            self._read_marks(self._opened)

    def _read_marks(self, store: FileStore) -> None:
        """Reads when routers served before, also by a controller that another cluster still runs."""
        with suppress(StoreError, msgspec.DecodeError):
            for mark in store.list(ROUTERS):
                with store.open(mark.path) as file:
                    self.board.served.add(msgspec.msgpack.decode(file.read(), type=_LIVES), self._clock())


def decode_wanted(body: bytes) -> Wanted:
    """A router's question for requests. Raises BadRequest."""
    try:
        return msgspec.json.decode(body, type=Wanted)
    except msgspec.DecodeError as error:
        raise BadRequest(f"This is no question for requests: {error}") from None
