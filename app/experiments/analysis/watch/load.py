"""The load of each arm's deployment: requests in flight when its requests arrive, and replicas that share them.

A router knows the requests in flight on itself; the controller knows how many routers there are and, from the control
plane, how many replicas run. Both change over time, so their means are weighted by the arm's requests that are recorded
while each holds; those before the first observation count under it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arrays import Floats
from app.experiments.columns import U16

BUSIER = 1.5
"""Requests in flight per replica by which arms may differ."""

Arm = NDArray[np.int8]


class Load:
    """The load of one experiment's arms. `deployments`: each arm's, in the order of `names`."""

    def __init__(self, names: Sequence[str], deployments: Sequence[str]) -> None:
        self._names, self._deployments = names, deployments
        self._in_flight, self._rows, self._early, self._routers = (np.zeros(len(names)) for _ in range(4))
        self._replicas, self._with_replicas = np.zeros(len(names)), np.zeros(len(names))
        self._now: tuple[int, Mapping[str, int] | None] | None = None
        """The latest observation."""

    def add(self, in_flight: U16, arm: Arm) -> None:
        """Rows: requests in flight on the router when each arrived, besides itself."""
        new = np.bincount(arm, minlength=len(self._names)).astype(np.float64)
        self._in_flight += np.bincount(arm, in_flight, len(self._names))
        self._rows += new
        if self._now is None:
            self._early += new
        else:
            self._weigh(new, *self._now)

    def observe(self, routers: int, replicas: Mapping[str, int] | None) -> None:
        """Routers that send rows and running replicas by deployment, now; None: replicas are not known."""
        if self._now is None:
            self._weigh(self._early, routers, replicas)
        self._now = routers, replicas

    def _weigh(self, new: Floats, routers: int, replicas: Mapping[str, int] | None) -> None:
        self._routers += new * max(routers, 1)
        if replicas is not None:
            self._replicas += new * np.array([float(replicas.get(name, 0)) for name in self._deployments])
            self._with_replicas += new

    @property
    def in_flight(self) -> dict[str, float | None]:
        """The mean over an arm's requests, on all routers together."""
        routers = self._means(self._routers, self._rows)
        means = self._means(self._in_flight, self._rows)
        return {name: None if mean is None else mean * (routers[name] or 1.0) for name, mean in means.items()}

    @property
    def replicas(self) -> dict[str, float | None]:
        """The mean over an arm's requests; None where it is not known."""
        return {name: mean or None for name, mean in self._means(self._replicas, self._with_replicas).items()}

    def _means(self, sums: Floats, counts: Floats) -> dict[str, float | None]:
        pairs = zip(self._names, sums.tolist(), counts.tolist(), strict=True)
        return {name: total / count if count else None for name, total, count in pairs}

    def warnings(self) -> list[str]:
        """A sentence if the arms' loads differ too much to compare the deployments themselves."""
        known = {name: mean for name, mean in self.in_flight.items() if mean is not None}
        replicas = {name: count for name, count in self.replicas.items() if count is not None and name in known}
        if per_replica := len(replicas) == len(known):
            known = {name: mean / replicas[name] for name, mean in known.items()}
        if not known or max(known.values()) - min(known.values()) <= BUSIER:
            return []
        if per_replica:
            means = ", ".join(f"{mean:.1f} on {name} (replicas: {replicas[name]:.3g})" for name, mean in known.items())
            found = f"requests in flight per replica were {means}"
        else:
            means = ", ".join(f"{mean:.1f} on {name}" for name, mean in known.items())
            found = f"requests in flight were {means}, and their replicas are not known"
        return [f"The arms' loads differ: {found}. Compare them as provisioned."]
