"""Selects the metrics that differ, among many: e-BH, whose share of false discoveries is bounded under any dependence.

Wang and Ramdas 2022, "False discovery rate control with e-values".
"""

import math
from collections.abc import Sequence

LEVEL = 0.1


def e_bh(ln_e_values: Sequence[float], level: float = LEVEL) -> list[int]:
    """The indexes that are kept, rising. `ln_e_values` are logarithms of e-values; `level` the false discovery rate.

    Sorted from the largest, the first k are kept, with the largest k whose e-value is at least m / (level k).
    """
    m = len(ln_e_values)
    order = sorted(range(m), key=lambda index: -ln_e_values[index])
    enough = (k for k in range(m, 0, -1) if ln_e_values[order[k - 1]] >= math.log(m / (level * k)))
    return sorted(order[: next(enough, 0)])
