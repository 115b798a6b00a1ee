"""What has been taken of each router, and what is counted of one that ends without a word.

A router reports its counts so far, and what runs, every two seconds. Of one that is not heard any more the last such
report counts, and what ran then was lost with it. One that is heard again was not lost: that is taken back.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec
from msgspec.structs import replace

from app.activity.outages import NEXT_REPORT_S
from app.activity.report import PERIOD_S, ActivityReport, ArmCounts, CallerCounts, PeriodCounts, RunningCount

SILENT_S = 15.0
"""Seconds without a report after which a router has ended, as far as anybody knows."""


class LostRouter(msgspec.Struct, frozen=True):
    """A router that ended at some time between these two (Unix seconds) without a word of what it had done at last.
    `requests`: how many of each endpoint ran when it was heard last."""

    heard_at: float
    until: float
    requests: dict[str, int]

    @classmethod
    def reported(cls, report: ActivityReport, heard_at: float, until: float) -> Self:
        """As a controller's report about its end says."""
        requests = Counter[str]()
        for of in report.running_counts:
            requests[of.endpoint] += of.requests
        return cls(heard_at, until, dict(requests))


@dataclass(slots=True)
class Assumed:
    """What was counted of a router that was not heard any more: a period, and requests by their ids. `period_before`:
    the last one that it had reported itself."""

    period: PeriodCounts
    lost: frozenset[str]
    period_before: float


@dataclass(slots=True)
class Router:
    """What has been taken of one router: requests below `end`, and periods up to `period`. From `since` to `until` it
    has served, or another one before it. Times are in Unix seconds."""

    end: int = 0
    period: float = 0.0
    since: float = math.inf
    until: float = -math.inf
    heard_at: float = -math.inf
    waits_until: float = math.inf
    """When it has ended if it is not heard."""
    next_at: float = math.inf
    """When it would have been heard again, were it there."""
    last: ActivityReport | None = None
    """Its last report, as far as that counts if no other one comes."""
    assumed: Assumed | None = None
    outages: list[tuple[str, str, float, float]] | None = None
    """What it says of the present outages."""

    def heard(self, report: ActivityReport, now: float) -> None:
        """Notes a report. One from a file was heard before, and the router may be there still."""
        counts = report.so_far is not None or report.running
        self.last = replace(report, requests=[], periods=[]) if counts else None
        self.heard_at = report.heard_at if report.heard_at is not None else now
        self.outages = report.outages
        self.waits_until = now if report.is_last else now + SILENT_S
        self.next_at = now if report.heard_at is not None else now + NEXT_REPORT_S

    def live(self) -> ActivityReport | None:
        """Its last report for a file, without engines' words; None if nothing of it would count."""
        if self.last is None:
            return None
        running = [one.without_engines_words() for one in self.last.running]
        return replace(self.last, running=running, served_s=None, keeper="", heard_at=self.heard_at)

    def ended(self) -> tuple[ActivityReport, list[str]]:
        """What counts of it now that it has ended, as a report, with the requests that were lost, which have no numbers
        yet; and their ids."""
        assert self.last is not None
        so_far, rows = self.last.so_far, [one.lost() for one in self.last.running]
        if so_far is None or so_far.at <= self.period:
            at = max(math.floor(self.heard_at / PERIOD_S) * PERIOD_S, self.period + PERIOD_S)
            so_far = PeriodCounts(at, [], [], [])
        running = self.last.running_counts or [
            RunningCount(one.endpoint, one.deployment, one.caller_id, 1, 0, one.sent_tokens or one.sent_events or 0)
            for one in rows
        ]
        report = ActivityReport(
            self.last.router,
            0,
            rows,
            [_with_lost(so_far, running)],
            running_counts=list(running),
            heard_at=self.heard_at,
            lost_until=None if self.last.is_last else self.next_at,
        )
        return report, [one.id for one in rows]


def _with_lost(period: PeriodCounts, running: Sequence[RunningCount]) -> PeriodCounts:
    """A period in which these requests have failed, too."""
    arms = [
        ArmCounts(of.endpoint, of.deployment, of.requests, of.requests, output_tokens=of.output_tokens)
        for of in running
        if of.endpoint
    ]
    callers = [
        CallerCounts(of.caller_id, of.requests, of.requests, of.prompt_tokens, of.output_tokens)
        for of in running
        if of.caller_id
    ]
    return replace(period, arms=[*period.arms, *arms], callers=[*period.callers, *callers])


def negated(period: PeriodCounts) -> PeriodCounts:
    """The counts that take a period's back."""
    arms = [
        replace(
            arm,
            requests=-arm.requests,
            errors=-arm.errors,
            refused=-arm.refused,
            left=-arm.left,
            lost=-arm.lost,
            output_tokens=-arm.output_tokens,
            first_token={bucket: -count for bucket, count in arm.first_token.items()},
        )
        for arm in period.arms
    ]
    callers = [
        CallerCounts(of.caller_id, -of.requests, -of.failed, -of.prompt_tokens, -of.completion_tokens)
        for of in period.callers
    ]
    return replace(
        period,
        arms=arms,
        callers=callers,
        unauthorized={reason: -count for reason, count in period.unauthorized.items()},
        unknown_routes={reason: -count for reason, count in period.unknown_routes.items()},
    )
