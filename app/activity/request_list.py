"""The list of requests: the last ones of all routers, those that run, and longer the failures of each kind. Bounded."""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from app.activity.outages import NEXT_REPORT_S
from app.activity.report import ActivityReport, Kind, ListedRequest
from app.activity.routers import SILENT_S
from app.errors import ROUTER_LOST, Forbidden, Outcome

MOST_REQUESTS = 500
MOST_FAILED_ALIKE, MOST_KINDS = 40, 100
"""Failed requests are kept longer: of each kind the last ones, so that a flood of one kind hides no other."""
MOST_RUNNING = 5000
LATE_S = 2 * NEXT_REPORT_S + 1
"""Seconds without a report after which a router's running requests say so: it may have died."""
MOST_NAMES = 200
"""Of one filter."""
MOST_SAID = 20
"""Messages of a group."""

NOT_ANSWERED, RUNNING = "not_answered", "running"
OUTCOMES: Sequence[Outcome] = get_args(Outcome)


class Wanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requests that somebody asks for. `endpoints`: those that the reader may see; None: all, also requests that
    name none. `caller_id`: only the reader's own, and at the endpoints `operated` everyone's. The rest are the reader's
    filters."""

    endpoints: list[str] | None = None
    caller_id: str | None = None
    operated: list[str] = []
    id: str | None = None
    endpoint: str | None = None
    deployment: str | None = None
    caller: str | None = None
    status: str | None = None
    """`running`, an `Outcome`, `not_answered` for all but `answered`, a status, or a class of them: ``5xx``."""
    error: str | None = None
    slower_than_s: float | None = None
    ended_since: float | None = None
    """Unix seconds; what runs passes."""
    limit: int = MOST_REQUESTS

    def sees(self, request: ListedRequest) -> bool:
        """Whether the reader may see the request. One that has reached no endpoint, or none that its caller may use, is
        its caller's own."""
        has_none = not request.endpoint or request.error == Forbidden.kind
        is_own = self.caller_id is not None and self.caller_id == request.caller_id and has_none
        at_seen_endpoint = self.endpoints is None or request.endpoint in self.endpoints or is_own
        return at_seen_endpoint and (self.caller_id in (None, request.caller_id) or request.endpoint in self.operated)

    def shown(self, request: ListedRequest) -> ListedRequest:
        """The request as the reader sees it: without an endpoint that is none of the reader's."""
        is_hidden = self.endpoints is not None and request.endpoint not in self.endpoints
        return replace(request, endpoint="", plan="") if is_hidden and request.endpoint else request

    def matches(self, request: ListedRequest) -> bool:
        """Whether the request passes the filters."""
        return (
            (self.id is None or request.has_id(self.id))
            and self.endpoint in (None, request.endpoint)
            and self.deployment in (None, request.deployment)
            and self.caller in (None, request.caller)
            and self.error in (None, request.error)
            and (self.slower_than_s is None or request.duration_s > self.slower_than_s)
            and (self.ended_since is None or request.running or request.ended_at >= self.ended_since)
            and (self.status is None or _has_status(request, self.status))
        )


def _has_status(request: ListedRequest, wanted: str) -> bool:
    if request.running or wanted == RUNNING:
        return request.running and wanted == RUNNING
    if wanted == NOT_ANSWERED:
        return request.failed
    if wanted in OUTCOMES:
        return request.outcome == wanted
    return str(request.status) == wanted or f"{request.status // 100}xx" == wanted


@dataclass(slots=True)
class _Alike:
    """Failures of one kind: the last ones, and how many there were. `is_whole`: since the beginning."""

    is_whole: bool
    last: deque[ListedRequest] = field(default_factory=lambda: deque(maxlen=MOST_FAILED_ALIKE))
    count: int = 0


class Dumped(msgspec.Struct, frozen=True):
    """A list without what runs. `cut_kinds`: those of which not all failures are in `requests`."""

    requests: list[ListedRequest] = []
    complete_since: float | None = None
    lacks_kinds: bool = False
    cut_kinds: list[Kind] = []


