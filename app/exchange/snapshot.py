"""The configuration that a request keeps from its beginning to its end.

- Prepares a configuration before it is served: everything that is independent of the running router, in a thread.
- Builds the router's snapshots from the configuration and the stops that are in force.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from app.access.caller import ConfigViews
from app.config.experiments import is_active
from app.config.loading import Parser
from app.config.schema import Config, Endpoint, Task
from app.exposures.log import ExposureLog
from app.exposures.plans import RecordingScope, plan_of
from app.exposures.wire import Plan, Replaced, TrafficBlock
from app.routing.conversations import PinnedConversations
from app.routing.rules import (
    NO_STOPS,
    Earlier,
    GracePeriod,
    InForce,
    Overrides,
    Rules,
    current_rules,
    earlier_of,
    follows,
    same,
    stops_of,
)
from app.upstream.target import RuntimeEnvironment, Target, targets


class PlanWithoutBlocks(NamedTuple):
    """An endpoint with stops while these are not applied: the id of its plan, and the scope that is recorded."""

    plan: str
    scope: RecordingScope | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The configuration at one moment; a request keeps the one that it started with.

    `applied_at` is in Unix seconds. `recorded` has the endpoints whose exposures are recorded, `plans` the ids of the
    endpoints' plans, `rules` the endpoints where more than the weights decide, and `stops` those with stopped
    deployments, each with the deployment that gets its share.
    """

    config: Config
    targets: Mapping[str, Target]
    views: ConfigViews
    applied_at: int
    recorded: Mapping[str, RecordingScope] = field(default_factory=dict)
    plans: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, Rules] = field(default_factory=dict)
    unstopped: Mapping[str, PlanWithoutBlocks] = field(default_factory=dict)
    stops: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    largest_body: int = field(init=False)
    """The largest body that any endpoint takes, in bytes."""
    knows_callers: bool = field(init=False)
    """Whether callers show credentials."""

    def __post_init__(self) -> None:
        limits = map(self.config.body_limit, (*self.config.endpoints, *self.config.deployments))
        object.__setattr__(self, "largest_body", max(self.config.max_body_bytes, *limits))
        object.__setattr__(self, "knows_callers", self.config.access.knows_callers)


Plans = Mapping[str, tuple[Endpoint, Plan]]
"""Each endpoint and its plan while nothing is stopped, by name."""


NO_PLANS: Plans = MappingProxyType({})


class PreparedConfig(NamedTuple):
    """A valid configuration and the objects derived from it."""

    config: Config
    targets: Mapping[str, Target]
    plans: Plans


class Preparation:
    """Prepares configurations; reuses the parts that did not change from one to the next."""

    def __init__(self, environment: RuntimeEnvironment) -> None:
        self._environment, self._parser = environment, Parser()
        self._plans = NO_PLANS

    def prepare(self, data: object) -> PreparedConfig:
        """Prepares a Config, or plain data. Raises ConfigError. The time is in proportion to its size."""
        config = data if isinstance(data, Config) else self._parser.parse(data)
        prepared = PreparedConfig(config, targets(config, self._environment), self._planned(config))
        self._plans = prepared.plans
        return prepared

    def _planned(self, config: Config) -> Plans:
        known = self._plans
        return {
            name: before
            if (before := known.get(name)) is not None and before[0] is endpoint
            else (endpoint, plan_of(name, endpoint))
            for name, endpoint in config.endpoints.items()
        }


_Stops = Mapping[str, Mapping[str, str]]
"""The stopped deployments of each endpoint, each with the one that gets its share."""

NEW_S = 60.0
"""The time after its first configuration for which a router asks for the weights in force before, and applies them.
Later that would do harm: conversations that began here since, and are not pinned, would leave their deployment.
"""


class LiveRouting(NamedTuple):
    """The state of this router that decides on an endpoint's requests, apart from the weights.

    `stops`: its stopped deployments, each with the one that gets its share. `pins`: the number of conversations that
    keep each deployment. `until`: the time until which conversations keep theirs, in Unix seconds; None: there was no
    change.
    """

    stops: Mapping[str, str] = NO_STOPS
    pins: Mapping[str, int] = {}
    until: float | None = None


