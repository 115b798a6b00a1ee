"""The configuration that a request keeps from its beginning to its end, and the seam to deployments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from app.access.caller import ConfigViews
from app.config.schema import Config, Timeouts
from app.engine.model import Model
from app.ledger.plans import Scope
from app.routing.rules import Rules
from app.upstream.client import NO_CONTEXT, Encode
from app.upstream.stream import OnHead, ResponseStream
from app.upstream.target import Target


class Calls(Protocol):
    """The seam to deployments; `upstream.Upstream` is the real one."""

    async def model(self, target: Target, timeouts: Timeouts) -> Model: ...

    async def unary(
        self,
        target: Target,
        path: str,
        body: Mapping[str, Any],
        *,
        request_id: str,
        timeouts: Timeouts,
        context: Mapping[str, str] = NO_CONTEXT,
        on_head: OnHead | None = None,
        encode: Encode | None = None,
    ) -> bytes: ...

    def stream(
        self,
        target: Target,
        path: str,
        body: Mapping[str, Any],
        *,
        request_id: str,
        timeouts: Timeouts,
        context: Mapping[str, str] = NO_CONTEXT,
        on_head: OnHead | None = None,
        encode: Encode | None = None,
    ) -> ResponseStream: ...


class Unstopped(NamedTuple):
    """An endpoint with stops while these are not applied: the id of its plan, and the scope that is recorded."""

    plan: str
    scope: Scope | None


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
    recorded: Mapping[str, Scope] = field(default_factory=dict)
    plans: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, Rules] = field(default_factory=dict)
    unstopped: Mapping[str, Unstopped] = field(default_factory=dict)
    stops: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    largest_body: int = field(init=False)
    """The largest body that any endpoint takes, in bytes."""
    knows_callers: bool = field(init=False)
    """Whether callers show credentials."""

    def __post_init__(self) -> None:
        limits = map(self.config.body_limit, (*self.config.endpoints, *self.config.deployments))
        object.__setattr__(self, "largest_body", max(self.config.max_body_bytes, *limits))
        object.__setattr__(self, "knows_callers", self.config.access.knows_callers)
