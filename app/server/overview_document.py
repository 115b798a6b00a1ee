"""The overview as a document: pure functions of the configuration, the counts and the present state.

Each figure has one definition. An endpoint's requests are those of its deployments and those for which none was asked;
each of them was answered, failed, was refused, or its client left. So every sum on a page is a sum of what it shows.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal, NamedTuple, Self

from app.config.experiments import is_active
from app.config.schema import Config, Endpoint
from app.control_plane import RUNNING, STARTING, Replicas
from app.exchange.state import check_request
from app.exposures.plans import plan_of
from app.telemetry.periods import Arm, DrawnRequests
from app.telemetry.recent import BucketCounts, Counts, RecentCounts

_SURE = 3.0
"""Standard deviations that chance alone does not reach (once in 370 cases)."""

_WORDS: Mapping[str, str] = {
    "at_capacity": "at capacity",
    "bad_request": "not valid",
    "broken": "got an error or half an answer",
    "content_filter": "blocked by the content filter",
    "client_timeout": "over the request's own time limit",
    "forbidden": "not allowed",
    "limit_exceeded": "over a limit",
    "no_engine": "without an engine for as long as the client waited",
    "rejected": "not valid for the engine",
    "suspected": "held back because engines died",
    "timeout": "timed out",
    "too_large": "too large",
    "unavailable": "no deployment available",
}
"""Kinds of errors in words; the others are words with underscores."""

_STICKY: Mapping[str, tuple[str, str]] = {
    "user": ("user", "users"),
    "api_key": ("API key", "API keys"),
    "conversation": ("conversation", "conversations"),
}
"""What a sticky split draws, one and many; for a header, its values."""


class Present(NamedTuple):
    """The present state. `stops`: the stopped deployments of each endpoint. `replicas`: None if unknown. `keys`: the
    sticky keys that each endpoint has had in the window. `called`: the deployments that this router has sent anything.
    `waiting`: for how long requests have waited for the first byte of an answer, in seconds, and `paused`, streams for
    another engine. `silent_s`: the age of `replicas`, if the control plane does not answer. `dead`: engines that have
    died lately, which the control plane may still call running. `lacking`: for how many seconds requests have waited
    for a replica of each application."""

    in_flight: Mapping[Arm, int]
    queued: Mapping[str, int]
    open_breakers: Collection[str]
    stops: Mapping[str, Collection[str]]
    replicas: Replicas | None
    keys: Mapping[str, int] = {}
    called: Collection[str] = frozenset()
    waiting: Mapping[Arm, Sequence[float]] = {}
    paused: Mapping[Arm, Sequence[float]] = {}
    silent_s: float | None = None
    dead: Collection[str] = frozenset()
    lacking: Mapping[str, Sequence[float]] = {}


class EndpointFact(NamedTuple):
    """A fact about an endpoint, in a sentence. `status`: what became of the requests that it is about."""

    severity: Literal["bad", "warn", "info", "wait", "good"]
    text: str
    status: Literal["failed", "refused"] | None = None

    def plain(self) -> dict[str, str]:
        """As data, without what is not known."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def endpoints_document(
    config: Config,
    window: RecentCounts,
    present: Present,
    operated: Collection[str],
    colours: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Every endpoint of `config`, which is what the caller may see. `operated`: those that it may operate. `colours`:
    those of the deployments."""
    counted: dict[str, dict[str, Counts]] = {}
    for (name, arm), counts in window.counts.items():
        counted.setdefault(name, {})[arm] = counts
    return [
        {
            **_endpoint(
                name,
                endpoint,
                config,
                window=window,
                counted=counted.get(name, {}),
                present=present,
                colours=colours,
            ),
            "may_operate": name in operated,
        }
        for name, endpoint in config.endpoints.items()
    ]


def _endpoint(
    name: str,
    endpoint: Endpoint,
    config: Config,
    *,
    window: RecentCounts,
    counted: Mapping[str, Counts],
    present: Present,
    colours: Mapping[str, int],
) -> dict[str, Any]:
    arms = _arms(endpoint, counted, config)
    counts = {arm: counted.get(arm, Counts()) for arm in arms}
    drawn = sum(one.drawn for one in counts.values())
    experiments = [
        experiment
        for experiment, section in config.experiments.items()
        if section.endpoint == name and is_active(section)
    ]
    return {
        "endpoint": name,
        "tasks": list(endpoint.tasks),
        "sticky": endpoint.sticky.model_dump(exclude_none=True) if endpoint.sticky is not None else None,
        "plan": plan_of(name, endpoint).id,
        "generation": endpoint.plan.generation,
        "experiment": experiments[0] if experiments else None,
        "mirror": _mirror(endpoint, config),
        **_outcomes(counted.values()),
        "requests_per_s": _rate(sum(one.requests for one in counted.values()), window),
        "drawn": int(drawn),
        "queued": present.queued.get(name, 0),
        "findings": [
            finding.plain()
            for finding in _findings(
                name,
                endpoint,
                config,
                present=present,
                counted=counted,
                counts=counts,
                drawn=drawn,
                plans=window.drawn,
            )
        ],
        "unassigned": _outcomes([counted.get("", Counts())]),
        "deployments": [
            {
                **_deployment(counts[arm], drawn, window),
                "deployment": arm,
                "model": config.deployments[arm].model if arm in config.deployments else arm,
                "colour": colours.get(arm),
                "role": _role(arm, endpoint),
                "weight": endpoint.traffic.get(arm, 0),
                "in_flight": present.in_flight.get((name, arm), 0),
                "breaker": "open" if arm in present.open_breakers else "closed",
                "called": arm in present.called,
                "stopped": arm in present.stops.get(name, ()),
                "replicas": _replicas(arm, config, present.replicas),
                "dead": _dead(_app(arm, config), present),
                "asleep": _sleeps(arm, config, present.replicas),
                "is_unknown": present.replicas is None
                and present.silent_s is not None
                and _app(arm, config) is not None,
            }
            for arm in arms
        ],
    }


def _arms(endpoint: Endpoint, counted: Mapping[str, Counts], config: Config) -> Sequence[str]:
    """The endpoint's deployments, and those that have had its requests and are no longer among them."""
    shadow = [endpoint.mirror.deployment] if endpoint.mirror is not None else []
    present = [arm for arm in [*endpoint.traffic, *(endpoint.fallback or ()), *shadow] if arm in config.deployments]
    former = [arm for arm, counts in counted.items() if arm and counts.requests > 0]
    return list(dict.fromkeys([*present, *former]))


