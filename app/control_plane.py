"""The control plane: where the configuration of all routers is stored, and how an endpoint's traffic is changed there.

The seam has two calls: read the applied configuration, and compare-and-set it as a whole. What a traffic change is, and
when it is rejected, is decided here for every control plane; `deployments.control_plane` is Ray Serve's. Every change
makes a plan: a numbered version of the endpoint's traffic, which is stored with it (`app.config.endpoints`).
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from app.aio import run_in_background
from app.config.base import ConfigError
from app.config.endpoints import MAX_EARLIER, EarlierWeights, Expiry, Override, PlanSettings
from app.config.schema import Config, Endpoint, parse
from app.errors import BadRequest, ClientError, Conflict, TimedOut, UpstreamError
from app.routing.rules import moved_on, same
from app.telemetry.logs import event

_log = logging.getLogger("switchyard")


class Delivery(Enum):
    """The progress of the delivery of the applied configuration."""

    DELIVERING = auto()
    """Routers are loading it; another change is rejected until they have it."""
    UNSETTLED = auto()
    """The delivery is not known to be complete: replicas start or stop, or the control plane does not answer."""
    SETTLED = auto()
    """Every router serves it."""
    FAILED = auto()
    """Routers rejected it; the previous one stays in force."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The routers' configuration as the control plane stores it: plain data, and when it was applied (Unix time, ms).

    `created_ms`: when each endpoint was first declared, regardless of later changes to it.
    """

    config: Any
    delivery: Delivery
    since_ms: int
    created_ms: Mapping[str, int] = field(default_factory=dict)

    def parsed(self) -> Config | None:
        """The configuration; None if it is invalid, so that every router rejects it."""
        try:
            return parse(self.config)
        except ConfigError:
            return None


RUNNING, STARTING = "RUNNING", "STARTING"
"""The states of a replica that takes requests, and of one that will."""


class Replicas(NamedTuple):
    """The replicas that the control plane runs. `applications`: their number by state, for each application; except for
    `RUNNING` and `STARTING`, the states' names are the control plane's own. `routers`: the replicas of the router.
    `asleep`: applications that are to have no replica until a request comes. `ids`: those of each application's running
    replicas, which are their engines' names. `failed`: how many of each application's have failed to start in a row.
    `waking`: applications that were asleep, and have had no running replica since then.
    """

    applications: Mapping[str, Mapping[str, int]]
    routers: Mapping[str, int]
    asleep: Collection[str] = frozenset()
    ids: Mapping[str, Collection[str]] = MappingProxyType({})
    failed: Mapping[str, int] = MappingProxyType({})
    waking: Collection[str] = frozenset()

    def as_told(self, listed: Mapping[str, Collection[str]], gone: Collection[str]) -> "Replicas":
        """These replicas, some seconds old, with what was told since: `listed` are ready, `gone` are so no more."""
        applications, ids = dict(self.applications), dict(self.ids)
        for name in {*applications, *listed}:
            before = set(ids.get(name, ()))
            now = (before - set(gone)) | set(listed.get(name, ()))
            if now == before or len(before) != self.running(name):
                continue
            states = Counter(applications.get(name, {}))
            states.update({RUNNING: len(now) - len(before), STARTING: -min(states[STARTING], len(now - before))})
            applications[name], ids[name] = {state: count for state, count in states.items() if count}, now
        idle = {name for name in applications if not applications[name].get(RUNNING)}
        return self._replace(
            applications=applications,
            ids=ids,
            asleep=frozenset(self.asleep) & idle,
            waking=frozenset(self.waking) & idle,
        )

    def woken(self, before: "Replicas | None") -> "Replicas":
        """These replicas, which come after others."""
        if before is None:
            return self
        slept = {*before.asleep, *before.waking}
        waking = (name for name in self.applications if name in slept and name not in self.asleep)
        return self._replace(waking=frozenset(name for name in waking if not self.running(name)))

    def running(self, application: str | None) -> int:
        """How many take requests; 0 also for None and for applications that do not run here."""
        return self.applications.get(application or "", {}).get(RUNNING, 0)

    def serving(self, application: str | None, dead: Collection[str] = frozenset()) -> int:
        """How many take requests but for the engines that have died (`dead`), which it may still list."""
        return self.running(application) - len(set(self.ids.get(application or "", ())).intersection(dead))

    def lacks(self, application: str | None) -> bool:
        """Whether none of the application's runs."""
        return application is not None and not self.running(application)

    def keeps(self, application: str | None) -> bool:
        """Whether the application is to have replicas without any request."""
        return application in self.applications and application not in self.asleep

    def is_vacant(self, application: str) -> bool:
        """Whether no replica of an application that should have some works, not even on its last requests."""
        states = self.applications.get(application, {})
        return self.keeps(application) and not any(count for state, count in states.items() if state != STARTING)


