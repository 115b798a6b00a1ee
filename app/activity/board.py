"""The reports of all routers, put together: the last requests, and counts over time. Bounded, and pure but for a clock.

Counts are kept in three resolutions, each for its own time: the finer ones end first.
"""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from app.activity.outages import NEXT_REPORT_S, Outages, Served, Span, ends, overlap_s
from app.activity.report import (
    PERIOD_S,
    ActivityReport,
    ArmCounts,
    CallerCounts,
    Kind,
    ListedRequest,
    PeriodCounts,
    ReplicaStart,
)
from app.errors import Forbidden, Outcome
from app.telemetry.periods import Arm
from app.telemetry.recent import BucketCounts

MOST_REQUESTS = 500
MOST_FAILED_ALIKE, MOST_KINDS = 40, 100
"""Failed requests are kept longer: of each kind the last ones, so that a flood of one kind hides no other."""
MOST_ARMS = 200
OTHER_ARMS: Arm = ("", "")
"""The deployments beyond that, together."""
MOST_ROUTERS = 2000
MOST_RUNNING = 5000
SILENT_S = 15.0
"""Seconds without a report after which a router's running requests are forgotten: it may have died."""
MOST_USES = 50_000
MOST_STARTS, STARTS_S = 5000, 7.0 * 86400
"""The starts of replicas that are kept: the last ones of a week."""
AHEAD_S = 300.0
USE_DAYS = 31
DAY_S = 86400

SERIES: Mapping[float, float] = {PERIOD_S: 3600.0, 60.0: 12 * 3600.0, 600.0: 7.0 * DAY_S}
"""Seconds of one point, and for how long such points are kept."""
RANGES: Mapping[str, tuple[float, float]] = {
    "15m": (900.0, PERIOD_S),
    "1h": (3600.0, 60.0),
    "6h": (6 * 3600.0, 180.0),
    "24h": (DAY_S, 600.0),
    "7d": (7.0 * DAY_S, 3600.0),
}
"""The ranges of a history: their length, and the seconds of one point. A small chart has room for so many points."""

SETTLED_S = 4.0
"""Seconds after the end of a period in which routers report it, if all is well."""

REFUSED_S, REFUSED_STEP_S = 3600.0, 60.0
"""For how long requests without valid credentials, or a route, are counted, and the seconds of one count."""
MOST_REASONS = 40
"""Of one count; the further ones together are "", as they are in a router's counts."""

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
class Cell:
    """What one deployment did in one point of time. `first_token`: observations by bucket. `longest_first_token_s`: the
    longest of them; 0 if a report did not say it."""

    requests: int = 0
    errors: int = 0
    refused: int = 0
    left: int = 0
    output_tokens: int = 0
    first_token: dict[int, int] = field(default_factory=dict)
    longest_first_token_s: float = 0.0
    lost: int = 0

    def add(self, counts: "ArmCounts | Cell") -> None:
        """Adds other counts of the same deployment. Cells are of different times."""
        if counts.first_token:
            is_known = counts.longest_first_token_s and (self.longest_first_token_s or not self.first_token)
            longest = max(self.longest_first_token_s, counts.longest_first_token_s)
            self.longest_first_token_s = longest if is_known else 0.0
        self.requests += counts.requests
        self.errors += counts.errors
        self.refused += counts.refused
        self.left += counts.left
        self.lost += counts.lost
        self.output_tokens += counts.output_tokens
        for bucket, count in counts.first_token.items():
            self.first_token[bucket] = self.first_token.get(bucket, 0) + count


Points = OrderedDict[float, dict[Arm, Cell]]


@dataclass(slots=True)
class _Router:
    """What has been taken of one router: requests below `end`, and periods up to `period`. From `since` to `until` it
    has served, or another one before it."""

    end: int = 0
    period: float = 0.0
    since: float = math.inf
    until: float = -math.inf


@dataclass(slots=True)
class _Alike:
    """Failures of one kind: the last ones, and how many there were. `is_whole`: since the beginning."""

    is_whole: bool
    last: deque[ListedRequest] = field(default_factory=lambda: deque(maxlen=MOST_FAILED_ALIKE))
    count: int = 0


