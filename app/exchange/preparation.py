"""Prepares a configuration before it is served: everything that is independent of the running router, in a thread."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from app.config.loading import Parser
from app.config.schema import Config, Endpoint
from app.ledger.plans import plan_of
from app.ledger.wire import Plan
from app.upstream.target import RuntimeEnvironment, Target, targets

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
        found = PreparedConfig(config, targets(config, self._environment), self._planned(config))
        self._plans = found.plans
        return found

    def _planned(self, config: Config) -> Plans:
        known = self._plans
        return {
            name: before
            if (before := known.get(name)) is not None and before[0] is endpoint
            else (endpoint, plan_of(name, endpoint))
            for name, endpoint in config.endpoints.items()
        }