class RequestList:
    """Each request once, whichever router reports it. Not thread-safe."""

    def __init__(self) -> None:
        self._requests: deque[ListedRequest] = deque(maxlen=MOST_REQUESTS)
        self._failed: OrderedDict[Kind, _Alike] = OrderedDict()
        self._since: float | None = None
        """All requests that have ended since then are known; None: all that ever ended."""
        self._lacks_kinds = False
        """Whether there were failures of kinds that are not known any more."""
        self._running: OrderedDict[str, tuple[float, list[ListedRequest]]] = OrderedDict()
        """Each router's running requests, and when it has reported them."""

    def take(self, report: ActivityReport, end: int, now: float) -> None:
        """Adds what is new in a report: requests below `end` are known. `now`: Unix seconds."""
        if report.requests and report.first > end:
            self._lost_before(report.requests[0].ended_at)
        for number, request in enumerate(report.requests, report.first):
            if number >= end:
                self._list(request)
        self._running.pop(report.router, None)
        if report.running:
            self._running[report.router] = (now, report.running)
            while sum(len(running) for _, running in self._running.values()) > MOST_RUNNING:
                self._running.popitem(last=False)

    def withdraw(self, ids: Collection[str]) -> None:
        """Takes requests back that were listed as lost with their router."""
        self._requests = deque(
            (one for one in self._requests if one.error != ROUTER_LOST or one.id not in ids), maxlen=MOST_REQUESTS
        )
        for kind, alike in [(kind, alike) for kind, alike in self._failed.items() if kind[3] == ROUTER_LOST]:
            kept = [one for one in alike.last if one.id not in ids]
            alike.count -= len(alike.last) - len(kept)
            alike.last = deque(kept, maxlen=MOST_FAILED_ALIKE)
            if not kept:
                del self._failed[kind]

    def _list(self, request: ListedRequest) -> None:
        if len(self._requests) == MOST_REQUESTS:
            self._complete_since(math.nextafter(self._requests[0].ended_at, math.inf))
        self._requests.append(request)
        if not request.failed:
            return
        alike = self._failed.setdefault(request.kind, _Alike(is_whole=not self._lacks_kinds))
        alike.last.append(request)
        alike.count += 1
        self._failed.move_to_end(request.kind)
        if len(self._failed) > MOST_KINDS:
            self._failed.popitem(last=False)
            self._lacks_kinds = True

    def _lost_before(self, at: float) -> None:
        """Notes that requests are lost that ended before `at`: a router had more than it keeps, or had reported them to
        another board."""
        self._complete_since(at)
        self._lacks_kinds = True
        for alike in self._failed.values():
            alike.is_whole = False

    def _complete_since(self, at: float) -> None:
        self._since = max(at, self._since or 0.0)

    def _is_older(self, request: ListedRequest) -> bool:
        return not request.running and self._since is not None and request.ended_at < self._since

    def _ended(self) -> list[ListedRequest]:
        """The requests that have ended: older failures, in the order of their ends, then the last requests."""
        last = set(map(id, self._requests))
        older = (one for alike in self._failed.values() for one in alike.last if id(one) not in last)
        return [*sorted(older, key=lambda one: one.ended_at), *self._requests]

    def found(self, wanted: Wanted, now: float) -> dict[str, Any]:
        """The requests that are wanted, the newest first, as plain data, with the failures among them in groups.
        `running`: how many of them run.

        The list has every request that runs or has ended since `since`, `kept` of those that the reader sees, of which
        `matching` pass the filters; and of the failures before that the last ones of each kind, `older_kept` and
        `older_matching`. `endpoints`, `deployments`, `callers` and `errors` are the values to filter by among those
        that the reader sees.
        """
        running = [
            replace(one, silent_s=round(now - at, 1)) if now - at >= LATE_S else one
            for at, reported in self._running.values()
            if now - at < SILENT_S
            for one in reported
        ]
        listed = (
            wanted.shown(one)
            for one in (*self._ended(), *running)
            if wanted.sees(one) and (one.failed or not self._is_older(one))
        )
        seen = sorted(listed, key=lambda one: one.at, reverse=True)
        matching = [request for request in seen if wanted.matches(request)]
        older = sum(map(self._is_older, seen))
        older_matching = sum(map(self._is_older, matching))
        return {
            "requests": [_plain(request) for request in matching[: wanted.limit]],
            "matching": len(matching) - older_matching,
            "older_matching": older_matching,
            "running": sum(request.running for request in matching),
            "kept": len(seen) - older,
            "older_kept": older,
            "since": (self._since or seen[-1].at) if seen else None,
            "groups": self._groups(matching),
            "endpoints": _values(one.endpoint for one in seen),
            "deployments": _values(one.deployment for one in seen),
            "callers": _values(one.caller for one in seen),
            "errors": _values(one.error for one in seen),
        }

    def _whole_kinds(self) -> set[Kind]:
        """The kinds of which all failures are listed."""
        last = Counter(request.kind for request in self._requests if request.failed)
        kinds = self._failed.items()
        return {kind for kind, one in kinds if one.is_whole and one.count <= max(MOST_FAILED_ALIKE, last[kind])}

    def _groups(self, requests: Iterable[ListedRequest]) -> list[dict[str, Any]]:
        """The failed requests by what they have in common: our failures before refusals, and before clients that left,
        and the most frequent first. `is_whole`: the list has all of the kind, so that `count` is no lower bound.
        `last_at`: when the last one failed, which is `id`. `message` is the most frequent of `messages` different ones,
        of several the newest (then not `is_most_frequent`), and `engine_message` the newest of the engines' own.
        `said`: the most frequent messages, each with its `count`."""
        groups: dict[Kind, dict[str, Any]] = {}
        messages: dict[Kind, Counter[tuple[str, bool]]] = {}
        whole = self._whole_kinds()
        for request in sorted(requests, key=lambda one: one.ended_at, reverse=True):
            if not request.failed:
                continue
            named = dict(zip(("endpoint", "deployment", "status", "error"), request.kind, strict=True))
            group = groups.setdefault(
                request.kind,
                {
                    **named,
                    "outcome": request.outcome,
                    "count": 0,
                    "is_whole": request.kind in whole,
                    "last_at": request.ended_at,
                    "id": request.id,
                    "message": "",
                    "messages": 0,
                    "said": [],
                    "is_most_frequent": False,
                    "is_engines": False,
                    "engine_message": "",
                },
            )
            group["count"] += 1
            group["engine_message"] = group["engine_message"] or request.engine_message
            if request.message:
                messages.setdefault(request.kind, Counter())[request.message, request.is_engines] += 1
        for kind, said in messages.items():
            groups[kind]["messages"] = len(said)
            ((groups[kind]["message"], groups[kind]["is_engines"]), most), *others = said.most_common(2)
            groups[kind]["said"] = [
                {"message": message, "is_engines": is_engines, "count": count}
                for (message, is_engines), count in said.most_common(MOST_SAID)
            ]
            groups[kind]["is_most_frequent"] = all(some < most for _, some in others)
        return sorted(groups.values(), key=lambda group: (OUTCOMES.index(group["outcome"]), -group["last_at"]))

    def dump(self) -> Dumped:
        """What outlives the process: without engines' words, and what runs."""
        return Dumped(
            requests=[one.without_engines_words() for one in self._ended()],
            complete_since=self._since,
            lacks_kinds=self._lacks_kinds,
            cut_kinds=list(self._failed.keys() - self._whole_kinds()),
        )

    def load(self, state: Dumped) -> None:
        """Lists what a list has dumped before what has been reported since."""
        reported = self._ended()
        self._requests.clear()
        self._failed.clear()
        for request in (*state.requests, *reported):
            self._list(request)
        if state.complete_since is not None:
            self._complete_since(state.complete_since)
        self._lacks_kinds |= state.lacks_kinds
        for kind in state.cut_kinds:
            if (alike := self._failed.get(kind)) is not None:
                alike.is_whole = False


def _plain(request: ListedRequest) -> dict[str, Any]:
    """Every field, also those that the wire leaves out. The caller's id stays here: it counts limits."""
    fields = {name: getattr(request, name) for name in request.__struct_fields__ if name != "caller_id"}
    attempts = msgspec.to_builtins(request.failed_attempts)
    return {**fields, "failed_attempts": attempts, "outcome": None if request.running else request.outcome}


def _values(names: Iterable[str]) -> list[str]:
    return sorted(set(names) - {""})[:MOST_NAMES]