class ControlPlane(Protocol):
    """The seam. Its calls raise UpstreamError if the control plane does not answer."""

    async def applied(self) -> Applied: ...

    async def replace(self, expected: Any, wanted: Any) -> None:
        """Applies `wanted` (plain data) in place of `expected`, atomically.

        Raises Conflict and changes nothing if something other than `expected` is applied, UpdateInProgress if a change
        is being delivered.
        """

    async def replicas(self) -> Replicas:
        """The replicas that run now."""
        ...

    async def report_unserved(self, requests: Mapping[str, int]) -> None:
        """Reports the number of this router's requests that wait for a replica of each application, or were refused.
        They count as demand for the control plane's autoscaling until the next report, or for some seconds.
        """
        ...


RUNNING_EVERY_S = 5.0
"""Seconds for which an answer of the control plane is reused."""

LEAST_EVERY_S = 0.5
"""The same where it is known that it has changed."""

_PATIENCE_S = 1.0
"""Seconds to wait for its list of replicas."""


class RunningReplicas:
    """The running replicas, cached: the control plane serves the whole cluster.

    `control`: None without a control plane. `clock`: monotonic seconds.
    """

    def __init__(self, control: ControlPlane | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_known = control is not None
        """Whether there is a control plane."""
        self.last: Replicas | None = None
        """The control plane's last answer, however old."""
        self._control, self._clock = control, clock
        self.known: Replicas | None = None
        """Its last answer; None if it has not answered the last call."""
        self._asked_at = self._answered_at = float("-inf")
        self.is_outdated = False
        """Whether there was a change after the last answer."""
        self._changed = asyncio.Event()

    def outdated(self) -> None:
        """Notes that there was a change, so that the control plane is asked soon."""
        if self._control is not None:
            self.is_outdated = True
            self._changed.set()

    async def now(self) -> Replicas | None:
        """The replicas, at most `RUNNING_EVERY_S` old; None if the control plane does not answer, or there is none."""
        if self._control is None:
            return None
        if self._clock() - self._asked_at >= (LEAST_EVERY_S if self.is_outdated else RUNNING_EVERY_S):
            # Marked before the call: others do not call meanwhile, and one that does not answer is not called all the
            # time.
            self._asked_at = self._clock()
            was_outdated, self.is_outdated = self.is_outdated, False
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    self.known = self.last = (await self._control.replicas()).woken(self.last)
                self._answered_at = self._clock()
            except (UpstreamError, TimeoutError):
                self.known = None
                self.is_outdated |= was_outdated
            self._asked_at = self._clock()
        return self.known

    async def latest(self) -> Replicas | None:
        """As `now`, but the last answer, however old (`silent_s`), if the control plane does not answer."""
        return await self.now() or self.last

    @asynccontextmanager
    async def watched(self, seen: Callable[[Replicas], None]) -> AsyncIterator[None]:
        """Asks again and again while the block runs, and passes on the answers."""

        async def repeat() -> None:
            while self._control is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RUNNING_EVERY_S):
                        await self._changed.wait()
                        self._changed.clear()
                        await asyncio.sleep(LEAST_EVERY_S)
                if (replicas := await self.now()) is not None:
                    seen(replicas)

        async with run_in_background(repeat()):
            yield

    @property
    def age_s(self) -> float | None:
        """Seconds since the control plane's last answer; None without any."""
        return self._clock() - self._answered_at if self.last is not None else None

    @property
    def silent_s(self) -> float | None:
        """Seconds since the control plane's last answer, infinite without any; None if it answers, or there is none."""
        if self._control is None or self.known is not None:
            return None
        return self._clock() - self._answered_at


CHANGED_MEANWHILE = "The configuration has changed in the meantime; read the endpoint again"
IN_THE_FILE = (
    "Traffic cannot be changed over HTTP: this router runs standalone and reads it from its configuration file"
)
_PAUSE_S = 0.1


class UpdateInProgress(Conflict):
    """Another change is being delivered to the routers."""

    def __init__(self) -> None:
        super().__init__(
            "An update of the configuration is in progress; repeat the change when it is complete, usually in seconds"
        )