def _mirror(endpoint: Endpoint, config: Config) -> dict[str, Any] | None:
    """The endpoint's mirror, unless its shadow is none of what the caller may see."""
    if (mirror := endpoint.mirror) is None or mirror.deployment not in config.deployments:
        return None
    return {"deployment": mirror.deployment, "percent": mirror.percent}


def _role(name: str, endpoint: Endpoint) -> str:
    if name in endpoint.traffic:
        return "traffic"
    if name in (endpoint.fallback or ()):
        return "fallback"
    return "mirror" if endpoint.mirror is not None and name == endpoint.mirror.deployment else "former"


def _outcomes(all_counts: Collection[Counts]) -> dict[str, int]:
    """The requests, and the parts that they consist of."""
    return {
        "requests": int(sum(counts.requests for counts in all_counts)),
        "answered": int(sum(counts.answered for counts in all_counts)),
        "errors": int(sum(counts.errors for counts in all_counts)),
        "refused": int(sum(counts.refused for counts in all_counts)),
        "left": int(sum(counts.left for counts in all_counts)),
    }


def _deployment(counts: Counts, drawn: float, window: RecentCounts) -> dict[str, Any]:
    return {
        **_outcomes([counts]),
        "drawn": int(counts.drawn),
        "share": round(counts.drawn / drawn, 4) if drawn > 0 else None,
        "diverted": int(counts.reasons["failover"]),
        "requests_per_s": _rate(counts.requests, window),
        "first_token_s": _quantiles(counts.first_token),
        "inter_token_s": _quantiles(counts.inter_token),
        "output_tokens_per_s": _rate(counts.output_tokens, window),
    }


def _rate(count: float, window: RecentCounts) -> float | None:
    return round(count / window.seconds, 3) if window.seconds > 0 else None


def _quantiles(counts: BucketCounts) -> dict[str, float] | None:
    median, high = counts.quantile(0.5), counts.quantile(0.95)
    return None if median is None or high is None else {"p50": round(median, 6), "p95": round(high, 6)}


def _replicas(name: str, config: Config, replicas: Replicas | None) -> dict[str, int] | None:
    """The states of a deployment's replicas; None if it is served elsewhere, or if they are unknown."""
    app = _app(name, config)
    return dict(replicas.applications.get(app, {})) if replicas is not None and app is not None else None


