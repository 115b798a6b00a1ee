"""Overrides: units that are assigned to a deployment."""

from app.config.endpoints import Override
from app.exposures.identity import Hashes
from app.routing.rules import Overrides

UNIT = Hashes(b"secret").unit


def test_a_unit_is_found_by_its_key_until_the_time_is_over() -> None:
    now = 100.0
    units = [
        Override(unit=f"{UNIT(key):016x}", deployment="green", until=until)
        for key, until in (("ann", 200.0), ("bob", None))
    ]
    overrides = Overrides(units, UNIT, lambda: now)
    assert [overrides.deployment(key) for key in ("ann", "bob", "cy")] == ["green", "green", None]
    now = 200.0
    assert [overrides.deployment(key) for key in ("ann", "bob", "cy")] == [None, "green", None]