class SnapshotBuilder:
    """Keeps the state from which the next snapshot is built. `clock` returns Unix seconds. `settle_s`: the time after a
    change in which this router's new conversations still follow the weights before, if there are other routers, which
    hear of the change meanwhile.
    """

    def __init__(
        self,
        ledger: ExposureLog,
        pins: PinnedConversations,
        clock: Callable[[], float] = time.time,
        *,
        settle_s: float = 0.0,
    ) -> None:
        self.stops: Sequence[TrafficBlock] = []
        """The controller's last answer. It stays in force while the controller does not answer."""
        self._ledger, self._pins, self._clock, self._settle_s = ledger, pins, clock, settle_s
        self._in_force: Mapping[str, InForce] = {}
        self._settles: dict[str, float] = {}
        """The Unix time at which each endpoint's last change of weights applies to new conversations, too."""
        self._config: Config | None = None
        self._targets: Mapping[str, Target] = {}
        self._plans: Plans = {}
        self._applied_at = 0
        self._new_until: float | None = None

    def configured(self, config: Config, targets: Mapping[str, Target], plans: Plans = NO_PLANS) -> Snapshot:
        """The snapshot of a new configuration. `plans`: those that are known already."""
        now = self._clock()
        self._config, self._targets, self._applied_at, self._plans = config, targets, int(now), plans
        if self._new_until is None:
            self._new_until = now + NEW_S
        return self._built(config)

    def stopped(self, stops: Sequence[TrafficBlock]) -> Snapshot | None:
        """The snapshot with these stops; None if they change nothing, or before the first configuration."""
        new = sorted(stops, key=lambda stop: stop.id)
        if new == self.stops or self._config is None:
            self.stops = new
            return None
        self.stops = new
        return self._built(self._config)

    def replaced(self, replaced: Sequence[Replaced]) -> Snapshot | None:
        """The snapshot in which running conversations follow these weights, too; None if they change nothing.

        They count for a router that is new, under the plan that it serves.
        """
        config, now = self._config, self._clock()
        if config is None or not self._is_new:
            return None
        reported: dict[str, list[Replaced]] = {}
        for former in replaced:
            endpoint = config.endpoints.get(former.endpoint)
            if endpoint is not None and former.until > now and former.plan == plan_of(former.endpoint, endpoint).id:
                reported.setdefault(former.endpoint, []).append(former)
        unknown = {
            name: followed
            for name, followed in reported.items()
            if not follows(self._in_force[name].earlier, map(earlier_of, followed))
        }
        return self._built(config, unknown) if unknown else None

    def behind(self) -> Snapshot | None:
        """The snapshot in which conversations that began on other routers, after a change that has not come here yet,
        keep their deployment; None before the first configuration.
        """
        return self._built(self._config) if self._config is not None else None

    @property
    def _is_new(self) -> bool:
        return self._new_until is not None and self._clock() < self._new_until

    def is_blocked(self, endpoint: str, deployment: str) -> bool:
        """Whether the controller has blocked the deployment, in the endpoint's traffic or not."""
        return any((stop.endpoint, stop.deployment) == (endpoint, deployment) for stop in self.stops)

    @property
    def is_watched(self) -> bool:
        """Whether to ask the controller: there is an active experiment, or a stop that may be lifted, or this router is
        new and may need the weights in force before, or conversations may begin on other routers."""
        if self._config is None:
            return bool(self.stops)
        return (
            bool(self.stops)
            or any(is_active(experiment) for experiment in self._config.experiments.values())
            or (
                (self._is_new or self._pins.has_others)
                and any(
                    endpoint.sticky is not None and endpoint.pin_s > 0 for endpoint in self._config.endpoints.values()
                )
            )
        )

    def live_routing(self, endpoint: str) -> LiveRouting:
        """The endpoint's LiveRouting. Takes milliseconds if many conversations are pinned."""
        rules = self._in_force.get(endpoint)
        if rules is None:
            return LiveRouting()
        now = self._clock()
        until = max((earlier.until for earlier in rules.earlier if earlier.until > now), default=None)
        return LiveRouting(rules.stops, self._pins.by_deployment(endpoint), until)

    def _built(self, config: Config, replaced: Mapping[str, Sequence[Replaced]] = {}) -> Snapshot:
        now = self._clock()
        stops: _Stops = {
            name: stopped
            for name, endpoint in (config.endpoints.items() if self.stops else ())
            if (stopped := stops_of(name, endpoint.traffic, self.stops))
        }
        self._in_force = {
            name: self._followed(name, endpoint, stops.get(name, NO_STOPS), replaced.get(name, ()), now)
            for name, endpoint in config.endpoints.items()
        }
        until = {name: max(map(_until, rules.earlier)) for name, rules in self._in_force.items() if rules.earlier}
        self._pins.configure(until)
        plans = {name: self._plan(name, endpoint, stops) for name, endpoint in config.endpoints.items()}
        recorded = self._ledger.configure(config, plans, until, now, settles=self._settles)

        @cache
        def able(tasks: tuple[Task, ...]) -> frozenset[str]:
            """The deployments that support all of the tasks."""
            return frozenset(
                name for name, deployment in config.deployments.items() if set(tasks) <= set(deployment.tasks)
            )

        rules = {
            name: rules
            for name, endpoint in config.endpoints.items()
            if (endpoint.plan.overrides or name in stops or name in until or self._pins.is_behind(name))
            and (rules := self._rules(name, endpoint, stops.get(name, NO_STOPS), able(endpoint.tasks)))
        }
        ids = {name: plan.id for name, plan in plans.items()}
        unstopped = {name: _unstopped(name, config.endpoints[name], recorded.get(name)) for name in stops}
        views = ConfigViews(config)
        return Snapshot(config, self._targets, views, self._applied_at, recorded, ids, rules, unstopped, stops)

    def _plan(self, name: str, endpoint: Endpoint, stops: _Stops) -> Plan:
        known = self._plans.get(name)
        if known is not None and name not in stops:
            return known[1]
        return plan_of(name, endpoint, stops.get(name, NO_STOPS))

    def _followed(
        self, name: str, endpoint: Endpoint, stops: Mapping[str, str], replaced: Sequence[Replaced], now: float
    ) -> InForce:
        """The weights in force for the endpoint's keys, and the earlier ones that running conversations follow."""
        if endpoint.sticky is None:
            return InForce(endpoint.traffic, stops)
        before = self._in_force.get(name)
        is_as_it_was = before is not None and before.weights == endpoint.traffic and before.stops == stops
        if before is not None and is_as_it_was and not (before.earlier or replaced or endpoint.plan.earlier):
            return before
        if before is not None and (
            lifted := {stopped: to for stopped, to in before.stops.items() if stopped not in stops}
        ):
            self._pins.move(name, lifted)
        has_changed = before is not None and not same(before.weights, endpoint.traffic)
        if has_changed and self._pins.has_others and endpoint.pin_s > 0:
            self._settles[name] = self._pins.now() + self._settle_s
        return current_rules(
            before,
            endpoint.traffic,
            stops,
            map(earlier_of, endpoint.plan.earlier),
            withdrawn=endpoint.plan.withdrawn,
            replaced=map(earlier_of, replaced),
            pin_s=endpoint.pin_s,
            now=now,
        )

    def _rules(self, name: str, endpoint: Endpoint, stops: Mapping[str, str], able: AbstractSet[str]) -> Rules | None:
        """The endpoint's rules; None if its weights alone decide. `able`: deployments that support its tasks."""
        earlier, listed = self._in_force[name].earlier, endpoint.plan.overrides
        is_behind = endpoint.sticky is not None and endpoint.pin_s > 0 and self._pins.is_behind(name)
        if not (listed or stops or earlier or is_behind):
            return None
        overrides = Overrides(listed, self._ledger.unit, self._clock) if listed else None
        window = None
        if earlier or is_behind:
            settles_at = self._settles.get(name, 0.0)
            window = GracePeriod(name, earlier, endpoint.plan.withdrawn, able, self._pins, settles_at)
        return Rules(endpoint.traffic, overrides=overrides, stops=stops, window=window)


def _until(earlier: Earlier) -> float:
    return earlier.until


def _unstopped(name: str, endpoint: Endpoint, scope: RecordingScope | None) -> PlanWithoutBlocks:
    plan = plan_of(name, endpoint)
    return PlanWithoutBlocks(plan.id, replace(scope, plan=plan) if scope is not None else None)
