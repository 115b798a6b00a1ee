"""The shadows of all endpoints: the time since which each is one, and its evidence. The journal keeps these times."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from app.config.endpoints import Mirror
from app.config.schema import Config
from app.experiments.columns import PairColumns, Tables
from app.experiments.shadows.document import headline
from app.experiments.shadows.evidence import ALPHA, ShadowEvidence
from app.experiments.shadows.report import ShadowReport
from app.experiments.storage.entry import Entry
from app.exposures.wire import Skip

BEGUN, ENDED = "mirror_begun", "mirror_ended"


@dataclass(frozen=True, slots=True)
class Period:
    """The time since which a deployment is an endpoint's shadow, in Unix seconds: earlier pairs are no evidence about
    it.
    """

    shadow: str
    since: float


@dataclass(slots=True)
class _Judged:
    mirror: Mirror
    period: Period
    evidence: dict[str, ShadowEvidence] = field(default_factory=dict)
    """The evidence by primary."""
    skipped: Counter[str] = field(default_factory=Counter)


class ShadowJudge:
    """Judges mirrors' pairs. Not thread-safe. Every pair may be counted once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._judged: dict[str, _Judged] = {}

    @property
    def since(self) -> float | None:
        """The start of the oldest shadow, in Unix seconds; None: there is none."""
        return min((it.period.since for it in self._judged.values()), default=None)

    def adopt(self, config: Config, journal: Iterable[Entry] | None, now: float) -> list[Entry]:
        """Takes the mirrors of a configuration. Returns new entries for the journal.

        `journal` None: it has not been read yet, and a shadow may be older than it seems.
        """
        known = {name: it.period for name, it in self._judged.items()}
        said = periods_of(journal) if journal is not None else known
        entries: list[Entry] = []
        mirrors = {name: it.mirror for name, it in config.endpoints.items() if it.mirror is not None}
        for name in said.keys() - mirrors.keys():
            entries.append(Entry(now, ENDED, None, {"endpoint": name, "shadow": said[name].shadow}))
        judged: dict[str, _Judged] = {}
        for name, mirror in mirrors.items():
            period = said.get(name)
            if period is None or period.shadow != mirror.deployment:
                period = known.get(name)
                if period is None or period.shadow != mirror.deployment:
                    period = Period(mirror.deployment, now)
                detail = {"endpoint": name, "shadow": period.shadow, "since": period.since}
                entries.append(Entry(now, BEGUN, None, detail))
            former = self._judged.get(name)
            if former is not None and former.period == period:
                former.mirror = mirror
                judged[name] = former
            else:
                judged[name] = _Judged(mirror, period)
        self._judged = judged
        return entries

    def forget(self) -> None:
        """Forgets all pairs: they are counted again."""
        for it in self._judged.values():
            it.evidence, it.skipped = {}, Counter()

    def count(self, pairs: PairColumns) -> None:
        """Pairs of any endpoint."""
        if not len(pairs) or not self._judged:
            return
        plans, names = self._tables.plans, self._tables.names
        endpoints = np.array([plan.endpoint for plan in plans])[pairs.plan]
        for name, judged in self._judged.items():
            shadow = np.array([it == judged.period.shadow for it in names])[pairs.shadow]
            own = pairs.take((endpoints == name) & shadow & (pairs.at >= judged.period.since))
            codes, counts = np.unique(own.skipped[own.skipped > 0], return_counts=True)
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
                judged.skipped[_reason(code)] += count
            for code in np.unique(own.primary).tolist():
                sent = own.take((own.primary == code) & (own.skipped == 0))
                if len(sent):
                    judged.evidence.setdefault(names[code], ShadowEvidence()).add(sent)

    def report(self, endpoint: str, now: float, warnings: Sequence[str] = ()) -> ShadowReport | None:
        """The report on an endpoint's shadow; None if it has no mirror."""
        if (judged := self._judged.get(endpoint)) is None:
            return None
        found = sorted(judged.evidence.items(), key=lambda item: -item[1].copies)
        report = ShadowReport(
            endpoint=endpoint,
            shadow=judged.period.shadow,
            percent=judged.mirror.percent,
            since=judged.period.since,
            at=now,
            alpha=ALPHA,
            copies=sum(it.copies for _, it in found),
            tokens=sum(it.tokens for _, it in found),
            skipped=dict(judged.skipped.most_common()),
            primaries=[it.report(primary) for primary, it in found],
            headline="",
            warnings=list(warnings),
        )
        return msgspec.structs.replace(report, headline=headline(report))

    def endpoints(self) -> list[str]:
        """Endpoints with a mirror."""
        return list(self._judged)


def _reason(code: int) -> str:
    return next((it.name.lower() for it in Skip if it == code), "other")


def periods_of(entries: Iterable[Entry]) -> Mapping[str, Period]:
    """The periods by endpoint, as of the end of the journal."""
    found: dict[str, Period] = {}
    for entry in entries:
        try:
            if entry.kind == BEGUN:
                found[entry.detail["endpoint"]] = Period(entry.detail["shadow"], float(entry.detail["since"]))
            elif entry.kind == ENDED:
                found.pop(entry.detail["endpoint"], None)
        except (KeyError, TypeError, ValueError):
            continue
    return found
