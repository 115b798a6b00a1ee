"""Units of an endpoint that are assigned to a deployment individually, regardless of the weights."""

from collections.abc import Callable, Iterable

from app.config.endpoints import Override


class Overrides:
    """The overrides of one plan. `unit` hashes a sticky key as the ledger does, `now` is in Unix seconds."""

    def __init__(self, overrides: Iterable[Override], unit: Callable[[str], int], now: Callable[[], float]) -> None:
        self._by_unit = {int(it.unit, 16): it for it in overrides}
        self._unit, self._now = unit, now

    def deployment(self, key: str) -> str | None:
        """The deployment of the unit with this sticky key; None without an override, or if it has expired."""
        found = self._by_unit.get(self._unit(key))
        if found is None or (found.until is not None and found.until <= self._now()):
            return None
        return found.deployment
