"""Sample ratio: checks whether the arms' units contradict the weights, and finds what differs by arm if they do.

A unit counts once, under the plan of its first exposure. Requests that may belong to conversations of an earlier plan
are left out, as they are from the analysis.
"""

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arms import Arms, FirstExposures
from app.experiments.analysis.evidence.arrays import Growing, Hashes, Ints
from app.experiments.analysis.evidence.first_seen import FirstSeen
from app.experiments.columns import F64, I32, Tables
from app.experiments.report import PlanCounts, SampleRatio
from app.experiments.statistics.sample_ratio import THRESHOLD, ln_e

_HOUR_S = 3600.0
_HOURS_KEPT = 48


class SampleRatioWatch:
    """Units by plan and arm. `returning`: units come back; else every request is a separate unit."""

    def __init__(self, arms: Arms, tables: Tables, *, returning: bool) -> None:
        self._arms = arms
        self._tables = tables
        self._first = FirstSeen(len(arms.names)) if returning else None
        self._requests = Growing(np.int64, len(arms.names))
        self._hours: dict[int, int] = {}
        self._known: float | None = 0.0
        self.alarmed_at: float | None = None

    def add(self, unit: Hashes, at: F64, plan: I32, arm: NDArray[np.int8]) -> None:
        """Starts of random exposures that belong to the experiment: equally long arrays."""
        if not len(unit):
            return
        if self._first is not None:
            self._first.add(unit, at, plan, arm)
        else:
            self._requests.resize(int(plan.max()) + 1)
            np.add.at(self._requests.values, (plan, arm), 1)
            self._count_hours(at)
        self._known = None

    def first_plans(self, unit: Hashes, plan: I32) -> I32:
        """The plan of each unit's first exposure; -1 where that is not known, `plan` where units do not come back."""
        return plan if self._first is None else self._first.groups(unit, unknown=-1)

    def first_exposures(self) -> FirstExposures | None:
        """None where units do not come back."""
        if self._first is None:
            return None
        unit, plan, arm = self._first.exposures
        return FirstExposures(unit, self._arms.sets_of(plan), arm)

    @property
    def _evidence(self) -> float:
        if self._known is None:
            self._known = ln_e(
                (counts, self._arms.weights_of(self._tables.plans[plan]))
                for plan, counts in enumerate(self._counts.tolist())
                if any(counts)
            )
        return self._known

    def _count_hours(self, at: F64) -> None:
        hours, counts = np.unique((at // _HOUR_S).astype(np.int64), return_counts=True)
        for hour, count in zip(hours.tolist(), counts.tolist(), strict=True):
            self._hours[hour] = self._hours.get(hour, 0) + count
        oldest = max(self._hours) - _HOURS_KEPT
        self._hours = {hour: count for hour, count in self._hours.items() if hour >= oldest}

    def new_since(self, since: float) -> float:
        """Units that were first seen at `since` or later, to the hour where requests are units."""
        if self._first is not None:
            return self._first.new_since(since) / self.share
        return float(sum(count for hour, count in self._hours.items() if (hour + 1) * _HOUR_S > since))

    @property
    def _counts(self) -> Ints:
        return self._requests.values if self._first is None else self._first.counts

    @property
    def share(self) -> float:
        """The share of units that is counted: below 1 after eight million."""
        return 1.0 if self._first is None else self._first.share

    @property
    def units(self) -> list[int]:
        """Units per arm, by their first exposure."""
        return [round(count / self.share) for count in self._counts.sum(axis=0).tolist()]

    def is_new_alarm(self) -> bool:
        """Whether the evidence has reached the threshold, without an alarm before."""
        return self.alarmed_at is None and self._evidence >= THRESHOLD

    def status(self, attribution: list[str]) -> SampleRatio:
        """Its state for reports."""
        names = self._arms.names
        plans = [(self._tables.plans[plan], counts) for plan, counts in enumerate(self._counts.tolist()) if any(counts)]
        return SampleRatio(
            log_e_value=self._evidence,
            alarm=self.alarmed_at is not None,
            alarmed_at=self.alarmed_at,
            plans=[
                PlanCounts(
                    plan=plan.id,
                    weights=dict(zip(names, self._arms.weights_of(plan), strict=True)),
                    units=dict(zip(names, counts, strict=True)),
                )
                for plan, counts in plans
            ],
            attribution=attribution,
        )
