"""Computes the keys that a change of an endpoint's plan would move."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.config.schema import Endpoint
from app.exchange.snapshot import LiveRouting
from app.routing.rules import NO_STOPS, Choice, Moved, Overrides, choice, made_up_keys, moved
from app.server.traffic.document import plan_view


def dry_run(
    name: str,
    before: Endpoint,
    after: Endpoint,
    recent_keys: Sequence[str],
    unit: Callable[[str], int],
    now: LiveRouting,
) -> dict[str, Any]:
    """Both plans, the share of keys that would move for each pair of deployments, and the overrides, stops and pins
    that the change touches.

    Takes about 0.2 s of CPU: for a thread. `recent_keys` are those that this router saw; `unit` hashes one; `now` is
    this router's state that decides apart from the weights.
    """
    return {
        "before": plan_view(name, before, with_units=True),
        "after": plan_view(name, after, with_units=True),
        "moves": moves(before, after, recent_keys, unit, now.stops),
        "overrides": _overrides(before, after),
        "stops": [
            {
                "deployment": it,
                "control": control,
                "before": before.traffic.get(it, 0),
                "after": after.traffic.get(it, 0),
            }
            for it, control in now.stops.items()
            if before.traffic.get(it, 0) != after.traffic.get(it, 0)
        ],
        "pins": [
            {"deployment": it, "conversations": count}
            for it, count in now.pins.items()
            if before.traffic.get(it, 0) != after.traffic.get(it, 0)
        ],
    }


def moves(
    before: Endpoint,
    after: Endpoint,
    recent_keys: Sequence[str],
    unit: Callable[[str], int],
    stops: Mapping[str, str] = NO_STOPS,
) -> dict[str, Any]:
    """The share of keys that would move, for each pair of deployments: among made-up keys, and among `recent_keys`.
    `stops`: the endpoint's stopped deployments, each with the one that gets its share.
    """
    still = {it: control for it, control in stops.items() if {it, control} <= after.traffic.keys()}
    keys = made_up_keys(max(len(before.traffic), len(after.traffic)))
    made_up = moved(keys, choice(before.traffic, stops=stops), choice(after.traffic, stops=still))
    recent = moved(recent_keys, _choice(before, unit, stops), _choice(after, unit, still))
    return {"made_up_keys": _view(made_up), "recent_keys": _view(recent)}


def _choice(endpoint: Endpoint, unit: Callable[[str], int], stops: Mapping[str, str]) -> Choice:
    return choice(endpoint.traffic, Overrides(endpoint.plan.overrides, unit, time.time), stops)


def _view(found: Moved) -> dict[str, Any]:
    return {
        "keys": found.keys,
        "share": found.share,
        "pairs": [{"from": a, "to": b, "share": count / found.keys} for (a, b), count in found.pairs.items()],
    }


def _overrides(before: Endpoint, after: Endpoint) -> dict[str, list[str]]:
    """Units whose override is new, removed, or changed."""
    old = {it.unit: it for it in before.plan.overrides}
    new = {it.unit: it for it in after.plan.overrides}
    return {
        "added": [unit for unit in new if unit not in old],
        "removed": [unit for unit in old if unit not in new],
        "changed": [unit for unit in new if unit in old and new[unit] != old[unit]],
    }
