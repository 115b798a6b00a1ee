"""The requests that this router has finished lately, and what callers used since the last reading."""

import time
from collections import deque
from dataclasses import dataclass, field

from app.activity.report import CallerCounts, FinishedRequest
from app.errors import CLIENT_GONE
from app.telemetry.logs import SUMMED, Record

KEPT = 300
"""Requests that wait for the next report. Of more between two reports only the last are listed; all are counted."""
MOST_CALLERS = 10_000


@dataclass(slots=True)
class RequestLog:
    """`end`: the number of the request that comes next."""

    end: int = 0
    _kept: deque[FinishedRequest] = field(default_factory=lambda: deque(maxlen=KEPT))
    _uses: dict[str, CallerCounts] = field(default_factory=dict)

    def add(self, record: Record, *, plan: str, caller_id: str, trace_id: int) -> None:
        """Adds a request whose answer has ended. Those without valid credentials are left out: anyone can send them."""
        if record.error in SUMMED:
            return
        duration, started, usage = time.perf_counter() - record.started, record.started, record.usage

        def since_arrival(at: float | None) -> float | None:
            return at - started if at is not None else None

        request = FinishedRequest(
            id=record.request_id,
            at=time.time() - duration,
            dialect=record.dialect,
            operation=record.operation,
            status=record.status,
            duration_s=duration,
            endpoint=record.endpoint,
            deployment=record.deployment,
            caller=record.caller,
            caller_id=caller_id,
            reason=record.reason,
            plan=plan,
            error=record.error,
            stream=record.streamed,
            attempts=record.attempts,
            moves=record.moves,
            pause_s=record.pause_s,
            admitted_s=since_arrival(record.admitted),
            sent_s=since_arrival(record.sent),
            first_byte_s=since_arrival(record.first_byte),
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            completion_tokens=usage.completion_tokens if usage is not None else None,
            max_tokens=record.max_tokens,
            trace=f"{trace_id:032x}" if trace_id else "",
        )
        self.end += 1
        self._kept.append(request)
        if caller_id:
            self._count(request)

    def _count(self, request: FinishedRequest) -> None:
        if (use := self._uses.get(request.caller_id)) is None:
            if len(self._uses) >= MOST_CALLERS:
                return
            use = self._uses[request.caller_id] = CallerCounts(request.caller_id)
        use.requests += 1
        use.failed += request.failed and request.error != CLIENT_GONE
        use.prompt_tokens += request.prompt_tokens or 0
        use.completion_tokens += request.completion_tokens or 0

    def after(self, number: int) -> tuple[int, list[FinishedRequest]]:
        """The kept requests from this number on, and the number of the first of them."""
        first = max(number, self.end - len(self._kept))
        return first, list(self._kept)[len(self._kept) - (self.end - first) :]

    def take_uses(self) -> list[CallerCounts]:
        """What each caller has used since the last call."""
        uses, self._uses = self._uses, {}
        return list(uses.values())
