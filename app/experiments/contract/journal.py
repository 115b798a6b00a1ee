"""An entry of the journal, in a separate module so that routers, which read some, need not load pyarrow.

- The plans of endpoints, numbered and kept in the journal, including those that a file delivered.
- Events as the controller passes them on to routers.
- The files that exposures are exported as.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from app.config.endpoints import MAX_EARLIER, PlanSettings
from app.config.schema import Config, Endpoint
from app.errors import BadRequest
from app.exposures.plans import content_of, digest_of, plan_of
from app.exposures.wire import Replaced
from app.routing.rules import earlier_of, follows, moved_on, same

FACTS = JUDGED, LOAD, OBSTACLES, LOST, LOOKS, HASHED = ("judged", "load", "obstacles", "lost", "looks", "hashed")
"""Kinds of entries with facts that no exposure has, written whenever they change, so that a report of any time can be
made again: an analysis's landmarks, routers and replicas, what holds up steps, rows that routers have lost, looks that
a report rested on although there was more to look at, another secret with which routers hash units."""


STARTED, STOPPED = "controller_started", "controller_stopped"
"""Kinds of a controller's first and last entry; one that was killed has no last one. The last one has the batches that
are `stored`, as a segment's footer has them."""

SETTINGS = "settings"
"""The kind of an entry with digests of the settings in force, by which the next controller sees what a file has changed
that came with a restart."""

FAILED = "directory_failed"
"""The kind of an entry that a controller writes once the directory works again: since when it had not (Unix seconds),
and the last `error`."""

WAITED = "write_ahead_read"
"""The kind of the entry that a controller writes about each process that was killed while batches of its waited for a
segment: the `process`, how many batches are `lost`, and `since` and `until` when they were recorded (Unix seconds);
`alive_at`, when it last said that it lived, and `failing_since`, since when the directory failed, 0 if it did not;
`entries`, how many of its last ones the journal lacks, and `entries_since`, after when. STARTED names the process that
it began, as `write_ahead`, or as `copies` if routers keep the same batches."""

READ = "journal_read"
"""The kind of the entry that a controller writes when it has read the journal: the number of the last entry of each
writer that no such entry has named, or that was there of late."""


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened, at a Unix time."""

    at: float
    kind: str
    """controller_started, configuration, run_begun, run_state, or what an analysis reports: verdict, alarm …"""
    experiment: str | None = None
    detail: dict[str, Any] = {}
    writer: str = ""
    number: int = 0
    """Its number among those of its writer, from 1 without gaps; 0: of an earlier version, or of no controller."""


KIND = "plan"


class PlanEntry(msgspec.Struct, frozen=True):
    """One plan in an endpoint's history."""

    endpoint: str
    generation: int
    """Its number. A plan that came with a file has the next one here, and 0 in its id."""
    plan: str
    """Its id, as `x-switchyard-plan` has it."""
    weights: dict[str, int]
    since: float
    """The time at which it was made, or first seen by the controller, in Unix seconds."""
    by: str | None = None
    """The caller who made it; None: it came with a file."""
    reason: str | None = None
    overrides: int = 0
    """The number of units with an override. The units themselves are not stored: the journal is never
    deleted.
    """
    expires: float | None = None
    """The time at which it ends, in Unix seconds."""
    content: str = ""
    """A hash of its content: equal for plans with the same content."""
    withdrawn: dict[str, str] = {}
    """Deployments that running conversations leave by it, each with the one that gets them."""


def new_plans(entries: Sequence[JournalEntry], config: Config, now: float) -> list[JournalEntry]:
    """Entries about the plans of `config` that the journal lacks.

    A plan with the same content as the last one keeps its number.
    """
    last = plans_by_endpoint(entries)
    return [
        JournalEntry(now, KIND, None, msgspec.to_builtins(new))
        for name, endpoint in config.endpoints.items()
        if (new := _next(name, endpoint, last.get(name), now)) is not None
    ]


def plans_by_endpoint(entries: Iterable[JournalEntry]) -> dict[str, PlanEntry]:
    """The last plan of each endpoint."""
    return {plan.endpoint: plan for plan in _plans(entries)}


def history(entries: Iterable[JournalEntry], endpoint: str) -> list[PlanEntry]:
    """The endpoint's plans, the latest first."""
    return [plan for plan in _plans(entries) if plan.endpoint == endpoint][::-1]


def divided_since(entries: Iterable[JournalEntry], endpoint: str) -> float:
    """When a plan first divided the endpoint's traffic between deployments, in Unix seconds; inf: none has."""
    divided = (plan for plan in _plans(entries) if plan.endpoint == endpoint and _divides(plan))
    return min((plan.since for plan in divided), default=math.inf)


