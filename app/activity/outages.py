"""When no replica of a deployment ran: what one router notices, and what all of them have noticed in a week.

And when no router answered, which none of them can notice: the time between their lives.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from app.activity.report import PERIOD_S
from app.telemetry.periods import Arm

Span = tuple[float, float]
"""From when to when, in Unix seconds."""

KEPT_S, MOST_SPANS = 7.0 * 86400, 200
"""For how long outages are kept, and how many of a deployment: the last ones."""
_LATE_S = 3600.0
"""Routers may report a period so much later."""
NEXT_REPORT_S = 2.0
"""Seconds between two reports of a router. One that has ended did so in that time after its last one."""


class OutageWatch:
    """What a router notices. Before its first replica a deployment starts, which is no outage."""

    def __init__(self) -> None:
        self._had_replica: set[Arm] = set()
        self._down: dict[Arm, float] = {}
        self._ended: list[tuple[Arm, Span]] = []
        self._told: set[Arm] = set()

    def note(self, has_replica: Mapping[Arm, bool] | None, now: float) -> None:
        """Takes whether a replica of each deployment runs now, of those that are expected to run. None: that is not
        known, as while the control plane does not answer; what is down stays down."""
        if has_replica is None:
            return
        self._had_replica |= {arm for arm, runs in has_replica.items() if runs}
        for arm in list(self._down):
            if has_replica.get(arm) is not False:
                span = (self._down.pop(arm), now)
                if arm in has_replica:
                    self._ended.append((arm, span))
        self._told &= has_replica.keys()
        for arm in self._had_replica.intersection(arm for arm, runs in has_replica.items() if not runs):
            self._down.setdefault(arm, now)

    def present(self) -> list[tuple[str, str, float, float]]:
        """Those that go on, or that no period has yet (`ActivityReport.outages`)."""
        ended = [(*arm, *span) for arm, span in self._ended]
        return [*ended, *((*arm, since, math.inf) for arm, since in self._down.items())]

    def period(self, at: float) -> dict[Arm, tuple[float, float]]:
        """The part of the period that begins at `at` in which no replica ran, in seconds since then, of each deployment
        that lacked one in it. Of one that lacked one in the period before, none: others may notice the end later."""
        found = dict.fromkeys(self._told, (0.0, 0.0))
        for arm, (begin, end) in (*self._ended, *((arm, (since, math.inf)) for arm, since in self._down.items())):
            part = max(begin - at, 0.0), min(end - at, PERIOD_S)
            if part[0] < part[1]:
                before = found.get(arm, part)
                found[arm] = part if before[0] == before[1] else (min(before[0], part[0]), part[1])
        self._ended = [(arm, span) for arm, span in self._ended if span[1] > at + PERIOD_S]
        self._told = {arm for arm, (begin, end) in found.items() if begin < end}
        return found


class Outages:
    """What all routers have noticed."""

    def __init__(self) -> None:
        self._spans: dict[Arm, list[Span]] = {}
        self._said: OrderedDict[tuple[Arm, float], Span] = OrderedDict()
        """What routers say of late periods, together."""

    def note(self, arm: Arm, at: float, part: tuple[float, float]) -> None:
        """Adds what a router says of the period that begins at `at` (`OutageWatch.period`). Of several routers the
        first to notice a beginning is right, and the first to notice an end: the others have not heard of it yet."""
        begin, end = at + part[0], at + part[1]
        said = self._said.setdefault((arm, at), (begin, end))
        begin, end = self._said[arm, at] = min(said[0], begin), min(said[1], end)
        until = at + PERIOD_S
        spans = [(since, min(to, at)) for since, to in self._spans.get(arm, ()) if since < at]
        spans += [(begin, end)] if begin < end else []
        spans += [(max(since, until), to) for since, to in self._spans.get(arm, ()) if to > until]
        self._spans[arm] = list(_joined(spans))[-MOST_SPANS:]

    def forget(self, now: float) -> None:
        """Drops what has ended long ago."""
        while self._said and next(iter(self._said))[1] < now - _LATE_S:
            self._said.popitem(last=False)
        for arm, spans in list(self._spans.items()):
            self._spans[arm] = [span for span in spans if span[1] >= now - KEPT_S]
            if not self._spans[arm]:
                del self._spans[arm]

    def within(self, arm: Arm, begin: float, end: float) -> list[Span]:
        """The outages of a deployment that have a part in this time, the first one first."""
        return [span for span in self._spans.get(arm, ()) if span[0] < end and span[1] > begin]

    def dump(self) -> list[tuple[str, str, list[Span]]]:
        """The outages as plain data."""
        return [(*arm, spans) for arm, spans in self._spans.items()]

    def load(self, outages: list[tuple[str, str, list[Span]]]) -> None:
        """Adds what `dump` has returned."""
        for endpoint, deployment, spans in outages:
            arm = endpoint, deployment
            self._spans[arm] = list(_joined(sorted([*spans, *self._spans.get(arm, ())])))


class Served:
    """When a router served at all. It knows the lives of routers alone: what is between two of them is an outage of the
    router. Nobody claims one before the first life, or after the last: a router that has served on says so, also of the
    time in which nobody heard it."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        """The times without a pause, the first one first."""

    def add(self, spans: Iterable[Span], now: float) -> None:
        """Adds lives of routers, which may overlap or be known. Drops what nobody will ask for."""
        joined = list(_joined(sorted([*self.spans, *spans])))[-MOST_SPANS - 1 :]
        # The last one before the week stays: it is the beginning of an outage.
        ended = sum(end < now - KEPT_S for _, end in joined)
        self.spans = joined[max(0, ended - 1) :]

    def outages(self, begin: float, end: float) -> list[Span]:
        """The times without a router that have a part in this time, the first one first."""
        between = ((before[1], after[0]) for before, after in pairwise(self.spans))
        return [span for span in between if span[0] < end and span[1] > begin]


def ends(spans: Iterable[Span], until: float) -> list[dict[str, float | None]]:
    """The two ends of each, as documents have them: null for one that goes on at `until`."""
    return [{"from": since, "to": to if to < until else None} for since, to in spans]


def with_present(spans: Iterable[Span], said: Iterable[Span]) -> list[Span]:
    """Outages of a deployment, with what routers say of the present one: of several the first to notice a beginning is
    right, and the first to notice an end."""
    present: list[Span] = []
    for begin, end in sorted(said):
        if present and begin <= present[-1][1]:
            present[-1] = present[-1][0], min(present[-1][1], end)
        else:
            present.append((begin, end))
    return list(_joined(sorted([*spans, *present])))


def without(spans: Iterable[Span], others: Sequence[Span]) -> Iterator[Span]:
    """Each of these times up to the first of the others that it meets, if there is anything before it."""
    for begin, end in spans:
        until = min([end, *(since for since, to in others if since < end and to > begin)])
        if begin < until:
            yield begin, until


def overlap_s(spans: Sequence[Span], begin: float, end: float) -> float:
    """How many seconds of this time they are."""
    return round(sum(max(0.0, min(to, end) - max(since, begin)) for since, to in spans), 3)


def _joined(spans: list[Span]) -> Iterator[Span]:
    """Those that follow each other without a gap, as one."""
    present: Span | None = None
    for since, to in spans:
        if present is not None and since <= present[1]:
            present = present[0], max(present[1], to)
            continue
        if present is not None:
            yield present
        present = since, to
    if present is not None:
        yield present
