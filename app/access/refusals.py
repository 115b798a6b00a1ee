"""Requests without valid credentials: counted by their source, throttled, and logged as a sum.

Credentials are checked first, so a source that is throttled is still served with valid ones: behind one address there
may be many callers. What is throttled is the answer (a 429 that says when to come back) and the line in the log. Memory
is bounded: beyond `MOST_SOURCES` in a minute, further sources count as one.
"""

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.errors import ClientError, TooManyRefusals, Unauthorized
from app.telemetry.logs import event

MOST_A_MINUTE = 20
WINDOW_S = 60.0
MOST_SOURCES = 4096
_NAMED = 10
"""Sources, and reasons, that a line of the log names."""
_MOST_REASONS = 40
"""That are counted separately; a key that has expired is one of its own."""

_OTHERS = ""
_log = logging.getLogger("switchyard")


class RefusalObserver(Protocol):
    """Counts refused requests."""

    def unauthorized(self, outcome: str) -> None:
        """Counts a request without valid credentials: ``refused`` (401) or ``throttled`` (429)."""


@dataclass(slots=True)
class _RefusalWindow:
    began: float
    requests: int = 0


class Refusals:
    """The refusals of one router. `clock`: monotonic seconds."""

    def __init__(self, observer: RefusalObserver, clock: Callable[[], float]) -> None:
        self._observer, self._clock = observer, clock
        self.windows: dict[str, _RefusalWindow] = {}  # the oldest first
        self.sources: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        """All refusals so far, by their reason; "" are those beyond `_MOST_REASONS`."""
        self._reasons: Counter[str] = Counter()
        self._throttled = 0

    def answer_to(self, error: Unauthorized, source: str) -> ClientError:
        """Counts a refusal of `source`; returns its error, or TooManyRefusals after `MOST_A_MINUTE` of them."""
        now = self._clock()
        window = self._window(source, now)
        window.requests += 1
        self.sources[_among(source, self.sources, MOST_SOURCES)] += 1
        self._reasons[_among(error.message, self._reasons, _NAMED)] += 1
        self.reasons[_among(error.message, self.reasons, _MOST_REASONS)] += 1
        if window.requests <= MOST_A_MINUTE:
            self._observer.unauthorized("refused")
            return error
        self._throttled += 1
        self._observer.unauthorized("throttled")
        return TooManyRefusals(
            f"More than {MOST_A_MINUTE} requests without valid credentials came from this address in a minute",
            retry_after=window.began + WINDOW_S - now,
        )

    def log_sum(self) -> None:
        """Writes one line about the refusals since the last one, if there were any."""
        if not self.sources:
            return
        named = [(source, count) for source, count in self.sources.most_common(_NAMED + 1) if source != _OTHERS][
            :_NAMED
        ]
        total = self.sources.total()
        fields: dict[str, Any] = {
            "requests": total,
            "throttled": self._throttled,
            "sources": [{"source": source, "requests": count} for source, count in named],
            "other_sources": total - sum(count for _, count in named),
            "reasons": [
                {"reason": reason or "others", "requests": count} for reason, count in self._reasons.most_common()
            ],
        }
        self.sources.clear()
        self._reasons.clear()
        self._throttled = 0
        _log.warning("Requests without valid credentials were refused", extra=event("requests_unauthorized", **fields))

    def _window(self, source: str, now: float) -> _RefusalWindow:
        """The window of the source, or the one that the sources share for which there is no room."""
        window = self.windows.get(source)
        if window is not None and now - window.began < WINDOW_S:
            return window
        self.windows.pop(source, None)
        while self.windows and now - self.windows[oldest := next(iter(self.windows))].began >= WINDOW_S:
            del self.windows[oldest]
        if len(self.windows) >= MOST_SOURCES and source != _OTHERS:
            return self._window(_OTHERS, now)
        return self.windows.setdefault(source, _RefusalWindow(now))


def _among(name: str, known: Collection[str], most: int) -> str:
    return name if name in known or len(known) < most else _OTHERS


def source_of(headers: Mapping[str, str], peer: Sequence[Any] | None, *, behind_ingress: bool) -> str:
    """The address that a request comes from; of IPv6, the network of 64 bits, which one machine may have to itself.

    `peer` is the other end of the connection. Behind the ingress that is HAProxy, which adds its own peer's address to
    `X-Forwarded-For`: the last one there is believed, and none that the client may have written before it.
    """
    added = headers.get("x-forwarded-for", "").rpartition(",")[2].strip() if behind_ingress else ""
    address = _address(added) or (_address(str(peer[0])) if peer else None)
    if address is None:
        return "unknown"
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else str(address)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
