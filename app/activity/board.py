"""The reports of all routers, put together: the last requests, and counts over time. Bounded, and pure but for a clock.

Counts are kept in three resolutions, each for its own time: the finer ones end first.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from typing import Any

import msgspec
from msgspec.structs import replace

from app.activity.outages import KEPT_S, MOST_SPANS, Outages, Served, Span, ends, overlap_s, with_present, without
from app.activity.report import (
    PERIOD_S,
    ActivityReport,
    ArmCounts,
    CallerCounts,
    PeriodCounts,
    ReplicaStart,
)
from app.activity.request_list import Dumped, RequestList, Wanted
from app.activity.routers import SILENT_S, Assumed, LostRouter, Router, negated
from app.telemetry.periods import Arm
from app.telemetry.recent import BucketCounts

MOST_ARMS = 200
OTHER_ARMS: Arm = ("", "")
"""The deployments beyond that, together."""
MOST_ROUTERS = 2000
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
            kept = reason if reason in minute or len(minute) < MOST_REASONS else ""
            minute[kept] += count
            if minute[kept] <= 0:  # taken back
                del minute[kept]

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
        self._requests = RequestList()
        self._routers: OrderedDict[str, Router] = OrderedDict()
        self._lost: list[LostRouter] = []
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
        router = self._routers.setdefault(report.router, Router())
        self._routers.move_to_end(report.router)
        if len(self._routers) > MOST_ROUTERS:
            self._routers.popitem(last=False)
        self._is_back(router, now)
        self._requests.take(report, router.end, now)
        router.heard(report, now)
        if report.lost_until is not None:
            self._lost = [*self._lost, LostRouter.reported(report, router.heard_at, report.lost_until)][-MOST_SPANS:]
        router.end = max(router.end, report.first + len(report.requests))
        if report.served_s is not None:
            # A report may be slow, and a clock may be set: the whole of what was known is right. The router may have
            # died at any time after it, and what it did since then is not counted.
            router.since = min(router.since, now - report.served_s)
            router.until = max(router.until, now)
            self.served.add([(router.since, router.until)], now)
        for period in report.periods:
            # The clock of a router that is ahead must not keep counts that nothing forgets.
            if router.period < period.at <= now + AHEAD_S:
                router.period = period.at
                self._count(period, now)

    def settle(self, now: float) -> list[ActivityReport]:
        """Counts what is known of routers that have ended: those that say so, and those that are not heard any more.
        Returns it as reports."""
        reports = []
        for name, router in list(self._routers.items()):
            if router.last is None or now < router.waits_until:
                continue
            before, (report, ids) = router.period, router.ended()
            # Its own numbers go on if it is there all the same.
            own, first = f"{name} lost", self._routers.setdefault(f"{name} lost", Router()).end
            ended = [replace(report, requests=[]), ActivityReport(own, first, report.requests, [])]
            for one in ended[: 2 if ids else 1]:
                self.take(one, now)
                reports.append(one)
            for period in report.periods:
                router.assumed = Assumed(period, frozenset(ids), before)
        return reports

    def _is_back(self, router: Router, now: float) -> None:
        """Takes back what was counted of a router in the belief that it had ended: it counts that itself."""
        if (assumed := router.assumed) is None:
            return
        router.assumed, router.period = None, assumed.period_before
        self._count(negated(assumed.period), now)
        self._requests.withdraw(assumed.lost)
        self._lost = [lost for lost in self._lost if lost.heard_at != router.heard_at]

    @property
    def runs(self) -> bool:
        """Whether requests run, as far as is known."""
        return any(router.last is not None and router.last.running for router in self._routers.values())

    def live(self) -> list[ActivityReport]:
        """The last reports of routers, as far as they count if no others come."""
        return [report for router in self._routers.values() if (report := router.live()) is not None]

    def requests(self, wanted: Wanted, now: float) -> dict[str, Any]:
        """The requests that are wanted, as `RequestList.found`, and those of the last hour that are none: without valid
        credentials, or a route."""
        return {
            **self._requests.found(wanted, now),
            "unauthorized": self._unauthorized.last_hour(now),
            "unknown_routes": self._unknown_routes.last_hour(now),
        }

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
        self._lost = [lost for lost in self._lost if lost.until >= now - KEPT_S]
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
        point. `no_router`: from when to when no router answered, so that nobody counted requests. `lost_routers`: when
        one of several ended that did not say what it had done at last. `lost_requests`: how many requests of an
        endpoint were lost with their router, which was heard last `at` this time. `since`: the time before which there
        was none yet; null if that is not known.

        `endpoints`: those that the reader may see, None for all.
        """
        length, step = RANGES[name]
        until = now - SETTLED_S - (now - SETTLED_S) % PERIOD_S
        count = round(length / step)
        first = math.ceil(until / step) * step - length
        times = [first + step * index for index in range(count)]
        points = list(zip(times, [*times[1:], until], strict=True))
        present = self._present_outages(now)
        no_router = self.served.outages(first, until)
        ends_of = ((lost.heard_at, lost.until) for lost in self._lost)
        lost = [span for span in without(ends_of, no_router) if first < span[1] and span[0] < until]

        def outages(arm: Arm) -> list[Span]:
            spans = with_present(self._outages.within(arm, first, math.inf), (present or {}).get(arm, ()))
            return [(begin, end) for begin, end in spans if begin < until and end > first]

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
            "no_router": [{"from": begin, "to": end} for begin, end in no_router],
            "lost_routers": [{"from": begin, "to": end} for begin, end in lost],
            "lost_requests": [
                {"at": router.heard_at, "endpoint": endpoint, "requests": requests}
                for router in self._lost
                if router.heard_at >= first
                for endpoint, requests in router.requests.items()
                if endpoints is None or endpoint in endpoints
            ],
            "since": self._since([times[index] for line in cells.values() for index, cell in enumerate(line) if cell]),
            "series": [
                {
                    "endpoint": arm[0],
                    "deployment": arm[1],
                    **self._series_of(line, points, outages(arm), until if present is None else math.inf),
                }
                for arm, line in sorted(cells.items())
            ],
        }

    def _present_outages(self, now: float) -> dict[Arm, list[Span]] | None:
        """What routers say of the present outages; None if none of them does."""
        said = [of.outages for of in self._routers.values() if of.outages is not None and now - of.heard_at < SILENT_S]
        found: dict[Arm, list[Span]] = {}
        for endpoint, deployment, begin, end in chain.from_iterable(said):
            found.setdefault((endpoint, deployment), []).append((begin, end))
        return found if said else None

    def _since(self, counted: Iterable[float]) -> float | None:
        """When the first router began, as far as that is known: not after anything was counted."""
        lives = [begin for begin, _ in self.served.spans[:1]]
        return min([*lives, *counted]) if lives else None

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
        self, line: Sequence[Cell | None], points: Sequence[Span], outages: Sequence[Span], open_at: float
    ) -> dict[str, Any]:
        """The values of each point, and the outages, of which one that has not ended by `open_at` goes on."""
        rates = [cell if cell is not None else Cell() for cell in line]
        timed = [(cell, end - at) for cell, (at, end) in zip(rates, points, strict=True)]
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
            "outages": ends(outages, open_at),
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
            requests=self._requests.dump(),
            live=self.live(),
            lost=self._lost,
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
        self._load_series(state)
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
            taken = self._routers.setdefault(router, Router())
            taken.period = max(taken.period, at)
        for router, end in state.ends.items():
            taken = self._routers.setdefault(router, Router())
            taken.end = max(taken.end, end)
        for id, at in state.used.items():
            self.used[id] = max(at, self.used.get(id, 0.0))
        self._requests.load(state.requests)
        self._lost = [*state.lost, *self._lost]
        for report in state.live:
            known = self._routers.get(report.router)
            if known is None or known.heard_at < now - SILENT_S:  # it has not reported since
                self.take(report, now)
        self._forget(now)

    def _load_series(self, state: "_State") -> None:
        for step in self._series.keys() & state.series.keys():
            for at, cells in state.series[step]:
                for endpoint, deployment, cell in cells:
                    arm = self._arm(ArmCounts(endpoint, deployment))
                    self._series[step].setdefault(at, {}).setdefault(arm, Cell()).add(cell)


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
    requests: Dumped = Dumped()
    ends: dict[str, int] = {}
    live: list[ActivityReport] = []
    lost: list[LostRouter] = []
