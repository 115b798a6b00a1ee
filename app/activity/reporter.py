"""Reports what this router has done, in the background: to a board of its own, and to the controller with everyone's.

No request waits for it. Counts wait here until the controller has written them; of the requests the last ones wait
until it has taken them.
"""

import asyncio
import logging
import math
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from app.activity.board import Board
from app.activity.outages import NEXT_REPORT_S, OutageWatch
from app.activity.report import (
    PERIOD_S,
    ActivityReport,
    ArmCounts,
    CallerCounts,
    PeriodCounts,
    decode_taken,
    encode,
)
from app.activity.request_log import RequestLog
from app.aio import run_in_background
from app.exposures.uploader import Backoff
from app.telemetry.logs import event, where
from app.telemetry.periods import Arm
from app.telemetry.recent import Counts

EVERY_S = NEXT_REPORT_S
MOST_PERIODS = 360
"""An hour of counts waits for a controller that is away, or has not written them."""
TIMEOUT_S = 2.0

Deliver = Callable[[bytes], Awaitable[bytes]]
"""Hands over an encoded `ActivityReport`, and returns the encoded `Taken`. May raise any error."""


class Standing(NamedTuple):
    """Whether this router gets requests, and since when the oldest other one runs, infinite without one."""

    serves: bool
    elder_since: float


LookUp = Callable[[], Awaitable[Standing]]

_log = logging.getLogger("switchyard")