@dataclass(frozen=True, slots=True)
class WantedPlan:
    """The content of a new plan, and its reason. `ttl_s`: the time in seconds after which the last lasting plan is
    restored.

    `withdrawn`: deployments that running conversations, too, are to leave at once, each with the one that gets them.
    Of the others, conversations follow the weights from before for the endpoint's `pin_s`.
    """

    weights: Mapping[str, int]
    overrides: tuple[Override, ...] = ()
    ttl_s: float | None = None
    reason: str | None = None
    withdrawn: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Authorship:
    """The author of a plan, and its time (Unix seconds). Its generation is at least `least_generation`."""

    by: str | None
    at: float
    least_generation: int = 1


async def applied_or_none(control: ControlPlane | None) -> Applied | None:
    """The applied configuration; None without a control plane, or if it does not answer: reads work without it."""
    if control is None:
        return None
    try:
        return await control.applied()
    except UpstreamError as error:
        unavailable = event("control_plane_unavailable", error=error.message)
        _log.warning("The control plane does not answer", extra=unavailable)
        return None


async def change_traffic(
    control: ControlPlane, name: str, *, seen: Mapping[str, int], wanted: Mapping[str, int], author: Authorship
) -> None:
    """Gives the endpoint `name` the traffic `wanted`, deployment to percentage, if it still has the traffic `seen`.

    Overrides stay, and a temporary plan is replaced for good. A repeated change does nothing. Raises Conflict if the
    traffic has changed since or an update is in progress, and BadRequest if the configuration would be invalid with
    it; nothing is changed then.
    """
    applied = await control.applied()
    endpoint = in_use(applied).endpoints.get(name)
    if endpoint is not None and endpoint.traffic == wanted:
        return
    if applied.delivery is Delivery.DELIVERING:
        raise UpdateInProgress
    if endpoint is None or endpoint.traffic != seen:
        raise Conflict(CHANGED_MEANWHILE)
    await _replace_plan(control, applied, name, endpoint, WantedPlan(wanted, endpoint.plan.overrides), author)


