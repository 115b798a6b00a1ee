"""Events as the controller passes them on to routers."""

import math
from typing import Any

import msgspec

from app.errors import BadRequest


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of `GET /api/events`."""

    id: str
    """``<Unix seconds>-<hash of the entry>``."""
    kind: str
    """The event's name in the stream: verdict, alarm, plan …"""
    endpoint: str | None
    """Callers that may use it may see the event; None: all may."""
    data: dict[str, Any]
    """`at` (Unix seconds), `experiment` and `endpoint` if it is about one, `text`, and the kind's own members."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Events in the order in which they were journalled."""

    position: str
    """The position at which the next page begins. It holds for this controller, until it has read another journal."""
    latest: str
    """The id of the last entry that was looked at, event or not; empty if there is none."""
    more: bool
    """Whether there is another page already."""
    events: list[Event]


def time_of(id: str, name: str = "after") -> float:
    """The Unix seconds of an event's id, or of a text that is nothing else. Raises BadRequest with the `name`."""
    try:
        at = float(id.partition("-")[0])
    except ValueError:
        at = math.nan
    if not math.isfinite(at):
        raise BadRequest(f"{name}: '{id}' is neither an event's id nor a Unix time", param=name)
    return at
