"""A record of the audit log, as routers hand it over and the ledger keeps it."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

Outcome = Literal["accepted", "refused", "failed"]
OUTCOMES: Sequence[Outcome] = ("accepted", "refused", "failed")
LONGEST = 300
"""The most characters of a text that the client chose."""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One management call: who, from where, what before, what after. It holds no body, no key and no prompt."""

    id: str
    """Unique, and in the order of time."""
    at: float
    """Unix seconds."""
    action: str
    """The operation's name, as in the access log: put_traffic, roll_back_traffic, decide …"""
    outcome: Outcome
    status: int
    error: str = ""
    """The kind of error, or its code; "" if it was accepted."""
    call: str = ""
    """Method and path."""
    caller: str = ""
    """The key's name or the token's principal; "" if the caller is not known."""
    address: str = ""
    """The peer of the connection: the client, or a proxy in front of the router."""
    forwarded_for: str = ""
    """`X-Forwarded-For`. Of its addresses only those that a proxy of yours added can be trusted: the last ones."""
    request_id: str = ""
    endpoint: str = ""
    experiment: str = ""
    reason: str | None = None
    """The caller's own words."""
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    """What was changed, or asked for, by name."""
    router: str = ""
    """The router's process."""
    count: int = 1
    """More than 1: so many like it, which came too fast to be recorded one by one."""


def new_id(at: float) -> str:
    """The id of a record made at this time, in Unix seconds."""
    return f"{int(at * 1e6):016x}-{secrets.token_hex(4)}"
