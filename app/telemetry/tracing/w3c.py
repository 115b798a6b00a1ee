"""Trace contexts in headers. Contract: W3C Trace Context, https://www.w3.org/TR/trace-context/."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

SAMPLED = 0x01
RANDOM = 0x02
"""Level 2: the trace id is random."""

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MOST_STATE = 512
"""Characters of a `tracestate` that must be passed on; a longer one is left out."""

_MOST_MEMBERS = 32
_KEY = r"[a-z0-9][a-z0-9_\-*/@]{0,255}"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(rf"{_KEY}={_VALUE}")


class Remote(NamedTuple):
    """A caller's span. `state` is its `tracestate`, "" without one."""

    trace_id: int
    span_id: int
    flags: int
    state: str

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)


def remote(headers: Mapping[str, str]) -> Remote | None:
    """The caller's span; None if the headers (lower-case names) have no valid `traceparent`."""
    if (parent := headers.get(TRACEPARENT)) is None:
        return None
    if (found := _PARENT.fullmatch(parent)) is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    # A later version may have more after the flags; what comes before them stays as it is.
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not (trace := int(trace_id, 16)) or not (span := int(span_id, 16)):
        return None
    return Remote(trace, span, int(flags, 16) & (SAMPLED | RANDOM), _state(headers.get(TRACESTATE, "")))


def _state(text: str) -> str:
    """The `tracestate`, "" if it is malformed: the trace is continued without it."""
    if not text or len(text) > _MOST_STATE:
        return ""
    members = [member.strip(" \t") for member in text.split(",")]
    members = [member for member in members if member]
    if len(members) > _MOST_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return ""
    return ",".join(members)


def headers_of(trace_id: int, span_id: int, flags: int, state: str = "") -> dict[str, str]:
    """The headers that make a server's spans children of this one."""
    parent = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
    return {TRACEPARENT: parent, TRACESTATE: state} if state else {TRACEPARENT: parent}
