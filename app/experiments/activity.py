"""What all routers report of their requests, in the controller: the `Board`, and the file that it comes from again.

activity/<writer>.msgpack           the counts over time, callers' use by day, and the last requests
reports/<writer>-<number>.msgpack   what was reported since then, by the ten seconds
routers/<writer>.msgpack            when routers served

No file has an engine's words, which may quote a prompt.
"""

import math
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from app.activity.board import RANGES, Board
from app.activity.outages import Span
from app.activity.report import ActivityReport, ReplicaStart, Taken, decode, decode_all, encode
from app.activity.request_list import MOST_REQUESTS, Wanted
from app.errors import BadRequest
from app.experiments.contract.query import choice
from app.experiments.storage.store import FileStore, ObjectStore, StoreError
from app.exposures.controller_client import Answer

FOLDER, REPORTS, ROUTERS = "activity", "reports", "routers"
SAVE_S = 300.0
"""Seconds after which everything is written anew, in place of the reports since."""
REPORTS_S = 10.0
"""Seconds after which it is written what routers have reported: those that end with the controller cannot tell it any
more."""
MARK_S, OBJECT_MARK_S = 1.0, 10.0
"""Seconds after which it is written that routers serve: on a disk, and in an object store, where a write has its price.
Where everything is killed at once, nobody knows better when that was."""
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
        self._saved_at = 0.0
        self._reported_requests: deque[ActivityReport] = deque(maxlen=MOST_REQUESTS)
        """Requests that no file has, each in a report."""
        self._reported_periods: list[ActivityReport] = []
        self._files, self._lacks_file = 0, False
        """How many files of reports were written, and whether one could not be, so that later ones would hide a gap."""
        self._marked_at = self._reported_at = -math.inf
        self._marked: list[Span] = []

    def take(self, body: bytes) -> Answer:
        """Takes a router's report. Raises BadRequest."""
        try:
            report = decode(body)
        except msgspec.DecodeError as error:
            raise BadRequest(f"This is no report of a router's activity: {error}") from None
        self._load()
        is_for_this = self._opened is not None and report.keeper == self._id
        report = report if is_for_this else replace(report, periods=[])
        self.board.take(report, self._clock())
        self._note(report)
        taken = Taken(self._id if self._opened is not None else "", self._saved.get(report.router, 0.0))
        return Answer(200, msgspec.json.encode(taken))

    def requests(self, body: bytes) -> Answer:
        """The requests that a `Wanted` asks for. Raises BadRequest."""
        wanted = decode_wanted(body)
        self._load()
        self._settle()
        return Answer(200, msgspec.json.encode(self.board.requests(wanted, self._clock())))

    def history(self, query: Mapping[str, str], body: bytes) -> Answer:
        """The counts over time of the endpoints in the body, null for all. Raises BadRequest."""
        endpoints = msgspec.json.decode(body, type=list[str] | None)
        name = choice({"range": "1h", **query}, "range", tuple(RANGES))
        self._load()
        self._settle()
        return Answer(200, msgspec.json.encode(self.board.history(name, self._clock(), endpoints)))

    def uses(self, query: Mapping[str, str]) -> Answer:
        """What each caller used on each of the last `days`, and when its key was used last, by the caller's id."""
        self._load()
        self._settle()
        days = int(query["days"])
        content = {"uses": self.board.uses(days, self._clock()), "used": self.board.used}
        return Answer(200, msgspec.json.encode(content))

    def started(self, starts: Sequence[ReplicaStart], stopped: Collection[str] = ()) -> None:
        """Adds starts of replicas, and notes those that are told to stop."""
        self._load()
        self.board.started(starts, self._clock(), stopped)

    def starts(self) -> Answer:
        """The starts of replicas by application, null if nobody watches them."""
        self._load()
        return Answer(200, msgspec.json.encode(self.board.starts(self._clock())))

    def save_if_due(self) -> None:
        """Writes everything every few minutes, and between that what was reported. Raises StoreError."""
        if self._opened is None:
            return
        self._settle()
        now = self._clock()
        mark_s = OBJECT_MARK_S if isinstance(self._opened, ObjectStore) else MARK_S
        if self.board.served.spans != self._marked and not 0 <= now - self._marked_at < mark_s:
            self._mark(self._opened)
        is_reported = self._reported_requests or self._reported_periods or self.board.runs
        if is_reported and not 0 <= now - self._reported_at < REPORTS_S:
            self._reported_at = now
            self._write_reports(self._opened)
        if now - self._saved_at >= SAVE_S:
            self._save(self._opened)

    def save(self) -> None:
        """Writes everything at the end. Raises StoreError."""
        if self._opened is None:  # nothing was reported
            return
        self._mark(self._opened)
        self._save(self._opened)

    def _save(self, store: FileStore) -> None:
        """Writes everything, and deletes the reports, and what earlier controllers wrote."""
        self._saved_at = self._clock()
        periods = self.board.periods()
        store.write(self._path, self.board.dump())
        self._saved = periods
        self._forget_reports()
        self._lacks_file = False
        for folder, own in ((FOLDER, self._path), (REPORTS, ""), (ROUTERS, self._mark_path)):
            for file in store.list(folder):
                if file.path != own:
                    store.delete(file.path)

    def _settle(self) -> None:
        """Counts what is known of routers that have ended."""
        for report in self.board.settle(self._clock()):
            self._note(report)

    def _note(self, report: ActivityReport) -> None:
        """Keeps a report for the next file of reports."""
        numbered = enumerate(report.requests, report.first)
        self._reported_requests.extend(
            ActivityReport(report.router, number, [one.without_engines_words()], []) for number, one in numbered
        )
        if report.periods:
            bare = replace(report, first=0, requests=[], running=[], running_counts=[], so_far=None, served_s=None)
            self._reported_periods.append(bare)

    def _write_reports(self, store: FileStore) -> None:
        """Writes what was reported since the last file. Where the directory fails, the next save has it."""
        reports = [*self._reported_periods, *self._reported_requests, *self.board.live()]
        self._forget_reports()
        if self._lacks_file:
            return
        self._files += 1
        try:
            store.write(f"{REPORTS}/{self._id}-{self._files:09}.msgpack", encode(reports))
        except StoreError:
            self._lacks_file = True

    def _forget_reports(self) -> None:
        self._reported_requests.clear()
        self._reported_periods.clear()

    def _mark(self, store: FileStore) -> None:
        """Writes when routers served. Where the directory fails the next mark says it."""
        self._marked_at, self._marked = self._clock(), self.board.served.spans
        with suppress(StoreError):
            store.write(self._mark_path, msgspec.msgpack.encode(self._marked))

    def _load(self) -> None:
        """Reads what the controller before has written. Where the directory fails it is read later; no report waits."""
        if self._opened is not None:
            return
        with suppress(StoreError, msgspec.DecodeError):
            store = self._open_store()
            files = sorted(store.list(FOLDER), key=lambda file: file.modified_at)
            self._opened = store
            if files:
                with store.open(files[-1].path) as file:
                    self.board.load(file.read(), self._clock())
        if self._opened is not None:
            self._read_reports(self._opened)
            self._saved = self.board.periods()
            self._read_marks(self._opened)

    def _read_reports(self, store: FileStore) -> None:
        """Reads what was reported since then, up to a damaged file: later ones would hide what it lacks."""
        with suppress(StoreError, msgspec.DecodeError):
            for written in sorted(store.list(REPORTS), key=lambda file: (file.modified_at, file.path)):
                with store.open(written.path) as file:
                    for report in decode_all(file.read()):
                        self.board.take(report, self._clock())

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
