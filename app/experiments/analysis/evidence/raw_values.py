"""Single values, for quantiles: those need the values themselves and not their sums."""

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.evidence.arrays import Floats, Growing, Hashes, Ints, kept_share
from app.experiments.analysis.evidence.strata import CodesOf, within
from app.experiments.columns import I32

MAX_VALUES = 1_000_000
"""Values of all quantile metrics of an experiment together, 25 bytes each. Above, half of the units are left out, by
hash.

A look at as many takes two seconds, in which the controller accepts no batch.
"""


class RawValues:
    """ln of the values of one metric."""

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self._max = max_values
        self._bits = 0
        self._unit = Growing(np.uint64)
        self._value = Growing(np.float64)
        self._stratum = Growing(np.int32)
        self._minute = Growing(np.int32)
        self._arm = Growing(np.int8)

    def __len__(self) -> int:
        return len(self._value)

    @property
    def share(self) -> float:
        """The share of units that is kept."""
        return 0.5**self._bits

    def add(self, value: Floats, unit: Hashes, stratum: I32, arm: NDArray[np.int8], at: Floats) -> None:
        """Values with their requests' units, strata and arms: equally long arrays."""
        kept = kept_share(unit, self._bits)
        self._unit.append(unit[kept])
        self._value.append(value[kept])
        self._stratum.append(stratum[kept])
        self._minute.append((at[kept] // 60).astype(np.int32))
        self._arm.append(arm[kept])
        while len(self) > self._max:
            self._thin()

    def select(
        self, treatment: int, strata: I32, without_minutes: Ints | None = None, codes: CodesOf | None = None
    ) -> tuple[Floats, Ints, I32, NDArray[np.int64]]:
        """`(value, unit, stratum, arm)` of control and one treatment; units as codes from 0, arms 0 and 1.

        `without_minutes`: minutes that are left out, counted from 1970. `codes` splits the strata by unit.
        """
        arm = self._arm.values
        kept = (arm == 0) | (arm == treatment)
        if without_minutes is not None:
            kept &= ~np.isin(self._minute.values, without_minutes)
        _, unit = np.unique(self._unit.values[kept], return_inverse=True)
        return (
            self._value.values[kept],
            unit.astype(np.int64),
            within(strata[self._stratum.values[kept]], self._unit.values[kept], codes),
            (arm[kept] != 0).astype(np.int64),
        )

    def of_arm(self, arm: int) -> Floats:
        """The values of one arm."""
        return np.asarray(self._value.values[self._arm.values == arm])

    def units(self, arm: int) -> int:
        """Distinct units of one arm; an estimate once units were halved."""
        return round(len(np.unique(self._unit.values[self._arm.values == arm])) / self.share)

    def _thin(self) -> None:
        self._bits += 1
        kept = kept_share(self._unit.values, self._bits)
        for column in (self._unit, self._value, self._stratum, self._minute, self._arm):
            column.keep(kept)