@dataclass(slots=True)
class DailyUse:
    """What one caller used on one day (UTC)."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, counts: CallerCounts) -> None:
        """Adds a period."""
        self.requests += counts.requests
        self.failed += counts.failed
        self.prompt_tokens += counts.prompt_tokens
        self.completion_tokens += counts.completion_tokens


class MinuteCounts:
    """Requests of each minute of the last hour, by their reason."""

    def __init__(self) -> None:
        self._minutes: OrderedDict[float, Counter[str]] = OrderedDict()

    def add(self, at: float, reasons: Mapping[str, int]) -> None:
        """Adds requests of a period that begins at `at`."""
        for reason, count in reasons.items():
            minute = self._minutes.setdefault(at - at % REFUSED_STEP_S, Counter())
            minute[reason if reason in minute or len(minute) < MOST_REASONS else ""] += count

    def forget(self, now: float) -> None:
        """Drops minutes that are over an hour old."""
        for at in [at for at in self._minutes if at <= now - REFUSED_S]:
            del self._minutes[at]

    def dump(self) -> dict[float, dict[str, int]]:
        """The counts as plain data."""
        return {at: dict(reasons) for at, reasons in self._minutes.items()}

    def load(self, minutes: Mapping[float, Mapping[str, int]]) -> None:
        """Adds what `dump` has returned."""
        for at, reasons in minutes.items():
            self.add(at, reasons)

    def last_hour(self, now: float) -> dict[str, Any]:
        """`requests` of each minute since `since`, of which the last one goes on, and all of them by their reason, the
        most frequent first."""
        first = now - now % REFUSED_STEP_S - REFUSED_S + REFUSED_STEP_S
        times = [first + index * REFUSED_STEP_S for index in range(round(REFUSED_S / REFUSED_STEP_S))]
        minutes = [self._minutes.get(at, Counter[str]()) for at in times]
        reasons = sum(minutes, Counter[str]())
        return {
            "since": first,
            "step_s": REFUSED_STEP_S,
            "requests": [minute.total() for minute in minutes],
            "reasons": [{"reason": reason, "requests": count} for reason, count in reasons.most_common()],
        }


class Board:
    """Everything that is kept. Not thread-safe."""

    def __init__(self) -> None:
        self._requests: deque[ListedRequest] = deque(maxlen=MOST_REQUESTS)
        self._failed: OrderedDict[Kind, _Alike] = OrderedDict()
        self._since: float | None = None
        """All requests that have ended since then are known; None: all that ever ended."""
        self._lacks_kinds = False
        """Whether there were failures of kinds that are not known any more."""
        self._routers: OrderedDict[str, _Router] = OrderedDict()
        self._running: OrderedDict[str, tuple[float, list[ListedRequest]]] = OrderedDict()
        """Each router's running requests, and when it has reported them."""
        self._series: dict[float, Points] = {step: OrderedDict() for step in SERIES}
        self._outages = Outages()
        self.served = Served()
        self._bounds: Sequence[float] = ()
        self._arms: set[Arm] = set()
        self._uses: OrderedDict[tuple[int, str], DailyUse] = OrderedDict()
        self._unauthorized = MinuteCounts()
        """The requests without valid credentials, by the reason."""
        self._unknown_routes = MinuteCounts()
        """The requests for routes that there are not, by what was meant."""
        self._starts: OrderedDict[str, ReplicaStart] = OrderedDict()
        self._watched_since: float | None = None
        self.used: dict[str, float] = {}
        """When each caller's key was used last, by the caller's id, in Unix seconds."""

    def take(self, report: ActivityReport, now: float) -> None:
        """Adds what is new in a report. `now`: Unix seconds."""
        router = self._routers.setdefault(report.router, _Router())
        self._routers.move_to_end(report.router)
        if len(self._routers) > MOST_ROUTERS:
            self._routers.popitem(last=False)
        if report.requests and report.first > router.end:
            self._lost_before(report.requests[0].ended_at)
        for number, request in enumerate(report.requests, report.first):
            if number >= router.end:
                self._list(request)
        router.end = max(router.end, report.first + len(report.requests))
        self._running.pop(report.router, None)
        if report.running:
            self._running[report.router] = (now, report.running)
            while sum(len(running) for _, running in self._running.values()) > MOST_RUNNING:
                self._running.popitem(last=False)
        if report.served_s is not None:
            # A report may be slow, and a clock may be set: the whole of what was known is right.
            router.since = min(router.since, now - report.served_s)
            router.until = max(router.until, now + NEXT_REPORT_S)
            self.served.add([(router.since, router.until)], now)
        for period in report.periods:
            # The clock of a router that is ahead must not keep counts that nothing forgets.
            if router.period < period.at <= now + AHEAD_S:
                router.period = period.at
                self._count(period, now)

    # Requests

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

    def _older_failures(self) -> list[ListedRequest]:
        """The failures that are none of the last requests, in the order of their ends."""
        last = set(map(id, self._requests))
        older = (one for alike in self._failed.values() for one in alike.last if id(one) not in last)
        return sorted(older, key=lambda one: one.ended_at)

    def requests(self, wanted: Wanted, now: float) -> dict[str, Any]:
        """The requests that are wanted, the newest first, as plain data, with the failures among them in groups.
        `running`: how many of them run.

        The list has every request that runs or has ended since `since`, `kept` of those that the reader sees, of which
        `matching` pass the filters; and of the failures before that the last ones of each kind, `older_kept` and
        `older_matching`. `endpoints`, `deployments`, `callers` and `errors` are the values to filter by among those
        that the reader sees.
        """
        running = [one for at, reported in self._running.values() if now - at < SILENT_S for one in reported]
        listed = (
            wanted.shown(one)
            for one in (*self._older_failures(), *self._requests, *running)
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
            "unauthorized": self._unauthorized.last_hour(now),
            "unknown_routes": self._unknown_routes.last_hour(now),
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
        of several the newest (then not `is_most_frequent`), and `engine_message` the newest of the engines' own."""
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
            groups[kind]["is_most_frequent"] = all(some < most for _, some in others)
        return sorted(groups.values(), key=lambda group: (OUTCOMES.index(group["outcome"]), -group["count"]))

    # Counts over time

    def _count(self, period: PeriodCounts, now: float) -> None:
        # A router without a stream so far has no buckets. A new version's are others: counts cannot be added.
        if period.bounds and list(self._bounds) != period.bounds:
            self._bounds = period.bounds
            for points in self._series.values():
                for cells in points.values():
                    for cell in cells.values():
                        cell.first_token.clear()
        for counts in period.arms:
            arm = self._arm(counts)
            for step, points in self._series.items():
                points.setdefault(period.at - period.at % step, {}).setdefault(arm, Cell()).add(counts)
            if counts.down is not None and arm != OTHER_ARMS:
                self._outages.note(arm, period.at, counts.down)
        self._unauthorized.add(period.at, period.unauthorized)
        self._unknown_routes.add(period.at, period.unknown_routes)
        day = int(period.at // DAY_S)
        for use in period.callers:
            self._uses.setdefault((day, use.caller_id), DailyUse()).add(use)
        for caller_id, at in period.used.items():
            self.used[caller_id] = max(at, self.used.get(caller_id, 0.0))
        self._forget(now)

    def _arm(self, counts: ArmCounts) -> Arm:
        arm = (counts.endpoint, counts.deployment)
        if arm not in self._arms and len(self._arms) >= MOST_ARMS:
            return OTHER_ARMS
        self._arms.add(arm)
        return arm

    def _forget(self, now: float) -> None:
        for step, points in self._series.items():
            for at in [at for at in points if at < now - SERIES[step]]:
                del points[at]
        self._outages.forget(now)
        self._unauthorized.forget(now)
        self._unknown_routes.forget(now)
        today = int(now // DAY_S)
        for key in [key for key in self._uses if key[0] <= today - USE_DAYS]:
            del self._uses[key]
        while len(self._uses) > MOST_USES:
            self._uses.popitem(last=False)
        for caller_id in [id for id, at in self.used.items() if at < now - USE_DAYS * DAY_S]:
            del self.used[caller_id]

    def history(self, name: str, now: float, endpoints: Collection[str] | None) -> dict[str, Any]:
        """The counts of the last time as points, by endpoint and deployment, as plain data: `at` are the points' times,
        and each series has one value for each. `until` is when the last point ends, the same for every range: that
        point may be shorter than the others, and its rates are those of its own time. `outages`: from when to when no
        replica ran (`to` null: none runs yet), also what of it is before the first point; `down_s`: how much of each
        point. `no_router`: from when to when no router answered, so that nobody counted requests.

        `endpoints`: those that the reader may see, None for all.
        """
        length, step = RANGES[name]
        until = now - SETTLED_S - (now - SETTLED_S) % PERIOD_S
        count = round(length / step)
        first = math.ceil(until / step) * step - length
        times = [first + step * index for index in range(count)]
        points = list(zip(times, [*times[1:], until], strict=True))
        cells: dict[Arm, list[Cell | None]] = {}
        for at, arms in self._points(step, length, until):
            index = int((at - first) // step)
            if index < 0:
                continue
            for arm, cell in arms.items():
                if endpoints is None or arm[0] in endpoints:
                    line = cells.setdefault(arm, [None] * count)
                    if (there := line[index]) is None:
                        there = line[index] = Cell()
                    there.add(cell)
        return {
            "range": name,
            "step_s": step,
            "at": times,
            "until": until,
            "no_router": ends(self.served.outages(first, until), until),
            "series": [
                {
                    "endpoint": arm[0],
                    "deployment": arm[1],
                    **self._series_of(line, points, self._outages.within(arm, first, until)),
                }
                for arm, line in sorted(cells.items())
            ],
        }

    def _points(self, step: float, length: float, until: float) -> Iterator[tuple[float, dict[Arm, Cell]]]:
        """The counts before `until`, as coarse as points of `step` seconds allow. A point that ends later would have
        more: finer ones take its place."""
        coarsest = next(one for one in reversed(SERIES) if step % one == 0 and SERIES[one] >= length)
        begin = -math.inf
        for size in sorted((one for one in SERIES if one <= coarsest), reverse=True):
            end = until - until % size
            yield from ((at, cells) for at, cells in self._series[size].items() if begin <= at < end)
            begin = end

    def _series_of(
        self, line: Sequence[Cell | None], points: Sequence[Span], outages: Sequence[Span]
    ) -> dict[str, Any]:
        """The values of each point, and the outages, of which one until the end of the last point goes on."""
        rates = [cell if cell is not None else Cell() for cell in line]
        timed = [(cell, end - at) for cell, (at, end) in zip(rates, points, strict=True)]
        until = points[-1][1]
        return {
            "requests_per_s": [round(cell.requests / seconds, 6) for cell, seconds in timed],
            "errors": [cell.errors for cell in rates],
            "refused": [cell.refused for cell in rates],
            "left": [cell.left for cell in rates],
            "lost": [cell.lost for cell in rates],
            "output_tokens_per_s": [round(cell.output_tokens / seconds, 6) for cell, seconds in timed],
            "first_token_p50_s": [self._quantile(cell, 0.5) for cell in rates],
            "first_token_p95_s": [self._quantile(cell, 0.95) for cell in rates],
            "down_s": [overlap_s(outages, at, end) for at, end in points],
            "outages": ends(outages, until),
        }

    def _quantile(self, cell: Cell, share: float) -> float | None:
        if not cell.first_token:
            return None
        counts = [float(cell.first_token.get(bucket, 0)) for bucket in range(len(self._bounds))]
        value = BucketCounts(self._bounds, counts, cell.longest_first_token_s).quantile(share)
        return round(value, 4) if value is not None else None

    def uses(self, days: int, now: float) -> dict[str, list[dict[str, int]]]:
        """What each caller used on each of the last days, the oldest first and today last (UTC), by its id."""
        today = int(now // DAY_S)
        empty = DailyUse()
        found: dict[str, dict[int, DailyUse]] = {}
        for (day, caller_id), use in self._uses.items():
            if today - days < day <= today:
                found.setdefault(caller_id, {})[day] = use
        return {
            caller_id: [msgspec.to_builtins(by_day.get(day, empty)) for day in range(today - days + 1, today + 1)]
            for caller_id, by_day in found.items()
        }

    # Starts of replicas

    def started(self, starts: Iterable[ReplicaStart], now: float, stopped: Iterable[str] = ()) -> None:
        """Adds the starts that are not known yet, and notes the replicas that are told to stop. Whoever calls this
        watches from then on, also if there are none."""
        self._watched_since = self._watched_since if self._watched_since is not None else now
        for start in starts:
            self._starts.setdefault(start.replica, start)
        for replica in self._starts.keys() & stopped:
            self._starts[replica] = replace(self._starts[replica], is_stopped=True)
        for replica in [id for id, start in self._starts.items() if start.at < now - STARTS_S]:
            del self._starts[replica]
        while len(self._starts) > MOST_STARTS:
            self._starts.popitem(last=False)

    def starts(self, now: float) -> dict[str, Any] | None:
        """The starts of each application's replicas since `since`: how many, how long half of them and the longest
        took, in seconds, when the last one was, whose they were, and which of those were told to stop. None if nobody
        watches them."""
        if self._watched_since is None:
            return None
        starts: dict[str, list[ReplicaStart]] = {}
        for start in self._starts.values():
            if start.at >= now - STARTS_S:
                starts.setdefault(start.application, []).append(start)
        # A replica that ran already when the watch began is among them.
        first = min((start.at for start in self._starts.values()), default=self._watched_since)
        return {
            "since": max(min(first, self._watched_since), now - STARTS_S),
            "applications": {
                application: {
                    "count": len(own),
                    "median_s": round(median(start.took_s for start in own), 1),
                    "longest_s": max(start.took_s for start in own),
                    "last_at": max(start.at for start in own),
                    "replicas": [start.replica for start in own],
                    "stopped": [start.replica for start in own if start.is_stopped],
                }
                for application, own in sorted(starts.items())
            },
        }

    # What outlives the process

    def dump(self) -> bytes:
        """What was counted, and the last requests, without engines' words."""
        state = _State(
            bounds=list(self._bounds),
            series={
                step: [(at, [(*arm, cell) for arm, cell in cells.items()]) for at, cells in points.items()]
                for step, points in self._series.items()
            },
            uses=[(day, id, use) for (day, id), use in self._uses.items()],
            used=self.used,
            periods=self.periods(),
            unauthorized=self._unauthorized.dump(),
            unknown_routes=self._unknown_routes.dump(),
            outages=self._outages.dump(),
            starts=list(self._starts.values()),
            watched_since=self._watched_since,
            requests=[one.without_engines_words() for one in (*self._older_failures(), *self._requests)],
            complete_since=self._since,
            lacks_kinds=self._lacks_kinds,
            cut_kinds=list(self._failed.keys() - self._whole_kinds()),
            ends={router: taken.end for router, taken in self._routers.items()},
        )
        return msgspec.msgpack.encode(state)

    def periods(self) -> dict[str, float]:
        """The last period that was taken of each router."""
        return {router: taken.period for router, taken in self._routers.items()}

    def load(self, data: bytes, now: float) -> None:
        """Adds what a board has dumped. Raises msgspec.DecodeError."""
        state = msgspec.msgpack.decode(data, type=_State)
        self._bounds = state.bounds
        for step in self._series.keys() & state.series.keys():
            for at, cells in state.series[step]:
                for endpoint, deployment, cell in cells:
                    arm = self._arm(ArmCounts(endpoint, deployment))
                    self._series[step].setdefault(at, {}).setdefault(arm, Cell()).add(cell)
        self._unauthorized.load(state.unauthorized)
        self._unknown_routes.load(state.unknown_routes)
        self._outages.load(state.outages)
        for day, id, use in state.uses:
            self._uses[day, id] = use
        if state.watched_since is not None:
            self._watched_since = min(state.watched_since, self._watched_since or now)
        for start in state.starts:
            self._starts.setdefault(start.replica, start)
        for router, at in state.periods.items():
            taken = self._routers.setdefault(router, _Router())
            taken.period = max(taken.period, at)
        for router, end in state.ends.items():
            taken = self._routers.setdefault(router, _Router())
            taken.end = max(taken.end, end)
        for id, at in state.used.items():
            self.used[id] = max(at, self.used.get(id, 0.0))
        self._load_requests(state)
        self._forget(now)

    def _load_requests(self, state: "_State") -> None:
        """Lists the requests before those that have been reported since."""
        reported = [*self._older_failures(), *self._requests]
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


class _State(msgspec.Struct):
    bounds: list[float]
    series: dict[float, list[tuple[float, list[tuple[str, str, Cell]]]]]
    uses: list[tuple[int, str, DailyUse]]
    used: dict[str, float]
    periods: dict[str, float] = {}
    unauthorized: dict[float, dict[str, int]] = {}
    unknown_routes: dict[float, dict[str, int]] = {}
    starts: list[ReplicaStart] = []
    watched_since: float | None = None
    outages: list[tuple[str, str, list[Span]]] = []
    requests: list[ListedRequest] = []
    complete_since: float | None = None
    lacks_kinds: bool = False
    cut_kinds: list[Kind] = []
    """Those of which not all failures are in `requests`."""
    ends: dict[str, int] = {}


def _plain(request: ListedRequest) -> dict[str, Any]:
    """Every field, also those that the wire leaves out. The caller's id stays here: it counts limits."""
    fields = {name: getattr(request, name) for name in request.__struct_fields__ if name != "caller_id"}
    attempts = msgspec.to_builtins(request.failed_attempts)
    return {**fields, "failed_attempts": attempts, "outcome": None if request.running else request.outcome}


def _values(names: Iterable[str]) -> list[str]:
    return sorted(set(names) - {""})[:MOST_ARMS]
