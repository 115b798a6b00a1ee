"""The requests that this router works on, those that it has finished lately, and what callers have used."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import add as add_up

import msgspec
from msgspec.structs import replace

from app.activity.caller_use import CallerUse, add_to
from app.activity.report import CallerCounts, ListedRequest, RunningCount
from app.telemetry.logs import SUMMED, Record, Sent

KEPT = 300
"""Requests that wait for the next report. Of more between two reports only the last are listed; all are counted."""
MOST_RUNNING = 100
"""Running requests in a report: those that have run longest."""
MOST_CALLERS = 10_000


_Running = tuple[Record, Callable[[], Sent], Mapping[str, str], str, int]
"""A request, what returns how much its client has of a stream, the plan of each endpoint, of which it may not know its
own yet, its caller's id, and its trace's."""


@dataclass(slots=True)
class RequestLog:
    """`end`: the number of the request that comes next. `caller_use`: what callers have used since the start."""

    end: int = 0
    caller_use: CallerUse = field(default_factory=CallerUse)
    _kept: deque["_Seen"] = field(default_factory=lambda: deque(maxlen=KEPT))
    _uses: dict[str, CallerCounts] = field(default_factory=dict)
    _running: dict[int, _Running] = field(default_factory=dict)

    def begin(
        self, record: Record, sent: Callable[[], Sent], plans: Mapping[str, str], *, caller_id: str, trace_id: int
    ) -> None:
        """Lists a request as running, until `add` has its end."""
        self._running[id(record)] = record, sent, plans, caller_id, trace_id

    def running(self) -> list[ListedRequest]:
        """The requests that run now, those that have run longest first."""
        now, clock = time.time(), time.perf_counter()
        listed = []
        for record, sent, plans, caller_id, trace_id in islice(self._running.values(), MOST_RUNNING):
            tokens, events = sent()
            so_far = replace(record, sent_tokens=tokens, sent_events=events)
            plan = plans.get(record.endpoint, "")
            listed.append(_Seen(so_far, now, clock, plan, caller_id, trace_id, running=True).listed())
        return listed

    def running_counts(self) -> list[RunningCount]:
        """How many requests run now, and what they have cost so far: also those that `running` leaves out."""
        counts: dict[tuple[str, str, str], list[int]] = {}
        for record, sent, _, caller_id, _ in self._running.values():
            tokens, events = sent()
            count = counts.setdefault((record.endpoint, record.deployment, caller_id), [0, 0, 0])
            cost = 1, record.prompt_estimate or 0, tokens if tokens is not None else events or 0
            count[:] = map(add_up, count, cost)
        return [RunningCount(*where, *count) for where, count in counts.items()]

    def waiting(self) -> dict[tuple[str, str], list[float]]:
        """For how long, in seconds, the requests at each endpoint and deployment have waited for the first byte of an
        answer: since their arrival, for another deployment may have had them before."""
        return self._seconds_since(
            lambda record: record.started if record.sent is not None and record.first_byte is None else None
        )

    def paused(self) -> dict[tuple[str, str], list[float]]:
        """For how long, in seconds, streams have waited for another engine: by endpoint and deployment."""
        return self._seconds_since(lambda record: record.paused)

    def _seconds_since(self, begin: Callable[[Record], float | None]) -> dict[tuple[str, str], list[float]]:
        clock, found = time.perf_counter(), dict[tuple[str, str], list[float]]()
        for record, *_ in self._running.values():
            if (since := begin(record)) is not None:
                found.setdefault((record.endpoint, record.deployment), []).append(clock - since)
        return found

    def add(self, record: Record, *, plan: str, caller_id: str, trace_id: int) -> None:
        """Adds a request whose answer has ended. Those without valid credentials are counted alone, in
        `app.access.refusals`: anyone can send them."""
        self._running.pop(id(record), None)
        if record.error in SUMMED:
            return
        self.end += 1
        self._kept.append(_Seen(record, time.time(), time.perf_counter(), plan, caller_id, trace_id))
        if caller_id:
            self._count(record, caller_id)
            self.caller_use.count(record)

    def _count(self, record: Record, caller_id: str) -> None:
        if (use := self._uses.get(caller_id)) is None:
            if len(self._uses) >= MOST_CALLERS:
                return
            use = self._uses[caller_id] = CallerCounts(caller_id)
        add_to(use, record)

    def after(self, number: int) -> tuple[int, list[ListedRequest]]:
        """The kept requests from this number on, and the number of the first of them."""
        first = max(number, self.end - len(self._kept))
        return first, [seen.listed() for seen in islice(self._kept, len(self._kept) - (self.end - first), None)]

    def uses(self) -> list[CallerCounts]:
        """What each caller has used since the last `take_uses`."""
        return list(self._uses.values())

    def take_uses(self) -> list[CallerCounts]:
        """What each caller has used since the last call."""
        uses, self._uses = self._uses, {}
        return list(uses.values())


class _Seen(msgspec.Struct):
    """A request at its end, or while it runs: `now` in Unix time, `clock` in the record's. Most are dropped before
    anybody lists them."""

    record: Record
    now: float
    clock: float
    plan: str
    caller_id: str
    trace_id: int
    running: bool = False

    def listed(self) -> ListedRequest:
        """The request as it is reported."""
        record, started, usage, said = self.record, self.record.started, self.record.usage, self.record.said
        duration, lack = self.clock - started, record.lack

        def since_arrival(at: float | None) -> float | None:
            return at - started if at is not None else None

        pause_s, pauses, paused_s = record.pause_s, record.pauses, None
        if record.paused is not None:
            paused_s = self.clock - record.paused
            pause_s, pauses = pause_s + paused_s, (*pauses, (record.paused - started, paused_s))

        return ListedRequest(
            id=record.request_id,
            at=self.now - duration,
            dialect=record.dialect,
            operation=record.operation,
            status=record.status,
            duration_s=duration,
            endpoint=record.endpoint,
            deployment=record.deployment,
            caller=record.caller,
            caller_id=self.caller_id,
            reason=record.reason,
            plan=self.plan,
            error=record.error,
            stream=record.stream,
            attempts=record.attempts,
            failed_attempts=record.failed_attempts,
            engine=record.engine,
            moves=record.moves,
            pause_s=pause_s,
            pauses=pauses,
            paused_s=paused_s,
            admitted_s=since_arrival(record.admitted),
            lacked=(lack.since - started, (lack.until or self.clock) - started) if lack is not None else None,
            sent_s=since_arrival(record.sent),
            first_byte_s=since_arrival(record.first_byte),
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            completion_tokens=usage.completion_tokens if usage is not None else None,
            max_tokens=record.max_tokens,
            sent_tokens=record.sent_tokens,
            sent_events=record.sent_events,
            trace=f"{self.trace_id:032x}" if self.trace_id else "",
            message=said.text if said is not None else "",
            code=said.code if said is not None else "",
            type=said.type if said is not None else "",
            param=said.param if said is not None else "",
            is_engines=said is not None and said.is_engines,
            engine_message=said.engine_message if said is not None else "",
            running=self.running,
            text=record.text,
            own_limit_s=record.own_limit_s,
        )