def _dead(app: str | None, present: Present) -> int:
    """How many of an application's replicas have died, though the control plane has not noticed it."""
    replicas = present.replicas
    return replicas.running(app) - replicas.serving(app, present.dead) if replicas is not None else 0


def _is_asleep(name: str, config: Config, replicas: Replicas | None) -> bool:
    return replicas is not None and _app(name, config) in replicas.asleep


def _sleeps(name: str, config: Config, replicas: Replicas | None) -> bool:
    """Whether it is scaled to zero, or on its way from there."""
    if _is_asleep(name, config, replicas):
        return True
    app = _app(name, config)
    starts = replicas is not None and replicas.applications.get(app or "", {}).get(STARTING, 0) > 0
    return starts and replicas is not None and app in replicas.waking


def _app(name: str, config: Config) -> str | None:
    return config.deployments[name].app if name in config.deployments else None


# --- What is wrong, first ---


def _findings(
    name: str,
    endpoint: Endpoint,
    config: Config,
    *,
    present: Present,
    counted: Mapping[str, Counts],
    counts: Mapping[str, Counts],
    drawn: float,
    plans: Mapping[tuple[str, str], DrawnRequests],
) -> list[EndpointFact]:
    """What a reader should know of the endpoint, failures first."""
    found = [*_service(name, endpoint, config, present), *_silence(counts, config, present)]
    done = _outcomes(counted.values())
    if done["errors"]:
        by = {arm or "none was asked": one.failures for arm, one in counted.items() if one.errors}
        found.append(EndpointFact("bad", f"{_of(done, 'errors')} failed: {_kinds_by(by)}.", "failed"))
    if done["refused"]:
        kinds = sum((one.refusals for one in counted.values()), Counter[str]())
        were = f"{_of(done, 'refused')} {_were(done['refused'])} refused"
        found.append(EndpointFact("warn", f"{were}: {_kinds(kinds)}.", "refused"))
    if done["left"]:
        left = done["left"]
        of_those = f"{left:,} clients" if left > 1 else "1 client"
        found.append(EndpointFact("info", f"{of_those} left before the end of the answer."))
    late = _late(name, present, counts)
    found += [late] if late is not None else []
    paused = _paused(name, present, counts)
    found += [paused] if paused is not None else []
    working = sum(present.in_flight.get((name, arm), 0) for arm in counts)
    if not done["requests"] or (done["answered"] == done["requests"] and late is None and paused is None):
        found.append(_quiet(done["requests"], working))
    deviation = _deviation(name, endpoint, present, counts, _Drawn.from_counts(name, endpoint, plans, drawn))
    found += [deviation] if deviation is not None else []
    return sorted(found, key=lambda finding: _ORDER.get(finding.severity, len(_ORDER)))


def _quiet(answered: int, working: int) -> EndpointFact:
    """What there is to say where no request has failed, was refused or waits for long."""
    under_way = f"{working:,} {_are(working)} under way"
    if not answered:
        return EndpointFact("wait", f"No request has ended in the last minute{f': {under_way}' if working else ''}.")
    if not working:
        ended = "The only request was" if answered == 1 else f"All {answered:,} requests were"
        return EndpointFact("good", f"{ended} answered.")
    ended = "The request that has ended was" if answered == 1 else f"All {answered:,} requests that have ended were"
    return EndpointFact("good", f"{ended} answered; {under_way}.")


_LATE_S = 30.0
"""Seconds without the first byte after which a request is told of: most have been answered by then."""


def _late(name: str, present: Present, arms: Collection[str]) -> EndpointFact | None:
    """The requests that have waited long for their answer's beginning, which no figure of ended requests has."""
    late = {arm: [s for s in present.waiting.get((name, arm), ()) if s >= _LATE_S] for arm in arms}
    late = {arm: waits for arm, waits in late.items() if waits}
    if not late:
        return None
    count, longest, by = _summed(late, "for")
    if count == 1:
        return EndpointFact("warn", f"1 request has waited {longest:,.0f} s for its answer to begin: {by}.")
    return EndpointFact(
        "warn", f"{count:,} requests have waited for their answers to begin, the longest {longest:,.0f} s: {by}."
    )


