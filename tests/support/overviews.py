"""Worlds of endpoints, counters and replicas, for tests of the overview and of the page that shows it."""

from collections import Counter
from typing import Any, NamedTuple

from hypothesis import strategies as st

from app.config.schema import Config, parse
from app.control_plane import Replicas
from app.server.overview_document import Present
from app.telemetry.periods import Arm
from app.telemetry.recent import Counts, RecentCounts

DEPLOYMENTS = ("blue", "green", "red", "grey")
ENDPOINTS = ("chat", "embed")
WINDOW_S = 60.0
REASONS = ("header", "model", "override", "pinned", "sticky", "traffic", "failover")
FAILURES = ("unavailable", "timeout", "broken", "some_new_kind")
REFUSALS = ("limit_exceeded", "bad_request")
STATES = ("RUNNING", "STARTING", "STOPPING")


class World(NamedTuple):
    """What `endpoints_document` takes."""

    config: Config
    window: RecentCounts
    present: Present


@st.composite
def _weights(draw: st.DrawFn, names: list[str]) -> dict[str, int]:
    cuts = sorted(draw(st.lists(st.integers(0, 100), min_size=len(names) - 1, max_size=len(names) - 1)))
    return {name: end - start for name, start, end in zip(names, [0, *cuts], [*cuts, 100], strict=True)}


@st.composite
def _endpoint(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(DEPLOYMENTS), min_size=1, max_size=3, unique=True))
    endpoint: dict[str, Any] = {"tasks": ["chat"], "traffic": draw(_weights(names))}
    if others := [name for name in DEPLOYMENTS if name not in names]:
        endpoint["fallback"] = draw(st.lists(st.sampled_from(others), max_size=1))
    if draw(st.booleans()):
        endpoint["sticky"] = {"by": "user"}
    return endpoint


@st.composite
def _counts(draw: st.DrawFn) -> Counts:
    most = draw(st.sampled_from([0, 1, 5, 2000]))
    number = st.integers(0, most)
    answered, left = draw(number), draw(number)
    failures = Counter({kind: draw(number) for kind in draw(st.lists(st.sampled_from(FAILURES), unique=True))})
    refusals = Counter({kind: draw(number) for kind in draw(st.lists(st.sampled_from(REFUSALS), unique=True))})
    requests = answered + left + failures.total() + refusals.total()
    reasons: Counter[str] = Counter()
    for reason in draw(st.lists(st.sampled_from(REASONS), unique=True)):
        reasons[reason] = draw(st.integers(0, requests - reasons.total()))
    reasons["traffic"] += requests - reasons.total()
    return Counts(requests, +reasons, left, +failures, +refusals)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Any configuration of a few deployments, with any counts, stops, breakers and replicas."""
    endpoints = {name: draw(_endpoint()) for name in ENDPOINTS[: draw(st.integers(1, 2))]}
    is_managed = draw(st.booleans())
    where = {name: {"app": name} if is_managed else {"url": "http://127.0.0.1:1"} for name in DEPLOYMENTS}
    config = parse({"endpoints": endpoints, "deployments": {name: {"model": "m", **at} for name, at in where.items()}})
    some = st.lists(st.sampled_from(DEPLOYMENTS), unique=True)
    counts: dict[Arm, Counts] = {(name, arm): draw(_counts()) for name in endpoints for arm in draw(some)}
    for name in endpoints:
        if draw(st.booleans()):
            nowhere = draw(_counts())
            counts[name, ""] = nowhere  # refused before a deployment was asked
    replicas = None
    if is_managed and draw(st.booleans()):
        applications = {name: draw(st.dictionaries(st.sampled_from(STATES), st.integers(0, 3))) for name in draw(some)}
        asleep = frozenset(name for name in draw(some) if not applications.get(name, {}).get("RUNNING"))
        replicas = Replicas(applications, {"RUNNING": 1}, asleep)
    present = Present(
        {arm: draw(st.integers(0, 9)) for arm in counts if arm[1]},
        {name: draw(st.integers(0, 9)) for name in endpoints},
        draw(some),
        {name: draw(some) for name in endpoints},
        replicas,
        {name: draw(st.integers(0, 500)) for name in endpoints},
        frozenset([*draw(some), *(arm for (_, arm), one in counts.items() if one.requests)]),
        {arm: draw(st.lists(st.floats(0, 200), max_size=3)) for arm in counts if arm[1]},
    )
    return World(config, RecentCounts(WINDOW_S, counts), present)
