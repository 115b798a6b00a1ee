"""What is made of a configuration before it is served: all that needs nothing of the running router, for a thread."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from app.config.parser import Parser
from app.config.schema import Config, Endpoint
from app.ledger.plans import plan_of
from app.ledger.wire import Plan
from app.upstream.target import RuntimeEnvironment, Target, targets

Plans = Mapping[str, tuple[Endpoint, Plan]]
"""By name: each endpoint and its plan, as long as nothing is stopped."""


NO_PLANS: Plans = MappingProxyType({})


class Incoming(NamedTuple):
    """A valid configuration and what is derived from it."""

    config: Config
    targets: Mapping[str, Target]
    plans: Plans


class Preparation:
    """Keeps what did not change from one configuration to the next."""

    def __init__(self, environment: RuntimeEnvironment) -> None:
        self._environment, self._parser = environment, Parser()
        self._plans = NO_PLANS

    def prepare(self, data: object) -> Incoming:
        """For a Config, or plain data. Raises ConfigError. Takes as long as the configuration is large."""
        config = data if isinstance(data, Config) else self._parser.parse(data)
        found = Incoming(config, targets(config, self._environment), self._planned(config))
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
