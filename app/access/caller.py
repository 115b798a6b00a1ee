"""A caller: its name and what it may use. Pure functions of headers, caller and configuration."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from app.config.access import ANONYMOUS, Limits
from app.config.schema import Config
from app.errors import Forbidden

_HEADERS = ("api-key", "x-api-key")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request.

    `name` stands in log lines and messages; `id` is under what limits are counted, and no two callers share one.
    `endpoints` are the names that it may use (deployments' too), None for all. `limits` came with its key.
    """

    name: str
    id: str
    endpoints: frozenset[str] | None = None
    limits: Limits | None = field(default=None, repr=False)


EVERYONE = Caller(ANONYMOUS, ANONYMOUS)
"""Who sends requests without credentials, where that is allowed. All of them are one caller, with one share."""

VISITOR = Caller("", "", limits=Limits(requests_per_minute=None, tokens_per_minute=None, concurrent_requests=None))
"""Whoever asks an open route, which is not counted: a probe must not find a limit used up."""


def credentials(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The keys and tokens that are shown (lower-case header names): `Authorization: Bearer`, `api-key`, `x-api-key`.

    The same one counts once: Azure's SDK sends its key in two of them.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    shown = [token if scheme.lower() == "bearer" else "", *(headers.get(name, "") for name in _HEADERS)]
    return tuple(dict.fromkeys(it for one in shown if (it := one.strip())))


def must_use(caller: Caller, config: Config, name: str | None) -> None:
    """Raises Forbidden where `name`, an endpoint or deployment of `config`, is not for `caller`."""
    if caller.endpoints is None or name not in names(config):
        return
    allowed = visible(caller, config)
    if name not in names(allowed):
        told = ", ".join(sorted(allowed.endpoints)) or "nothing here"
        raise Forbidden(f"'{caller.name}' may not use '{name}'; it may use: {told}", param="model")


def names(config: Config) -> Collection[str]:
    """What `model` may name."""
    return {*config.endpoints, *config.deployments}


def visible(caller: Caller, config: Config) -> Config:
    """`config` as `caller` may know it: its endpoints, the deployments behind them, the defaults that lead there."""
    if caller.endpoints is None:
        return config
    endpoints = {name: endpoint for name, endpoint in config.endpoints.items() if name in caller.endpoints}
    behind = {name for endpoint in endpoints.values() for name in (*endpoint.traffic, *(endpoint.fallback or ()))}
    reachable = {n: it for n, it in config.deployments.items() if n in behind or n in caller.endpoints}
    defaults = {task: name for task, name in config.defaults.items() if name in endpoints}
    return config.model_copy(update={"endpoints": endpoints, "deployments": reachable, "defaults": defaults})