def _divides(plan: PlanEntry) -> bool:
    return sum(weight > 0 for weight in plan.weights.values()) > 1


def replaced(entries: Iterable[JournalEntry], config: Config) -> list[Replaced]:
    """Weights that running conversations follow by the journal, where the present plan does not list all of them in
    their order: it came with a file, or after one. The journal must have the plans of `config`.

    As on routers that see the changes, the time starts again with each, for all weights that are still followed.
    """
    plans: dict[str, list[PlanEntry]] = {}
    for plan in _plans(entries):
        plans.setdefault(plan.endpoint, []).append(plan)
    replaced: list[Replaced] = []
    for name, endpoint in config.endpoints.items():
        if endpoint.sticky is not None and endpoint.pin_s > 0:
            followed = _followed(name, plan_of(name, endpoint).id, plans.get(name, []), endpoint.pin_s)
            if not _are_listed(followed, endpoint.plan):
                replaced += followed
    return replaced


def _are_listed(replaced: Sequence[Replaced], plan: PlanSettings) -> bool:
    return follows(
        (earlier_of(former, plan.withdrawn) for former in plan.earlier),
        map(earlier_of, replaced),
    )


def _followed(name: str, id: str, plans: Sequence[PlanEntry], pin_s: float) -> list[Replaced]:
    """The weights before the last of an endpoint's plans that are followed when that is made, the oldest first."""
    replaced: list[Replaced] = []
    for before, plan in pairwise(plans):
        if not same(before.weights, plan.weights):
            until = plan.since + pin_s
            replaced = [replace(former, until=until) for former in replaced if former.until > plan.since]
            if not any(same(former.weights, before.weights) and not former.withdrawn for former in replaced):
                replaced.append(Replaced(name, id, before.weights, until))
        if plan.withdrawn:
            replaced = [replace(former, withdrawn=moved_on(former.withdrawn, plan.withdrawn)) for former in replaced]
    return replaced[-MAX_EARLIER:]


def _next(name: str, endpoint: Endpoint, last: PlanEntry | None, now: float) -> PlanEntry | None:
    id, plan, content = plan_of(name, endpoint).id, endpoint.plan, digest_of(content_of(endpoint))
    if last is not None and last.plan == id:
        return None
    generation = plan.generation
    if last is not None and last.content == content and plan.generation <= last.generation:
        generation = last.generation
    elif last is not None:
        generation = max(plan.generation, last.generation + 1)
    expires = plan.expires.at if plan.expires is not None else None
    since = plan.since if plan.since is not None else now
    weights, overrides = dict(endpoint.traffic), len(plan.overrides)
    by, reason, withdrawn = plan.by, plan.reason, dict(plan.withdrawn)
    return PlanEntry(name, generation, id, weights, since, by, reason, overrides, expires, content, withdrawn)


def _plans(entries: Iterable[JournalEntry]) -> list[PlanEntry]:
    """Each plan once, though two controllers have seen it."""
    plans: dict[tuple[str, int, str], PlanEntry] = {}
    for entry in entries:
        if entry.kind == KIND and (plan := _plan(entry.detail)) is not None:
            plans.setdefault((plan.endpoint, plan.generation, plan.plan), plan)
    return list(plans.values())


def _plan(detail: dict[str, Any]) -> PlanEntry | None:
    try:
        return msgspec.convert(detail, PlanEntry)
    except msgspec.ValidationError:
        return None


class FeedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of `GET /api/events`."""

    id: str
    """``<Unix seconds>-<hash of the entry>``."""
    kind: str
    """The event's name in the stream: verdict, alarm, plan …"""
    endpoint: str | None
    """Callers that may use it may see the event; None: all may."""
    data: dict[str, Any]
    """`at` (Unix seconds), `experiment` and `endpoint` if it is about one, `text`, and the kind's own members."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Events in the order in which they were journalled."""

    position: str
    """The position at which the next page begins. It holds for this controller, until it has read another journal."""
    latest: str
    """The id of the last entry that was looked at, event or not; empty if there is none."""
    more: bool
    """Whether there is another page already."""
    events: list[FeedEvent]


def time_of(id: str, name: str = "after") -> float:
    """The Unix seconds of an event's id, or of a text that is nothing else. Raises BadRequest with the `name`."""
    try:
        at = float(id.partition("-")[0])
    except ValueError:
        at = math.nan
    if not math.isfinite(at):
        raise BadRequest(f"{name}: '{id}' is neither an event's id nor a Unix time", param=name)
    return at


ExposureFormat = Literal["csv", "jsonl", "parquet"]
EXPOSURE_FORMATS: tuple[ExposureFormat, ...] = get_args(ExposureFormat)
MEDIA_TYPES: Mapping[ExposureFormat, str] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
}