def _paused(name: str, present: Present, arms: Collection[str]) -> EndpointFact | None:
    """The streams that have lost their engines, and wait for others."""
    paused = {arm: waits for arm in arms if (waits := present.paused.get((name, arm)))}
    if not paused:
        return None
    count, longest, by = _summed(paused, "of")
    if count == 1:
        return EndpointFact("warn", f"1 stream is paused, and has waited {longest:,.0f} s for another engine: {by}.")
    return EndpointFact(
        "warn", f"{count:,} streams are paused, and wait for another engine, the longest {longest:,.0f} s: {by}."
    )


def _summed(waits: Mapping[str, Sequence[float]], word: str) -> tuple[int, float, str]:
    """How many there are, the longest in seconds, and how many each deployment has: its name comes after `word`."""
    by = ", ".join(f"{len(of_arm):,} {word} {arm}" for arm, of_arm in waits.items())
    return sum(map(len, waits.values())), max(map(max, waits.values())), by


_ORDER: Mapping[str, int] = {"bad": 0, "warn": 1}
"""Failures first. What is neither keeps its order."""


def _service(name: str, endpoint: Endpoint, config: Config, present: Present) -> list[EndpointFact]:
    """Deployments that cannot serve, and whether any can."""
    serving = [arm for arm, weight in endpoint.traffic.items() if weight > 0]
    candidates = [arm for arm in dict.fromkeys([*serving, *(endpoint.fallback or ())]) if arm in config.deployments]
    faults = {arm: _fault(name, arm, config, present) for arm in candidates}
    out = {arm: fault for arm, fault in faults.items() if fault is not None}
    if candidates and len(out) == len(candidates):
        same = set(out.values())
        if all(fault.startswith(_NO_REPLICA) for fault in same):
            states = _states(candidates, config, present)
            return [EndpointFact("bad", f"{name} is down: {_NO_REPLICA}{states}.")]
        if all(fault.startswith(_BREAKER) for fault in same):  # requests are tried all the same
            fail = f"{' and '.join(out)} {'fails' if len(out) == 1 else 'fail'}"
            is_open = f"the circuit breaker of every deployment of {name} {_until_served(out, config)}"
            return [EndpointFact("bad", f"{fail}: {is_open}.")]
        return [EndpointFact("bad", f"{name} is down: {_by_arm(out)}.")]
    found = []
    for arm, fault in out.items():
        effect = "gets no new requests" if fault.startswith(_BREAKER) else "is out of service"
        found.append(EndpointFact("bad", f"{arm} {effect}: {fault}."))
    if candidates and all(_sleeps(arm, config, present.replicas) for arm in candidates):
        found.append(EndpointFact("wait", _start(name, candidates, config, present)))
    return found


def _start(name: str, arms: Sequence[str], config: Config, present: Present) -> str:
    """What an endpoint without a replica waits for: a request, or the start that one has caused."""
    apps = dict.fromkeys(_app(arm, config) for arm in arms)
    waits = [seconds for app in apps if app is not None for seconds in present.lacking.get(app, ())]
    starts = any(not _is_asleep(arm, config, present.replicas) for arm in arms)
    if not starts and not waits:
        return f"{name} is scaled to zero: its next request starts a replica."
    state = f"starts from zero{_states(arms, config, present)}" if starts else "is scaled to zero"
    if not waits:
        return f"{name} {state}."
    longest = f"{max(waits):,.0f} s"
    if len(waits) == 1:
        return f"{name} {state}: 1 request has waited {longest} for a replica to start."
    return f"{name} {state}: {len(waits):,} requests wait for a replica to start, the longest {longest} so far."


def _silence(arms: Collection[str], config: Config, present: Present) -> Iterator[EndpointFact]:
    """What is not known of the replicas at present."""
    if present.silent_s is None or all(_app(arm, config) is None for arm in arms):
        return
    if present.replicas is None:
        yield EndpointFact("warn", "Ray Serve's controller does not answer: which replicas run is not known.")
    else:
        age = f"{present.silent_s:,.0f} s"
        yield EndpointFact("warn", f"Ray Serve's controller has not answered for {age}: replicas are shown as then.")


_NO_REPLICA = "no replica runs"
_BREAKER = "its circuit breaker is open"


