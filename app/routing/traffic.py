"""Selects the deployment of a request: pure functions of the configuration, the request and a random source.

In this order: the deployment that the header names; the decision of the endpoint's rules, if it has any
(`routing.rules`); the deployment of the sticky key; one drawn by the traffic percentages.

`RecentKeys` has the sticky keys that this router saw last, in memory only: a dry run reports which share of them would
move.
"""

import hashlib
import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import Literal, NamedTuple, Protocol

import msgspec

from app.config.schema import Config, Endpoint, Sticky, Task
from app.errors import BadRequest, NotFound, WrongTask
from app.misspellings import question

DEPLOYMENT_HEADER = "azureml-model-deployment"
Reason = Literal["header", "model", "override", "pinned", "sticky", "traffic", "failover"]
"""The reason why a deployment serves a request; `pinned`: its conversation began under other weights; `failover`:
another one was assigned, and is failing.
"""


class Random(Protocol):
    """The random source: `random.Random`, or a test's own."""

    def random(self) -> float: ...


class Decision(NamedTuple):
    """The decision of an endpoint's rules on a request.

    `weights` are the percentages in force, and `without` the deployments that get nothing. `unstopped`: there are
    stops, but they are not applied. `unknown`: the decision waits for the other routers' pins.
    """

    deployment: str
    reason: Reason
    weights: Mapping[str, int]
    without: Collection[str] = ()
    unstopped: bool = False
    unknown: bool = False


Decide = Callable[[str, str | None], Decision | None]
"""Called with an endpoint and the request's sticky key, if it has one. None: the weights alone decide."""


class Assignment(msgspec.Struct, frozen=True):
    """The deployment of a request, why it was chosen, and the alternatives if it fails before the first byte.

    `key` is the sticky key that decided, if one did. `unstopped` and `unknown` as in `Decision`.
    """

    endpoint: str
    deployment: str
    reason: Reason
    alternatives: Sequence[str] = ()
    key: str | None = None
    unstopped: bool = False
    unknown: bool = False


def assign(
    config: Config,
    *,
    task: Task,
    model: str | None,
    deployment: str | None,
    sticky_key: Callable[[Sticky], str | None],
    random: Random,
    decide: Decide | None = None,
    named_in: str = DEPLOYMENT_HEADER,
) -> Assignment:
    """The deployment for one request.

    `model` is the endpoint or deployment that the client named, or an engine's name for its model
    (`_with_engine_model`), None for the task's default; `deployment` is the one that the
    client named in the header or field `named_in`; `sticky_key` finds a sticky endpoint's key in the request; `decide`
    is called with the endpoint and that key. Raises NotFound for a name that does not exist (param ``model`` or
    `named_in`) and WrongTask where the named thing cannot do the task.
    """
    name = model if model is not None else config.defaults.get(task)
    if name is None:
        raise BadRequest(f"name an endpoint: this server has no default for {task}", param="model")
    name = _with_engine_model(config, name)
    if (endpoint := config.endpoints.get(name)) is not None:
        _require_task(task, endpoint.tasks, "endpoint", name)
        return _within(
            config, name, named=deployment, named_in=named_in, sticky_key=sticky_key, random=random, decide=decide
        )
    if (settings := config.deployments.get(name)) is not None:
        _require_task(task, settings.tasks, "deployment", name)
        if deployment is not None and deployment != name:
            raise _no_such_deployment(deployment, named_in, name, [name])
        return Assignment(_endpoint_of(config, name), name, "model")
    raise _no_such_model(config, name)


def endpoint_meant(config: Config, name: str) -> str:
    """The endpoint under which a request that names `name` counts: see `assign`; "" for a name that does not exist."""
    name = _with_engine_model(config, name)
    if name in config.endpoints:
        return name
    return _endpoint_of(config, name) if name in config.deployments else ""


def check_names(config: Config, model: str | None, deployment: str | None) -> None:
    """Raises NotFound if no request for `model` or `deployment` can be served, whatever else it says: see `assign`."""
    if model is not None:
        name = _with_engine_model(config, model)
        if name in config.endpoints:
            if deployment is not None:
                _named_within(config, name, deployment, DEPLOYMENT_HEADER)
        elif name not in config.deployments:
            raise _no_such_model(config, name)
    elif deployment is not None:
        same = {name for name, settings in config.deployments.items() if deployment in (name, settings.model)}
        if not same:
            raise _unknown(f"No deployment '{deployment}'", deployment, sorted(config.deployments), DEPLOYMENT_HEADER)


def _no_such_model(config: Config, name: str) -> NotFound:
    meant = question(name, [*config.endpoints, *config.deployments])
    known = ", ".join(sorted(config.endpoints))
    return NotFound(f"The model '{name}' does not exist{meant}; available endpoints: {known}", param="model")


def _with_engine_model(config: Config, name: str) -> str:
    """The endpoint or deployment that `name` means if it is an engine's name for its model; `name` itself if it is not
    one, or ambiguous.

    The deployment with this model, if there is exactly one; else the endpoint, if it is the only one with such
    deployments and has no others.
    """
    if name in config.endpoints or name in config.deployments:
        return name
    same = {deployment for deployment, section in config.deployments.items() if section.model == name}
    if len(same) == 1:
        return same.pop()
    behind = [endpoint for endpoint, section in config.endpoints.items() if same & section.traffic.keys()]
    return behind[0] if len(behind) == 1 and config.endpoints[behind[0]].traffic.keys() == same else name


def _require_task(task: Task, tasks: Sequence[Task], what: str, name: str) -> None:
    if task not in tasks:
        raise WrongTask(
            f"model: {what} '{name}' does not support {task}; it supports {', '.join(tasks)}", param="model"
        )