class ActivityReporter:
    """`deliver`: to the controller; None without one. `used` returns when each key was used last here, by its caller's
    id; `unauthorized` the requests without valid credentials so far, by the reason, and `unknown_routes` those for
    routes that there are not; `has_replica`, of which deployments a replica runs, where that is known; `standing` may
    raise any error; it is asked again then, and until this router serves. `is_stopped`: whether this router is told to
    stop, and gets no more requests. `counters` reads the counters as `sampled` takes them, without the end of a period;
    None: nobody can. `clock`: Unix seconds."""

    def __init__(
        self,
        requests: RequestLog,
        deliver: Deliver | None,
        used: Callable[[], Mapping[str, float]],
        *,
        unauthorized: Callable[[], Mapping[str, int]] = dict,
        unknown_routes: Callable[[], Mapping[str, int]] = dict,
        has_replica: Callable[[], Mapping[Arm, bool] | None] = dict,
        standing: LookUp | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
        counters: Callable[[], Mapping[Arm, Counts]] | None = None,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.board = Board()
        """What this router alone has reported."""
        self._requests, self._deliver, self._used, self._unauthorized = requests, deliver, used, unauthorized
        self._unknown_routes, self._has_replica = unknown_routes, has_replica
        self._counters, self._every_s, self._clock = counters, every_s, clock
        self._router = secrets.token_hex(8)
        self._periods: deque[PeriodCounts] = deque(maxlen=MOST_PERIODS)
        self._ended_at = 0.0
        """When the last period ended."""
        self._read: Mapping[Arm, Counts] = {}
        self._read_used: Mapping[str, float] = {}
        self._read_unauthorized: Counter[str] = Counter()
        self._read_unknown: Counter[str] = Counter()
        self._outages = OutageWatch()
        self._changed_at: float | None = None
        self._known_here = self._known_there = 0
        self._keeper, self._sent = "", 0.0
        """Who keeps the counts, and the last period that it has taken."""
        self._had_running_here = self._had_running_there = False
        self._standing, self._is_stopped = standing, is_stopped
        self._elder_since = math.inf
        self._began = time.monotonic()
        self._looked_at: float | None = None
        self._backoff, self._idle_backoff = Backoff(), Backoff()
        """Of reports, and of those that say only that this router serves: nobody misses these, and no request waits for
        them."""

    def changed(self) -> None:
        """Notes that replicas may have begun to serve, or ended: the next look finds which, and this was when."""
        self._changed_at = self._changed_at or self._clock()

    def look(self) -> None:
        """Notes which deployments lack a replica now, or do so since the last change."""
        has_replica = self._has_replica()
        self._outages.note(has_replica, self._changed_at or self._clock())
        if has_replica is not None:
            self._changed_at = None

    def sampled(self, counts: Mapping[Arm, Counts]) -> None:
        """Takes a reading of the counters, at the end of a period."""
        self.look()
        at = (round(self._clock() / PERIOD_S) - 1) * PERIOD_S
        period = self._counted(at, counts, self._outages.period(at), self._requests.take_uses())
        self._read, self._read_used, self._ended_at = counts, dict(self._used()), at + PERIOD_S
        self._read_unauthorized = Counter(self._unauthorized())
        self._read_unknown = Counter(self._unknown_routes())
        if period.has_any:
            self._periods.append(period)
            running = self._requests.running()
            self.board.take(ActivityReport(self._router, self._known_here, [], [period], running), self._clock())
            self._had_running_here = bool(running)

    def _so_far(self) -> PeriodCounts | None:
        """The counts of the period that goes on."""
        if self._counters is None:
            return None
        at = max(self._ended_at, math.floor(self._clock() / PERIOD_S) * PERIOD_S)
        return self._counted(at, self._counters(), {}, self._requests.uses())

    def _counted(
        self,
        at: float,
        counts: Mapping[Arm, Counts],
        down: Mapping[Arm, tuple[float, float]],
        callers: list[CallerCounts],
    ) -> PeriodCounts:
        """What was counted since the last period, for the one that begins at `at`."""
        bounds: list[float] = []
        arms: list[ArmCounts] = []
        for endpoint, deployment in dict.fromkeys([*counts, *sorted(down)]):
            now, before = (of.get((endpoint, deployment), Counts()) for of in (counts, self._read))
            if now.first_token.bounds:
                bounds = list(now.first_token.bounds)
            is_told = (endpoint, deployment) in down
            # Without an endpoint: management, and requests that name none. Of a thousand endpoints most rest.
            if not endpoint or not (is_told or now.requests != before.requests or now.lost != before.lost):
                continue
            new = now.since(before)
            arms.append(
                ArmCounts(
                    endpoint,
                    deployment,
                    requests=int(new.requests),
                    errors=int(new.errors),
                    refused=int(new.refused),
                    left=int(new.left),
                    output_tokens=int(new.output_tokens),
                    first_token={index: int(count) for index, count in enumerate(new.first_token.counts) if count},
                    longest_first_token_s=new.first_token.longest,
                    lost=new.lost,
                    down=down.get((endpoint, deployment)),
                )
            )
        used = {id: at for id, at in self._used().items() if self._read_used.get(id) != at}
        unauthorized = dict(Counter(self._unauthorized()) - self._read_unauthorized)
        unknown_routes = dict(Counter(self._unknown_routes()) - self._read_unknown)
        return PeriodCounts(at, bounds, arms, callers, used, unauthorized, unknown_routes)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reports while the block runs, and at its end."""
        async with run_in_background(self._run()):
            yield
        if self._deliver is not None:
            with suppress(Exception):  # nobody tries again
                await self._send(self._deliver, asyncio.get_running_loop().time, is_last=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._began = time.monotonic()
        while True:
            await self._look_up()
            await asyncio.sleep(self._every_s)
            try:
                self.look()
                self._keep_here()
                if self._deliver is not None:
                    await self._send(self._deliver, loop.time)
            except Exception as error:  # noqa: BLE001  a bug in one round must not end the following ones
                _log.error("Activity could not be reported", extra=event("activity_failed", traceback=where(error)))

    async def _look_up(self) -> None:
        """Looks whether this router serves, and for one that ran before it, which may end before the controller hears
        of it, or between two looks."""
        if self._standing is None:
            return
        try:
            async with asyncio.timeout(TIMEOUT_S):
                standing = await self._standing()
        except Exception:  # noqa: BLE001  the next round asks again
            return
        elder_since, self._elder_since = min(self._elder_since, standing.elder_since), standing.elder_since
        before, self._looked_at = self._looked_at, time.monotonic()
        if not standing.serves:
            return
        if before is not None:  # it has begun between the looks
            self._began = (before + self._looked_at) / 2
        self._began = min(self._began, time.monotonic() - (self._clock() - elder_since))
        self._standing = None

    def _served_s(self) -> float | None:
        """For how long a router has served (`ActivityReport`)."""
        return None if self._standing is not None or self._is_stopped() else time.monotonic() - self._began

    def _keep_here(self) -> None:
        first, requests = self._requests.after(self._known_here)
        running = self._requests.running()
        self._known_here = first + len(requests)
        if requests or running or self._had_running_here:
            self.board.take(ActivityReport(self._router, first, requests, [], running), self._clock())
        self._had_running_here = bool(running)

    async def _send(self, deliver: Deliver, now: Callable[[], float], *, is_last: bool = False) -> None:
        first, requests = self._requests.after(self._known_there)
        running = self._requests.running()
        unsent = [period for period in self._periods if period.at > self._sent]
        is_idle = not (requests or running or unsent or self._had_running_there)
        backoff = self._idle_backoff if is_idle else self._backoff
        if not backoff.allows(now()):
            return
        # One that is not known yet may have taken some before: it says which.
        periods = unsent if self._keeper else []
        try:
            report = encode(
                ActivityReport(
                    self._router,
                    first,
                    requests,
                    periods,
                    running,
                    self._keeper,
                    self._served_s(),
                    so_far=self._so_far(),
                    running_counts=self._requests.running_counts() if running else [],
                    is_last=is_last,
                    outages=self._outages.present(),
                )
            )
        except Exception:
            self._known_there = first + len(requests)  # or nothing would ever be reported again
            raise
        try:
            async with asyncio.timeout(TIMEOUT_S):
                taken = decode_taken(await deliver(report))
        except Exception as error:  # noqa: BLE001  no failure of the controller may end the reports
            if not is_idle and not backoff.is_failing:
                _log.warning(
                    "The controller of experiments takes no reports of this router's activity",
                    extra=event("activity_not_reported", error=type(error).__name__),
                )
            backoff.failed(now())
            return
        self._backoff.succeeded()
        self._idle_backoff.succeeded()
        self._known_there, self._had_running_there = first + len(requests), bool(running)
        if taken.keeper != self._keeper:
            self._keeper, self._sent = taken.keeper, taken.saved
        elif periods:
            self._sent = periods[-1].at
        while self._periods and self._periods[0].at <= taken.saved:
            self._periods.popleft()
