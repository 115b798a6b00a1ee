"""Plans of an endpoint's traffic for the command line: temporary changes, dry runs, history, rollback."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.moments import shown
from deployments.cli.errors import CommandError, ExitCode
from deployments.cli.router_client import RouterClient
from deployments.cli.table import table
from deployments.cli.traffic import Change

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Plan = Mapping[str, Any]
"""An endpoint's traffic, as `GET /api/endpoints/{endpoint}/traffic` returns it."""


def seconds(text: str) -> int:
    """``30m`` as seconds. Raises CommandError on anything but a whole number of s, m, h or d."""
    found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    if found is None:
        raise CommandError(f"--ttl '{text}': expected a number and s, m, h or d, such as 30m", ExitCode.USAGE)
    return int(found[1]) * _UNITS[found[2]]


def document(plan: Plan, change: Change, ttl_s: int | None, reason: str | None) -> dict[str, Any]:
    """The change as a whole plan: the overrides of `plan` stay."""
    named = {"weights": dict(change.after), "overrides": list(plan["overrides"])}
    return {**named, "ttl_s": ttl_s, "reason": reason}


def put(client: RouterClient, plan: Plan, wanted: Mapping[str, Any]) -> Plan:
    """Makes the plan `wanted` if `plan` is still the present one. Raises CommandError."""
    return client.traffic("PUT", plan["endpoint"], body=wanted, tag=plan["plan"])


def moves_of(client: RouterClient, plan: Plan, wanted: Mapping[str, Any]) -> str | None:
    """The keys that `wanted` would move, one line for each kind of key; None if the endpoint is not sticky."""
    if plan["sticky"] is None:
        return None
    moves = client.traffic("PUT", plan["endpoint"], "?dry_run=true", body=wanted, tag=plan["plan"])["moves"]
    made_up = _moved("made-up keys", moves["made_up_keys"])
    return "\n".join([made_up, _moved("keys that this router saw last", moves["recent_keys"])])


def _moved(keys: str, moves: Mapping[str, Any]) -> str:
    pairs = ", ".join(f"{it['from']} → {it['to']} {100 * it['share']:.1f} %" for it in moves["pairs"])
    return f"of {moves['keys']:,} {keys}, {100 * moves['share']:.1f} % would move" + (f": {pairs}" if pairs else "")


def described(plan: Plan) -> str | None:
    """A plan's generation, author, end and reason in one line; None if it came with a file."""
    if plan["generation"] == 0:
        return None
    ends = f", until {moment(plan['expires']['at'])}" if plan["expires"] is not None else ""
    count = len(plan["overrides"])
    overrides = f", {count} override{'s' * (count > 1)}" if count else ""
    by = f" by {plan['by']}" if plan["by"] else ""
    reason = f": {plan['reason']}" if plan["reason"] else ""
    return f"Generation {plan['generation']}, since {moment(plan['since'])}{by}{ends}{overrides}{reason}"


def history_table(plans: Sequence[Mapping[str, Any]]) -> str:
    """All plans for a terminal, the latest first."""
    rows = [
        [
            str(it["generation"]),
            moment(it["since"]),
            it["by"] or "a file",
            ", ".join(f"{name} {share} %" for name, share in it["weights"].items() if share),
            it["reason"] or "",
        ]
        for it in plans
    ]
    return table(["GENERATION", "SINCE", "BY", "SPLIT", "REASON"], rows)


def moment(at: float | None) -> str:
    """A time (Unix seconds) in UTC."""
    return shown(at) if at is not None else "-"
