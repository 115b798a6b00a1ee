"""An entry of the journal, in a separate module so that routers, which read some, need not load pyarrow."""

from typing import Any

import msgspec


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened, at a Unix time."""

    at: float
    kind: str
    """controller_started, configuration, run_begun, run_state, or what an analysis reports: verdict, alarm …"""
    experiment: str | None = None
    detail: dict[str, Any] = {}
    writer: str = ""
