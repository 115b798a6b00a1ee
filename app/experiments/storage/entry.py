"""An entry of the journal, in a separate module so that routers, which read some, need not load pyarrow."""

from typing import Any

import msgspec

FACTS = JUDGED, LOAD, OBSTACLES, LOST, LOOKS = ("judged", "load", "obstacles", "lost", "looks")
"""Kinds of entries with facts that no exposure has, written whenever they change, so that a report of any time can be
made again: an analysis's landmarks, routers and replicas, what holds up steps, rows that routers have lost, looks that
a report rested on although there was more to look at."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened, at a Unix time."""

    at: float
    kind: str
    """controller_started, configuration, run_begun, run_state, or what an analysis reports: verdict, alarm …"""
    experiment: str | None = None
    detail: dict[str, Any] = {}
    writer: str = ""
