"""Records management calls, and hands the records over until they are durable.

Each record is a log line at once. The controller of experiments keeps it in the ledger's directory; a router without a
controller writes there itself. While the directory or the controller fails, records wait here and calls are served all
the same: a rollback must not depend on the log of rollbacks.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request as HTTPRequest

from app.aio import run_in_background
from app.exposures.audit import LONGEST, AuditRecord, Outcome, new_id
from app.telemetry.logs import Record, event

DURABLE_WITHIN_S = 2.0
"""The longest time that the answer to a change waits for its record."""
RETRY_S = 1.0
MOST_WAITING = 10_000
REFUSED_PER_MINUTE = 60
"""Refused calls of one caller that are recorded one by one. More are summed: nobody can bury what matters."""
_MINUTE_S = 60.0
_BATCH = 500
_log = logging.getLogger("switchyard")


@dataclass(slots=True)
class AuditedChange:
    """What a handler adds to the record of its call. `after`: what was changed. A call that `is_dry` leaves none: only
    the handler knows that it changes nothing."""

    experiment: str = ""
    reason: str | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    recorded: bool = False
    is_dry: bool = False


@dataclass(slots=True)
class _Refused:
    """The refused calls of one caller since `since`, and one like those that were not recorded."""

    since: float
    count: int = 0
    surplus: int = 0
    like: AuditRecord | None = field(default=None, repr=False)


class AuditLog:
    """`deliver` makes some records durable, or raises; `clock`: Unix seconds."""

    def __init__(self, deliver: Callable[[list[AuditRecord]], Awaitable[None]], clock: Callable[[], float]) -> None:
        self._deliver, self._clock = deliver, clock
        self._router = f"{socket.gethostname()}:{os.getpid()}"
        self._waiting: deque[AuditRecord] = deque(maxlen=MOST_WAITING)
        self._added, self._durable = asyncio.Event(), asyncio.Event()
        self._fails = False
        self._refused: dict[str, _Refused] = {}

    def add(self, request: HTTPRequest, record: Record, change: AuditedChange, status: int, error: str) -> None:
        """Records a call that `record` describes, and that is answered with `status` and this kind of `error`."""
        change.recorded = True
        done = status < 400 or change.after is not None  # also if its answer failed, or nobody waited for that
        outcome: Outcome = "accepted" if done else "refused" if status < 499 else "failed"
        now, headers = self._clock(), request.headers
        made = AuditRecord(
            id=new_id(now),
            at=now,
            action=record.operation,
            outcome=outcome,
            status=status,
            error=error,
            call=f"{request.method} {request.scope['path']}"[:LONGEST],  # `url` would be kept by a cache of the library
            caller=record.caller,
            address=request.client.host if request.client is not None else "",
            forwarded_for=", ".join(headers.getlist("x-forwarded-for"))[-LONGEST:],
            request_id=record.request_id,
            endpoint=record.endpoint,
            experiment=change.experiment,
            reason=change.reason,
            before=change.before,
            after=change.after,
            router=self._router,
        )
        if outcome == "accepted" or not self._is_surplus(made):
            self._append(made)

    async def durable(self) -> None:
        """Returns once everything that was added is durable, or after `DURABLE_WITHIN_S`; at once while that fails."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DURABLE_WITHIN_S):
                while self._waiting and not self._fails:
                    self._durable.clear()
                    await self._durable.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Delivers records while the block runs, and those that wait at its end."""
        async with run_in_background(self._run()):
            yield
        self._sum_up(float("inf"))
        with suppress(Exception):
            async with asyncio.timeout(DURABLE_WITHIN_S):
                while self._waiting:
                    await self._deliver_some()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_MINUTE_S):
                    await self._added.wait()
            self._added.clear()
            self._sum_up(self._clock())
            while self._waiting:
                try:
                    await self._deliver_some()
                except Exception as error:  # noqa: BLE001  whatever fails, the records wait
                    if not self._fails:
                        failed = event("audit_not_kept", waiting=len(self._waiting), error=type(error).__name__)
                        _log.warning("Records of the audit log cannot be stored and wait", extra=failed)
                    self._fails = True
                    self._durable.set()
                    await asyncio.sleep(RETRY_S)

    async def _deliver_some(self) -> None:
        batch = [self._waiting[index] for index in range(min(_BATCH, len(self._waiting)))]
        await self._deliver(batch)
        known = {record.id for record in batch}
        while self._waiting and self._waiting[0].id in known:
            self._waiting.popleft()
        self._fails = False
        self._durable.set()

    def _append(self, record: AuditRecord) -> None:
        _log.info("A management call", extra=event("audit", **msgspec.to_builtins(record)))
        self._waiting.append(record)
        self._added.set()

    def _is_surplus(self, record: AuditRecord) -> bool:
        self._sum_up(record.at)
        refused = self._refused.setdefault(record.caller, _Refused(record.at))
        refused.count += 1
        if refused.count <= REFUSED_PER_MINUTE:
            return False
        refused.surplus, refused.like = refused.surplus + 1, record
        return True

    def _sum_up(self, now: float) -> None:
        """Records what was too much in minutes that are over."""
        for caller, refused in list(self._refused.items()):
            if now - refused.since >= _MINUTE_S:
                del self._refused[caller]
                if refused.like is not None:
                    self._append(msgspec.structs.replace(refused.like, count=refused.surplus))