async def change_plan(
    control: ControlPlane,
    name: str,
    *,
    check: Callable[[Config], WantedPlan],
    author: Authorship,
    patience_s: float = 0.0,
) -> tuple[Endpoint, Endpoint]:
    """Gives the endpoint `name` the plan that `check` returns for the configuration as it is applied, which has the
    endpoint.

    `check` raises to refuse the change. A plan that is already in force is not made again. Waits up to `patience_s` for
    another change to be delivered, and checks again after it. Returns the endpoint before and after. Raises Conflict
    and BadRequest as `change_traffic`.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return await _change_plan(control, name, check, author)
        except UpdateInProgress:
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(_PAUSE_S)


async def _change_plan(
    control: ControlPlane, name: str, check: Callable[[Config], WantedPlan], author: Authorship
) -> tuple[Endpoint, Endpoint]:
    applied = await control.applied()
    config = in_use(applied)
    endpoint = config.endpoints.get(name)
    if endpoint is None:
        raise Conflict(CHANGED_MEANWHILE)
    wanted = check(config)
    if is_present(wanted, endpoint):
        return endpoint, endpoint
    if applied.delivery is Delivery.DELIVERING:
        raise UpdateInProgress
    return endpoint, await _replace_plan(control, applied, name, endpoint, wanted, author)


async def restore_expired(control: ControlPlane, now: float) -> Config | None:
    """Ends temporary plans whose time is over (`now`: Unix seconds), and restores the earlier ones. Returns the applied
    configuration, None if it is invalid. While another change is delivered nothing is restored; the next call does.
    Raises UpstreamError.
    """
    applied = await control.applied()
    config = applied.parsed()
    if config is None or applied.delivery is Delivery.DELIVERING:
        return config
    for name, endpoint in config.endpoints.items():
        plan, expires = endpoint.plan, endpoint.plan.expires
        if expires is None or expires.at > now:
            continue
        reason = f"generation {plan.generation} was temporary: generation {expires.generation} again"
        weights = {**dict.fromkeys(endpoint.traffic, 0), **expires.weights}
        wanted = WantedPlan(weights, expires.overrides, reason=reason)
        try:
            await _replace_plan(control, applied, name, endpoint, wanted, Authorship(plan.by, now))
        except (ClientError, TimedOut):
            return config
        ended = event("plan_ended", endpoint=name, generation=plan.generation, before=endpoint.traffic, after=weights)
        _log.info("A temporary plan has ended", extra=ended)
        return (await control.applied()).parsed()
    return config


def is_present(wanted: WantedPlan, endpoint: Endpoint) -> bool:
    """Whether the endpoint's plan already has this content; the reason does not count. A temporary plan of the same
    length is the same one: it keeps its end."""
    plan = endpoint.plan
    ttl_s = plan.expires.at - plan.since if plan.expires is not None and plan.since is not None else None
    is_as_long = (wanted.ttl_s is None) == (plan.expires is None) and abs((wanted.ttl_s or 0) - (ttl_s or 0)) < 0.001
    return endpoint.traffic == wanted.weights and plan.overrides == wanted.overrides and is_as_long


def planned(endpoint: Endpoint, wanted: WantedPlan, author: Authorship) -> Endpoint:
    """The endpoint with the plan after its present one.

    A temporary plan ends in the present one, or in what that one ends in: nothing temporary becomes lasting by itself.
    """
    present = endpoint.plan
    expires = None
    if wanted.ttl_s is not None:
        # A plan of a deployed file has no number of its own: the history has counted on.
        known = max(present.generation, author.least_generation - 1)
        lasting = present.expires or Expiry(
            at=author.at, generation=known, weights=endpoint.traffic, overrides=present.overrides
        )
        expires = lasting.model_copy(update={"at": author.at + wanted.ttl_s})
    followed = any(plan.until > author.at for plan in present.earlier)
    withdrawn = moved_on(present.withdrawn if followed else {}, wanted.withdrawn)
    returned = {name: to for name, to in withdrawn.items() if wanted.weights.get(name, 0) > 0}
    plan = PlanSettings(
        generation=max(present.generation + 1, author.least_generation),
        overrides=wanted.overrides,
        expires=expires,
        by=author.by,
        reason=wanted.reason,
        since=author.at,
        earlier=_earlier(endpoint, wanted.weights, returned, author.at),
        withdrawn={name: to for name, to in withdrawn.items() if name not in returned},
    )
    return endpoint.model_copy(update={"traffic": dict(wanted.weights), "plan": plan})


def _earlier(
    endpoint: Endpoint, weights: Mapping[str, int], returned: Mapping[str, str], now: float
) -> tuple[EarlierWeights, ...]:
    """The earlier weights that running conversations follow after a change to `weights`, the oldest first.

    The time starts again for weights that are still followed: conversations that run now started under them. `returned`
    were withdrawn and have a share again: conversations that have left them do not go back.
    """
    followed = [
        plan.model_copy(update={"withdrawn": moved_on(plan.withdrawn, returned)}) if returned else plan
        for plan in endpoint.plan.earlier
        if plan.until > now
    ]
    if endpoint.sticky is None or endpoint.pin_s == 0 or same(endpoint.traffic, weights):
        return tuple(followed)
    until = now + endpoint.pin_s
    again = [plan.model_copy(update={"until": until}) for plan in followed]
    if not any(same(plan.weights, endpoint.traffic) and not plan.withdrawn for plan in again):
        again.append(EarlierWeights(weights=dict(endpoint.traffic), until=until))
    return tuple(again[-MAX_EARLIER:])


def with_traffic(
    config: Mapping[str, Any], name: str, traffic: Mapping[str, int], plan: PlanSettings | None = None
) -> dict[str, Any]:
    """A copy of a router's plain configuration that differs in one endpoint's traffic, and in its `plan` if given."""
    endpoints = config["endpoints"]
    changed = {**endpoints[name], "traffic": dict(traffic)}
    if plan is not None:
        changed["plan"] = plan.model_dump(mode="json", exclude_defaults=True)
    return {**config, "endpoints": {**endpoints, name: changed}}


def in_use(applied: Applied) -> Config:
    """The applied configuration. Raises Conflict if it is invalid, so that another one is in force."""
    if (config := applied.parsed()) is None:
        raise Conflict("The last applied configuration is invalid and not in use: apply a valid one")
    return config


async def _replace_plan(
    control: ControlPlane, applied: Applied, name: str, endpoint: Endpoint, wanted: WantedPlan, author: Authorship
) -> Endpoint:
    changed = with_traffic(applied.config, name, wanted.weights, planned(endpoint, wanted, author).plan)
    try:
        parsed = parse(changed)
    except ConfigError as error:
        raise BadRequest(f"The configuration would be invalid: {error}", param="traffic_config") from None
    await control.replace(applied.config, changed)
    return parsed.endpoints[name]


def delivery_seen(applied: Applied, before: Config, after: Config) -> Delivery:
    """The delivery of `applied`, corrected by what the calling router serves itself.

    `before` and `after` are the router's configurations before and after it read `applied`. A router that received a
    configuration and serves another one has rejected it.
    """
    if applied.delivery is not Delivery.SETTLED or applied.parsed() == after:
        return applied.delivery
    return Delivery.FAILED if before is after else Delivery.UNSETTLED
