"""Callers: their names, credentials and permissions. Pure functions of headers, caller and configuration."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from app.config.access import ANONYMOUS, KEY, TOKEN, AccessSettings, Limits
from app.config.schema import Config, Endpoint
from app.errors import Forbidden, NotFound
from app.misspellings import question

_HEADERS = ("api-key", "x-api-key")


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    `name` is for log lines and messages; `id` is unique, and limits are counted under it. `endpoints` are the names
    that it may use (of deployments too), None for all. `limits` are its key's own. `credential`: what it has shown;
    a key and a token may have the same name and are two callers. `groups`: those that it claims, of which experiments
    tell apart the first that `access.groups` lists.
    """

    name: str
    id: str
    endpoints: frozenset[str] | None = None
    limits: Limits | None = field(default=None, repr=False)
    credential: Literal["key", "token", "none"] = "key"
    groups: tuple[str, ...] = ()

    def group(self, known: Collection[str]) -> str:
        """Its group among the `known` ones; empty if it is in none."""
        return next((group for group in self.groups if group in known), "") if known else ""

    @property
    def principal(self) -> str:
        """Its name among the roles; empty without credentials."""
        return f"{_PREFIXES[self.credential]}{self.name}" if self.credential != "none" else ""


_PREFIXES = {"key": KEY, "token": TOKEN}

ANONYMOUS_CALLER = Caller(ANONYMOUS, ANONYMOUS, credential="none")
"""Requests without credentials, if allowed. Together they are one caller and share its limits."""

UNAUTHENTICATED = Caller(
    "",
    "",
    limits=Limits(requests_per_minute=None, tokens_per_minute=None, concurrent_requests=None),
    credential="none",
)
"""The caller of an open route. Open routes are not counted: a probe must not fail because of a limit."""


def credentials(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The keys and tokens of a request, by lower-case header names: `Authorization: Bearer`, `api-key`, `x-api-key`.

    A repeated one counts once: Azure's SDK sends its key in two headers.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    sources = [token if scheme.lower() == "bearer" else "", *(headers.get(name, "") for name in _HEADERS)]
    return tuple(dict.fromkeys(credential for value in sources if (credential := value.strip())))


def names(config: Config) -> Collection[str]:
    """The names that `model` may have."""
    return {*config.endpoints, *config.deployments}


def behind(endpoint: Endpoint) -> Collection[str]:
    """The deployments that may get an endpoint's requests."""
    return {*endpoint.traffic, *(endpoint.fallback or ())}


def visible_config(caller: Caller, config: Config) -> Config:
    """The part of `config` that `caller` may see: its endpoints, their deployments, the defaults among them."""
    if caller.endpoints is None:
        return config
    endpoints = {name: endpoint for name, endpoint in config.endpoints.items() if name in caller.endpoints}
    used = {name for endpoint in endpoints.values() for name in behind(endpoint)}
    reachable = {n: deployment for n, deployment in config.deployments.items() if n in used or n in caller.endpoints}
    defaults = {task: name for task, name in config.defaults.items() if name in endpoints}
    return config.model_copy(update={"endpoints": endpoints, "deployments": reachable, "defaults": defaults})


class ConfigViews:
    """One configuration as its callers see it, copied once per set of endpoints."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._names = frozenset(names(config))
        self._views: dict[frozenset[str], Config] = {}

    def of(self, caller: Caller) -> Config:
        """`visible_config`, cached."""
        if caller.endpoints is None:
            return self.config
        # Names that the configuration lacks are left out of the cache key: tokens differ in them.
        allowed = caller.endpoints & self._names
        if (view := self._views.get(allowed)) is None:
            view = self._views[allowed] = visible_config(caller, self.config)
        return view

    def require_access(self, caller: Caller, name: str | None) -> None:
        """Raises Forbidden if `name` is an endpoint or deployment that `caller` may not use."""
        if caller.endpoints is None or name not in self._names:
            return
        view = self.of(caller)
        if name not in names(view):
            known = ", ".join(sorted(view.endpoints)) or "no endpoint"
            raise Forbidden(f"'{caller.name}' may not use '{name}'; it may use: {known}", param="model")

    def require_deployments(self, caller: Caller, wanted: Iterable[str]) -> None:
        """Raises Forbidden if `caller` would use a deployment that only others' endpoints have."""
        own, sections = self.of(caller).deployments, self.config.endpoints.values()
        for name in wanted:
            if name not in own and any(name in behind(section) for section in sections):
                raise Forbidden(f"'{caller.name}' may use '{name}' behind none of its endpoints", param="weights")

    def endpoint(self, caller: Caller, name: str) -> Endpoint:
        """The endpoint `name`. Raises Forbidden, and NotFound with the nearest name that the caller may see."""
        self.require_access(caller, name)
        if (endpoint := self.config.endpoints.get(name)) is None:
            raise NotFound(f"No endpoint '{name}'{question(name, self.of(caller).endpoints)}", param="endpoint")
        return endpoint


Role = Literal["manager", "operator", "viewer", "caller"]


@dataclass(frozen=True, slots=True)
class Roles:
    """Who may manage what, by principal. `open`: nobody is identified, and everyone on the machine may do everything.

    A manager may do all that an operator may on each endpoint, and all that a viewer may. A role adds nothing to the
    endpoints that a caller may use.
    """

    managers: frozenset[str]
    operators: Mapping[str, frozenset[str]]
    viewers: frozenset[str]
    open: bool = False

    @classmethod
    def from_settings(cls, settings: AccessSettings) -> Self:
        """The roles that a configuration gives."""
        return cls(
            settings.principals(settings.managers),
            {endpoint: settings.principals(listed) for endpoint, listed in settings.operators.items()},
            settings.principals(settings.viewers),
            open=not settings.may_be_exposed,
        )

    def may_manage(self, caller: Caller) -> bool:
        """Whether `caller` may do everything."""
        return self.open or caller.principal in self.managers

    def may_operate(self, caller: Caller, endpoint: str) -> bool:
        """Whether `caller` may change the endpoint's traffic, and decide about its experiments."""
        return self.may_manage(caller) or caller.principal in self.operators.get(endpoint, ())

    def operated(self, caller: Caller, endpoints: Iterable[str]) -> list[str]:
        """The `endpoints` that `caller` may operate."""
        return [name for name in endpoints if self.may_operate(caller, name)]

    def may_view(self, caller: Caller) -> bool:
        """Whether `caller` may read what concerns other callers."""
        return self.may_manage(caller) or caller.principal in self.viewers

    def role(self, caller: Caller, endpoint: str | None = None) -> Role:
        """The caller's widest role on the endpoint; None: on any."""
        if self.may_manage(caller):
            return "manager"
        if any(self.may_operate(caller, name) for name in ([endpoint] if endpoint is not None else self.operators)):
            return "operator"
        return "viewer" if self.may_view(caller) else "caller"

    def require_operator(self, caller: Caller, endpoint: str, what: str) -> None:
        """Raises Forbidden if `caller` may not do `what`, which is about the endpoint."""
        if not self.may_operate(caller, endpoint):
            listed = f"neither in `access.managers` nor in `access.operators.{endpoint}`"
            raise Forbidden(f"'{caller.name}' may not {what}: it is listed {listed}")

    def require_viewer(self, caller: Caller, what: str) -> None:
        """Raises Forbidden if `caller` may not do `what`, which only reads."""
        if not self.may_view(caller):
            listed = "neither in `access.managers` nor in `access.viewers`"
            raise Forbidden(f"'{caller.name}' may not {what}: it is listed {listed}")
