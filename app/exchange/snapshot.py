"""What a request keeps from its beginning to its end, and the seam to deployments."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.access.caller import ConfigViews
from app.config.schema import Config, Timeouts
from app.engine.model import Model
from app.ledger.plans import Scope
from app.routing.overrides import Overrides
from app.upstream.client import OnHead
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
        on_head: OnHead | None = None,
    ) -> bytes: ...

    def stream(
        self,
        target: Target,
        path: str,
        body: Mapping[str, Any],
        *,
        request_id: str,
        timeouts: Timeouts,
        on_head: OnHead | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The configuration at one moment; a request keeps the one that it started with.

    `applied_at` is in Unix seconds. `recorded` are the endpoints of whose requests exposures are recorded. `plans` are
    the ids of the endpoints' plans, and `overrides` are there for plans that have some.
    """

    config: Config
    targets: Mapping[str, Target]
    views: ConfigViews
    applied_at: int
    recorded: Mapping[str, Scope] = field(default_factory=dict)
    plans: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, Overrides] = field(default_factory=dict)

    def override(self, endpoint: str, key: str) -> str | None:
        """The deployment that the endpoint's plan gives the unit with this sticky key, if it gives it one."""
        found = self.overrides.get(endpoint)
        return found.deployment(key) if found is not None else None
