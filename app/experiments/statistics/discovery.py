"""Selects the metrics that differ, among many: e-BH, whose share of false discoveries is bounded under any dependence.

Wang and Ramdas 2022, "False discovery rate control with e-values". The intervals that belong to the selection are those
of Xu, Wang and Ramdas 2022, "Post-selection inference for e-value based confidence intervals".

Where nothing differs, the probability that anything is ever selected is at most the level: k selected metrics have
e-values of m / (level k) each, so that the mean of all m, which is an e-process too, is at least 1 / level.
"""

import math
from collections.abc import Sequence


def e_bh(ln_e_values: Sequence[float], level: float) -> list[int]:
    """The indexes that are kept, rising. `ln_e_values` are logarithms of e-values; `level` the false discovery rate.

    Sorted from the largest, the first k are kept, with the largest k whose e-value is at least m / (level k).
    """
    m = len(ln_e_values)
    order = sorted(range(m), key=lambda index: -ln_e_values[index])
    enough = (k for k in range(m, 0, -1) if ln_e_values[order[k - 1]] >= math.log(m / (level * k)))
    return sorted(order[: next(enough, 0)])


def levels(ln_e_values: Sequence[float], level: float) -> list[float]:
    """The level of each metric's interval: it excludes "no effect" exactly for the metrics that `e_bh` keeps.

    Of those that are kept, the intervals that miss their effects are at most the share `level` in the mean.
    """
    m, kept = len(ln_e_values), set(e_bh(ln_e_values, level))
    return [level * (len(kept) if index in kept else len(kept) + 1) / m for index in range(m)]