def _fault(name: str, arm: str, config: Config, present: Present) -> str | None:
    """Why a deployment gets no traffic, or cannot serve it; None if nothing is known."""
    if arm in present.stops.get(name, ()):
        return "it is stopped"
    app, replicas = _app(arm, config), present.replicas
    sleeps = _sleeps(arm, config, replicas)
    if replicas is not None and app is not None and not sleeps and not replicas.serving(app, present.dead):
        return f"{_NO_REPLICA}{_states([arm], config, present)}"
    return f"its circuit breaker {_until_served([arm], config)}" if arm in present.open_breakers else None


def _until_served(arms: Iterable[str], config: Config) -> str:
    """Until when these deployments' breakers are open."""
    checks = dict.fromkeys(check_request(config, arm).path for arm in arms)
    return f"is open until a request, or the router's check ({', '.join(checks)}), is served"


def _states(arms: Sequence[str], config: Config, present: Present) -> str:
    """The states of these deployments' replicas, in brackets: " (1 starting, 3 failed to start)"."""
    apps, replicas = dict.fromkeys(_app(arm, config) for arm in arms), present.replicas
    counts = Counter[str]()
    for app in apps:
        if replicas is not None and app is not None:
            counts.update(replicas.applications.get(app, {}))
            dead = _dead(app, present)
            counts.update({RUNNING: -dead, "dead": dead, "failed to start": replicas.failed.get(app, 0)})
    words = [f"{count} {state.lower().replace('_', ' ')}" for state, count in counts.items() if count]
    return f" ({', '.join(words)})" if words else ""


def _by_arm(texts: Mapping[str, str]) -> str:
    return "; ".join(f"{arm}: {text}" for arm, text in texts.items())


def _of(done: Mapping[str, int], part: str) -> str:
    total = done["requests"]
    return f"{done[part]:,} of {total:,} {'request' if total == 1 else 'requests'}"


def _kinds(kinds: Mapping[str, float]) -> str:
    ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{int(count):,} {_WORDS.get(kind, kind.replace('_', ' '))}" for kind, count in ordered)


def _kinds_by(kinds: Mapping[str, Mapping[str, float]]) -> str:
    return _by_arm({arm: _kinds(of) for arm, of in kinds.items()})


def _were(count: float) -> str:
    return "was" if count == 1 else "were"


def _are(count: float) -> str:
    return "is" if count == 1 else "are"


# --- Why a share is not the configured one ---


_FEW_REQUESTS = 3
"""Requests whose shares say something: one or two are 0, 50 or 100 %, whatever the percentages."""


class _Drawn(NamedTuple):
    """The requests for which a plan decided. `expected`: the share of each deployment by the plans that drew them.
    `former`: by plans with other percentages than the present one's, the requests, and those percentages."""

    requests: float
    expected: Mapping[str, float]
    former: Sequence[tuple[int, Mapping[str, int]]]

    @classmethod
    def from_counts(
        cls, name: str, endpoint: Endpoint, plans: Mapping[tuple[str, str], DrawnRequests], requests: float
    ) -> Self:
        """Of an endpoint, of which `plans` have drawn requests: those that nobody knows are the present one's."""
        own = [drawn for (at, _), drawn in plans.items() if at == name and drawn.weights != endpoint.traffic]
        former = [(drawn.requests, drawn.weights) for drawn in own]
        present = max(0.0, requests - sum(count for count, _ in former))
        all_plans = [*former, (present, endpoint.traffic)]
        total = sum(count for count, _ in all_plans) or 1.0
        expected = {
            arm: sum(count * weights.get(arm, 0) / 100 for count, weights in all_plans) / total
            for arm in endpoint.traffic
        }
        return cls(requests, expected, former)

    @property
    def of_former_plans(self) -> str:
        """The requests that former plans have drawn, in words."""
        count = sum(count for count, _ in self.former)
        splits = list(dict.fromkeys(_split(weights) for _, weights in self.former))
        split = splits[0] if len(splits) == 1 else f"{len(splits)} former splits"
        which = "all" if count == self.requests else f"{count:,}"
        return f"{which} {_were(count) if which != 'all' else 'were'} drawn by {split}: each is counted at its end"


def _split(weights: Mapping[str, int]) -> str:
    return f"the former split ({', '.join(f'{arm} {weight} %' for arm, weight in weights.items())})"