def _endpoint_of(config: Config, deployment: str) -> str:
    """The endpoint that a directly named deployment counts under: the first that it is behind, else its own name.

    Naming a deployment must not bypass its endpoint's limits, filter or admission.
    """
    behind = (name for name, e in config.endpoints.items() if deployment in (*e.traffic, *(e.fallback or ())))
    return next(behind, deployment)


def _within(
    config: Config,
    name: str,
    *,
    named: str | None,
    named_in: str,
    sticky_key: Callable[[Sticky], str | None],
    random: Random,
    decide: Decide | None,
) -> Assignment:
    endpoint = config.endpoints[name]
    if named is not None and (deployment := _named_within(config, name, named, named_in)) is not None:
        return Assignment(name, deployment, "header")
    key = sticky_key(endpoint.sticky) if endpoint.sticky is not None else None
    if decide is not None and (said := decide(name, key)) is not None:
        alternatives = alternatives_to(endpoint.fallback, said.weights, said.deployment, said.without)
        return Assignment(name, said.deployment, said.reason, alternatives, key, said.unstopped, said.unknown)
    chosen = weighted(endpoint.traffic, random) if key is None else rendezvous(key, endpoint.traffic)
    alternatives = alternatives_to(endpoint.fallback, endpoint.traffic, chosen)
    return Assignment(name, chosen, "traffic" if key is None else "sticky", alternatives, key)


def _named_within(config: Config, endpoint: str, name: str, named_in: str) -> str | None:
    """The endpoint's deployment of this name, or with this engine's name for its model; None if all have that."""
    traffic = config.endpoints[endpoint].traffic
    if name in traffic:
        return name
    same = [deployment for deployment in traffic if config.deployments[deployment].model == name]
    if len(same) == 1:
        return same[0]
    if not same or len(same) < len(traffic):
        raise _no_such_deployment(name, named_in, endpoint, list(traffic))
    return None


def _no_such_deployment(deployment: str, named_in: str, name: str, valid: Sequence[str]) -> NotFound:
    return _unknown(f"No deployment '{deployment}' behind '{name}'", deployment, valid, named_in)


def _unknown(what: str, deployment: str, valid: Sequence[str], named_in: str) -> NotFound:
    meant = question(deployment, valid)
    return NotFound(f"{what}{meant}; available deployments: {', '.join(valid)}", param=named_in)


def alternatives_to(
    fallback: Sequence[str] | None, weights: Mapping[str, int], chosen: str, without: Collection[str] = ()
) -> list[str]:
    """The deployments that may replace `chosen` when it fails, the best one first. `fallback`: the endpoint's list."""
    if fallback is not None:
        return [name for name in fallback if name != chosen and name not in without]
    if len(weights) == 1 and chosen in weights:
        return []
    by_weight = sorted(weights.items(), key=lambda item: -item[1])
    return [name for name, weight in by_weight if weight > 0 and name != chosen and name not in without]


def weighted(traffic: Mapping[str, int], random: Random) -> str:
    """One name, drawn with probability proportional to its percentage."""
    point = random.random() * sum(traffic.values())
    chosen = ""
    for name, weight in traffic.items():
        if weight <= 0:
            continue
        chosen = name
        point -= weight
        if point < 0:
            break
    return chosen


def rendezvous(key: str, traffic: Mapping[str, int]) -> str:
    """The same name for the same key, in the percentages' proportion over many keys.

    Weighted rendezvous hashing: every name scores ``-weight / ln(u)`` with u in (0, 1) hashed from (key, name), and
    the highest wins. A change of weights therefore moves keys only towards names whose share grew.
    """
    return max((name for name in traffic if traffic[name] > 0), key=lambda name: _score(key, name, traffic[name]))


def scores(key: str, traffic: Mapping[str, int]) -> dict[str, float]:
    """The score of every name in `rendezvous`; 0 for those without a share, which cannot win."""
    return {name: _score(key, name, weight) if weight > 0 else 0.0 for name, weight in traffic.items()}


def _score(key: str, name: str, weight: int) -> float:
    """By the hash of a sticky key and a name."""
    digest = hashlib.blake2b(f"{len(key)}:{key}{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 0.5) / 2**64
    return -weight / math.log(uniform)


MOST_KEYS = 4096
"""Keys per endpoint."""

_MOST_CHARACTERS = 1024
"""Longer keys are left out: clients choose them, and they cost memory."""


class RecentKeys:
    """The distinct keys of each endpoint, the latest last. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # A dict would search for its oldest key among those that were removed.
        self._keys: defaultdict[str, OrderedDict[str, float]] = defaultdict(OrderedDict)
        self._sticky: Mapping[str, Sticky | None] = {}
        self._clock = clock

    def configure(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Forgets the keys of endpoints that no longer exist or whose `sticky` has changed."""
        sticky = {name: endpoint.sticky for name, endpoint in endpoints.items()}
        for name in list(self._keys):
            if sticky.get(name) != self._sticky.get(name):
                del self._keys[name]
        self._sticky = sticky

    def saw(self, endpoint: str, key: str) -> None:
        """Notes the key of a request."""
        if len(key) > _MOST_CHARACTERS:
            return
        keys = self._keys[endpoint]
        keys[key] = self._clock()
        keys.move_to_end(key)
        if len(keys) > MOST_KEYS:
            keys.popitem(last=False)

    def of(self, endpoint: str) -> list[str]:
        """The endpoint's keys."""
        return list(self._keys.get(endpoint, ()))

    def seen_within(self, seconds: float) -> dict[str, int]:
        """The number of keys that each endpoint had in the last `seconds`."""
        start = self._clock() - seconds
        return {
            endpoint: sum(1 for _ in takewhile(lambda at: at >= start, reversed(keys.values())))
            for endpoint, keys in self._keys.items()
        }