def _deviation(
    name: str, endpoint: Endpoint, present: Present, counts: Mapping[str, Counts], drawn: _Drawn
) -> EndpointFact | None:
    """The share that is farthest from its percentage, and why. None if that is less than half a percent, or with fewer
    than two deployments, or too few requests."""
    if len(endpoint.traffic) < 2 or drawn.requests < _FEW_REQUESTS:
        return None
    shares = {arm: counts[arm].drawn / drawn.requests for arm in endpoint.traffic if arm in counts}
    if not shares:
        return None
    arm = max(shares, key=lambda arm: abs(shares[arm] - endpoint.traffic[arm] / 100))
    share, weight = shares[arm], endpoint.traffic[arm]
    if abs(share - weight / 100) < _SMALL:
        return None
    said = (
        f"{arm} got {_percent(share)} of the {int(drawn.requests):,} requests that the split decided; "
        f"{weight} % is configured"
    )
    former = [drawn.of_former_plans] if drawn.former else []
    if former and abs(share - drawn.expected[arm]) < _SMALL:
        return EndpointFact("info", f"{said}: {former[0]}.")
    reasons = _reasons(name, endpoint, present, counts, arm, drawn)
    if reasons:
        return EndpointFact("info", f"{said}: {'; '.join([*former, *reasons])}.")
    because = f", and {_percent(drawn.expected[arm])} is expected: {former[0]}" if former else ""
    return EndpointFact("warn", f"{said}{because}. Chance does not explain that.")


_SMALL = 0.005
"""A difference of shares that nobody needs to know."""


def _reasons(
    name: str, endpoint: Endpoint, present: Present, counts: Mapping[str, Counts], arm: str, drawn: _Drawn
) -> list[str]:
    """Whatever moves shares away from the percentages that drew the requests, the surest first."""
    by = sum((one.reasons for one in counts.values()), Counter[str]())
    weight, share = drawn.expected[arm], counts[arm].drawn / drawn.requests
    found = []
    if (diverted := _diverted(endpoint, counts, arm, is_more=share > weight)) > 0:
        found.append(f"{diverted:,} {_were(diverted)} diverted from a deployment that failed")
    if stopped := [one for one in present.stops.get(name, ()) if endpoint.traffic.get(one, 0) > 0]:
        found.append(f"{' and '.join(stopped)} {_are(len(stopped))} stopped")
    if (pinned := int(by["pinned"])) > 0:
        found.append(f"{pinned:,} {_were(pinned)} turns of conversations that began under other percentages")
    if (overridden := int(by["override"])) > 0:
        found.append(f"{overridden:,} followed an override")
    working = sum(present.in_flight.get((name, other), 0) for other in counts)
    if working >= max(1.0, abs(share - weight) * drawn.requests):
        found.append(f"{working:,} more {_are(working)} under way, and count when they end")
    if found:
        return found
    if by["sticky"] > 0 and endpoint.sticky is not None:
        keys = present.keys.get(name, 0)
        one, many = _STICKY.get(
            endpoint.sticky.by, (f"value of {endpoint.sticky.name}", f"values of {endpoint.sticky.name}")
        )
        if 0 < keys < _FEW_KEYS:
            active = (
                f"only {keys:,} {one} was active, and it"
                if keys == 1
                else f"only {keys:,} {many} were active, and each"
            )
            return [f"{active} stays on one deployment"]
        return [f"each {one} stays on one deployment, and some send more than others"]
    chance = _SURE * math.sqrt(weight * (1 - weight) / drawn.requests) + 0.5 / drawn.requests
    return ["so few requests vary that much by chance"] if abs(share - weight) <= chance else []


def _diverted(endpoint: Endpoint, counts: Mapping[str, Counts], arm: str, *, is_more: bool) -> int:
    """How many requests were diverted to a deployment that got more than its share, or from one that got less. What
    was diverted in both directions leaves the shares as they are; from which of several it came is not counted."""
    to_it = counts[arm].reasons["failover"]
    to_others = sum(one.reasons["failover"] for one in counts.values()) - to_it
    more, less = (to_it, to_others) if is_more else (to_others, to_it)
    return int(max(0, more - less) if len(endpoint.traffic) == 2 else more)


_FEW_KEYS = 200
"""Sticky keys of which a share of 10 % varies by more than 6 points."""


def _percent(share: float) -> str:
    """With one decimal place where that is not 0, rounded as the page rounds what the document says."""
    exact = 100 * Decimal(str(round(share, 4)))
    shown = exact if exact < Decimal("0.1") else exact.quantize(Decimal("0.1"), ROUND_HALF_UP)
    return f"{shown.normalize():f} %"
