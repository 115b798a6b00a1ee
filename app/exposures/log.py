"""Records the requests of recorded endpoints: starts, rows, late requests and feedback.

Everything here is synchronous and runs on the router's event loop; `sender.Sender` sends the batches.

- The batch that is being filled. Entries are encoded as they come: as objects they would take ten times the memory.
- The batches that a router keeps until they are durable at the controller, within a bound.
- Makes the row of an exposure that has ended. Pure.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from app.config.schema import Config
from app.engine.output import Usage, is_kept
from app.exposures.exposure import Arrival, ArrivalRecord, Exposure
from app.exposures.identity import Hashes, request_hash, turns
from app.exposures.plans import RecordingScope, plans_of, scopes
from app.exposures.provoked import in_a_hurry, provoked
from app.exposures.wire import (
    Acknowledgement,
    Failure,
    FeedbackItem,
    Flag,
    Lost,
    OverdueRequest,
    Pair,
    Pins,
    Plan,
    Reason,
    SealedBatch,
    encode_sealed,
    encoder,
)

Arm = tuple[str, str]
"""An endpoint and the assigned deployment."""

_MOST_IN_SHORT_HEADER = 0xFFFF


class _Names(dict[str, int]):
    """The index of each name; a new name gets the next."""

    def __missing__(self, name: str) -> int:
        index = self[name] = len(self)
        return index


class _Entries:
    """An array of MessagePack that grows."""

    def __init__(self) -> None:
        self.count = 0
        self._encoded = bytearray()

    def add(self, entry: tuple[object, ...] | FeedbackItem) -> None:
        """Adds an entry: feedback, or the fields of a `wire.Start`, `Row`, `OverdueRequest` or `Pair`."""
        self.count += 1
        encoder.encode_into(entry, self._encoded, -1)

    def array(self) -> msgspec.Raw:
        """The whole array: its header (array 16 or 32), and the entries."""
        short = self.count <= _MOST_IN_SHORT_HEADER
        header = b"\xdc" + self.count.to_bytes(2) if short else b"\xdd" + self.count.to_bytes(4)
        return msgspec.Raw(header + self._encoded)


class OpenBatch:
    """Collects entries, and the names and plans that they index: `names[…]`, `plan(…)`. `arms` counts its rows."""

    def __init__(self) -> None:
        self.names = _Names()
        self.starts, self.rows, self.late = _Entries(), _Entries(), _Entries()
        self.feedback, self.pairs = _Entries(), _Entries()
        self.arms: Counter[Arm] = Counter()
        self._plans: dict[str, int] = {}
        self._plan_list: list[Plan] = []

    def __len__(self) -> int:
        return sum(entries.count for entries in self._parts)

    @property
    def _parts(self) -> tuple[_Entries, ...]:
        return self.starts, self.rows, self.late, self.feedback, self.pairs

    def plan(self, plan: Plan) -> int:
        """The index of a plan. Its id is that of one endpoint: the endpoint's name is part of the hashed content."""
        if (index := self._plans.get(plan.id)) is None:
            index = self._plans[plan.id] = len(self._plans)
            self._plan_list.append(plan)
        return index

    def sealed(self, number: int) -> SealedBatch:
        """The batch in the form in which it is stored and sent."""
        names, plans = msgspec.Raw(encoder.encode(list(self.names))), msgspec.Raw(encoder.encode(self._plan_list))
        return SealedBatch(number, names, plans, *(entries.array() for entries in self._parts))


# Beyond the bound the oldest whole batch is dropped, which is blind to arms, and its rows are counted as lost. Those of
# a batch that the controller had received are at risk instead: it cannot be sent again, and is lost if the controller
# restarts, or takes back that it has it, before a later batch is durable. A controller stores batches in order.


class _Kept(NamedTuple):
    batch: SealedBatch
    arms: Mapping[Arm, int]


class Backlog:
    """Batches in the order of their numbers. `limit_bytes` may change at any time.

    `lost` are the dropped rows by arm, since the start. `in_flight` is the number of the batch that is being sent,
    which is never dropped: it may arrive.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.lost: Counter[Arm] = Counter()
        self.in_flight: int | None = None
        self.size = 0
        """The size in bytes."""
        self._kept: deque[_Kept] = deque()
        self._received = 0
        self._at_risk: Counter[Arm] = Counter()
        self._controller: str | None = None
        """The process that sent the last acknowledgement."""

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[SealedBatch]:
        return (kept.batch for kept in self._kept)

    @property
    def oldest(self) -> int:
        """The lowest number that is kept; 0 without any."""
        return self._kept[0].batch.number if self._kept else 0

    def add(self, batch: SealedBatch, arms: Mapping[Arm, int]) -> None:
        """Keeps the newest batch; drops old ones if there is no room for all."""
        self._kept.append(_Kept(batch, arms))
        self.size += batch.size
        while self.size > self.limit_bytes and self._drop_oldest():
            pass

    def next(self) -> SealedBatch | None:
        """The first batch that the controller has not received."""
        return next((kept.batch for kept in self._kept if kept.batch.number > self._received), None)

    def unconfirmed(self) -> SealedBatch | None:
        """The first batch that is not known to be durable: sending it again makes the controller report its state."""
        return self._kept[0].batch if self._kept else None

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Drops durable batches. `received` may go back: the controller has restarted."""
        has_restarted = self._controller not in (None, acknowledgement.controller)
        if has_restarted or acknowledgement.received < self._received:
            self.lost.update(self._at_risk)
            self._at_risk.clear()
        self._received, self._controller = acknowledgement.received, acknowledgement.controller
        while self._kept and self._kept[0].batch.number <= acknowledgement.durable:
            self.size -= self._kept.popleft().batch.size
            self._at_risk.clear()

    def _drop_oldest(self) -> bool:
        at = next((at for at, kept in enumerate(self._kept) if kept.batch.number != self.in_flight), None)
        if at is None:
            return False
        dropped = self._kept[at]
        del self._kept[at]
        self.size -= dropped.batch.size
        (self._at_risk if dropped.batch.number <= self._received else self.lost).update(dropped.arms)
        return True


_MAX_U8, _U16_MAX, _MAX_U32 = 2**8 - 1, 2**16 - 1, 2**32 - 1
_NO_FAILURE = Failure.NONE.value


class RequestEnd(msgspec.Struct, frozen=True):
    """The end of a request.

    `complete`: the client has a whole answer. `gone`: it closed the connection.
    `invalid`: the answer does not have the form that the request asked for. `moves` and `pause_s`: how often another
    engine continued its stream, and the time between the tokens before and after.
    """

    status: int
    duration_s: float
    attempts: int = 1
    usage: Usage | None = None
    max_tokens: object = None
    complete: bool = True
    gone: bool = False
    invalid: bool = False
    moves: int = 0
    pause_s: float = 0.0


def row_of(exposure: Exposure, ending: RequestEnd, batch: OpenBatch) -> tuple[object, ...]:
    """The fields of a `wire.Row`, with indexes into `batch`: a plain tuple is made in half the time."""
    arrival, identity, usage = exposure.arrival, exposure.identity, ending.usage
    assert identity is not None, "starts are recorded before rows"
    names, prompt_tokens, completion_tokens = batch.names, None, None
    if usage is not None:
        prompt_tokens = usage.prompt_tokens if usage.prompt_tokens < _MAX_U32 else _MAX_U32
        completion_tokens = usage.completion_tokens if usage.completion_tokens < _MAX_U32 else _MAX_U32
    first_token, attempts, flags = exposure.first_token, ending.attempts, identity.flags
    prompt_bytes, in_flight, max_tokens = arrival.prompt_bytes, exposure.in_flight, ending.max_tokens
    if max_tokens is not None:
        # JSON numbers are unbounded; the columns are not.
        max_tokens = min(max_tokens, _MAX_U32) if type(max_tokens) is int and max_tokens >= 0 else None
    if ending.gone:
        flags |= Flag.CLIENT_GONE
    if ending.invalid:
        flags |= Flag.INVALID_OUTPUT
    if exposure.gave_up:
        flags |= Flag.LONG.value
    if ending.complete and exposure.path and not (exposure.is_visible or exposure.is_broken):
        flags |= Flag.EMPTY
    failure = exposure.failure
    if ending.status >= 500 and failure == _NO_FAILURE:  # a bug of the router's
        failure = Failure.OTHER.value
    return (
        exposure.seq,
        identity.at,
        identity.request,
        exposure.answer_id,
        identity.unit,
        identity.caller,
        batch.plan(exposure.scope.plan),
        names[arrival.assigned],
        names[exposure.served] if exposure.served else -1,
        identity.reason,
        names[arrival.dialect],
        names[arrival.task],
        arrival.stream,
        ending.status,
        failure,
        attempts if attempts < _MAX_U8 else _MAX_U8,
        prompt_bytes if prompt_bytes < _MAX_U32 else _MAX_U32,
        max_tokens,
        prompt_tokens,
        completion_tokens,
        first_token,
        ending.duration_s,
        exposure.itl_mean(completion_tokens) if first_token is not None else None,
        exposure.itl_max if first_token is not None else None,
        exposure.finish,
        identity.turn,
        in_flight if in_flight < _U16_MAX else _U16_MAX,
        exposure.is_cold,
        flags,
        names[arrival.group] if arrival.group else -1,
        ending.moves if ending.moves < _MAX_U8 else _MAX_U8,
        ending.pause_s,
    )


MOST_ENTRIES = 4096
"""The most entries of one batch (starts, rows and the rest), apart from the last few."""

_MOST_UNCHECKED = 64
"""Answers that wait for the check of their form; of more, it is not checked."""

AT_ONCE = 32
"""Requests whose entries are made together: one after the other they cost less than each in its own time, and all of
them take the event loop less than half a millisecond."""

_ENTRY_BYTES = 160
_MAX_U16 = 2**16 - 1
_FORCED = (Reason.HEADER, Reason.MODEL, Reason.OVERRIDE)
_REASONS: Mapping[str, tuple[int, int]] = {
    reason.name.lower(): (reason.value, Flag.FORCED.value if reason in _FORCED else 0) for reason in Reason
}
"""The reason, and the flags that it brings: plain numbers, since those of enumerations are slow."""


class ExposureLog:
    """One router process's exposures, until they are durable elsewhere.

    `secret_of` returns the secret of the hashes for the ledger's URL; it is called once, when the first endpoint is
    recorded or has overrides. `enabled` False: there is no controller, and nothing is recorded. `clock`: Unix seconds.
    """

    def __init__(
        self, secret_of: Callable[[str], bytes], *, enabled: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self.router = os.urandom(8).hex()
        self.backlog = Backlog(limit_bytes=0)
        self.rows: Counter[Arm] = Counter()
        """The rows recorded since the start, in sealed batches."""
        self.hashes: Hashes | None = None
        """Hashes of units and callers; None before anything is recorded."""
        self.unchecked: list[tuple[Exposure, RequestEnd]] = []
        """Requests that have ended and whose answer's form is to be checked."""
        self._secret_of, self._enabled, self._clock = secret_of, enabled, clock
        self._url = ""
        self._hashes: Hashes | None = None
        self._plans: dict[str, str] = {}
        self._carried_until: dict[str, float] = {}
        self._open = OpenBatch()
        self._started: list[Exposure] = []
        self._ended: list[tuple[Exposure, RequestEnd]] = []
        self._requests: dict[int, Exposure] = {}
        self._in_flight: dict[str, int] = {}
        """Recorded requests by the deployment that they were assigned to."""
        self._seq = self._number = 0
        self._epoch = clock() - time.perf_counter()
        self._most_entries = MOST_ENTRIES

    def configure(
        self,
        config: Config,
        plans: Mapping[str, Plan] | None = None,
        carried_until: Mapping[str, float] = {},
        now: float | None = None,
        *,
        settles: Mapping[str, float] = {},
    ) -> Mapping[str, RecordingScope]:
        """The recorded scopes of `config`, by endpoint. `plans`: those that decide, if not the configuration's own.
        `carried_until`: the time until which running conversations follow earlier weights, `settles`: the one until
        which new ones do. `now`: in Unix seconds.
        """
        self._url = config.ledger.url
        if not self._enabled:
            return {}
        now = self._clock() if now is None else now
        plans = plans_of(config) if plans is None else plans
        changed = [name for name, plan in plans.items() if self._plans.get(name, plan.id) != plan.id]
        self._carried_until |= {name: now + config.endpoints[name].pin_s for name in changed}
        for name, until in carried_until.items():
            self._carried_until[name] = max(until, self._carried_until.get(name, until))
        self._plans |= {name: plan.id for name, plan in plans.items()}
        self.backlog.limit_bytes = config.ledger.buffer_bytes
        self._most_entries = min(MOST_ENTRIES, config.ledger.buffer_bytes // (8 * _ENTRY_BYTES))
        arms = scopes(config, plans, self._carried_until, settles)
        if arms:
            self.hashes = self._made_hashes()
        return arms

    def unit(self, key: str) -> int:
        """The hash of a sticky key, whether or not anything is recorded."""
        return self._made_hashes().unit(key)

    def conversation(self, caller: str, key: str) -> int:
        """The hash of a caller's conversation."""
        return self._made_hashes().conversation(caller, key)

    def _made_hashes(self) -> Hashes:
        if self._hashes is None:
            self._hashes = Hashes(self._secret_of(self._url))
        return self._hashes

    def start(self, scope: RecordingScope, arrival: Arrival) -> Exposure:
        """Records the draw of an arm."""
        assigned = arrival.assigned
        self._seq = seq = self._seq + 1
        in_flight = self._in_flight.get(assigned, 0)
        self._in_flight[assigned] = in_flight + 1
        due = scope.first_due[arrival.stream]
        exposure = self._requests[seq] = Exposure(scope, arrival, seq, in_flight, due)
        self._started.append(exposure)
        if len(self._started) >= 2 * AT_ONCE:
            self.catch_up()
        return exposure

    def finish(self, exposure: Exposure, ending: RequestEnd) -> None:
        """Records the row of a request that has ended, now or after its answer has been checked."""
        if self._requests.pop(exposure.seq, None) is None:
            return
        self._in_flight[exposure.arrival.assigned] -= 1
        self._ended.append((exposure, ending))
        if len(self._ended) >= AT_ONCE:
            self.catch_up()

    def catch_up(self) -> None:
        """Makes entries of the requests that have started and ended since the last time."""
        started, ended = self._started, self._ended
        self._started, self._ended = [], []
        if started:
            self._record_starts(started)
        for exposure, ending in ended:
            exposure.conclude()
            if exposure.kept and ending.complete and len(self.unchecked) < _MOST_UNCHECKED:
                self.unchecked.append((exposure, ending))
            else:
                self._record(exposure, ending)
        self._seal_if_full()

    def check(self, count: int) -> list[bool]:
        """Whether the first `count` unchecked answers are invalid. Takes up to milliseconds; for a thread."""
        invalid: list[bool] = []
        for exposure, _ in self.unchecked[:count]:
            kept = exposure.promise is None or is_kept(
                exposure.promise, bytes(exposure.kept or b""), stream=exposure.arrival.stream
            )
            invalid.append(not kept)
        return invalid

    def checked(self, invalid: Sequence[bool]) -> None:
        """Records the rows of the first unchecked answers."""
        ended = self.unchecked[: len(invalid)]
        del self.unchecked[: len(invalid)]
        for (exposure, ending), is_invalid in zip(ended, invalid, strict=True):
            self._record(exposure, msgspec.structs.replace(ending, invalid=is_invalid))
        self._seal_if_full()

    def unit_of(self, exposure: Exposure) -> int:
        """The hash of the exposure's unit, before its start is recorded."""
        assert self.hashes is not None, "there is a scope"
        key = exposure.arrival.key
        return self.hashes.unit(key if key is not None else f"\0{self.router}:{exposure.seq}")

    def identity_of(self, exposure: Exposure) -> ArrivalRecord:
        """The request's identity, without names."""
        if exposure.identity is None:
            self.catch_up()
        assert exposure.identity is not None, "every start is recorded"
        return exposure.identity

    def pair(self, exposure: Exposure, primary: str, shadow: str, values: Mapping[str, Any]) -> None:
        """Records the outcome of a mirrored request. `values` are the other fields of `wire.Pair`."""
        identity, batch = self.identity_of(exposure), self._open
        plan = batch.plan(exposure.scope.plan)
        names = batch.names[primary], batch.names[shadow]
        batch.pairs.add(Pair(exposure.seq, identity.at, identity.unit, plan, *names, **values))
        self._seal_if_full()

    def feedback(self, items: Sequence[FeedbackItem]) -> None:
        """Records scores of answers."""
        for item in items:
            self._open.feedback.add(item)
            self._seal_if_full()

    def record_overdue(self, now: float) -> None:
        """Records the running requests that have passed a limit. `now` is in seconds of `time.perf_counter`.

        Called every second or so, it also follows adjustments of the wall clock.
        """
        self._epoch = self._clock() - time.perf_counter()
        self.catch_up()
        for exposure in self._requests.values():
            age = now - exposure.arrival.started
            if age > exposure.due and (identity := exposure.identity) is not None:
                at, unit, flags, caller = identity.at, identity.unit, identity.flags, identity.caller
                batch = self._open
                plan, assigned = batch.plan(exposure.scope.plan), batch.names[exposure.arrival.assigned]
                for kind, limit in exposure.late(age):
                    batch.late.add(OverdueRequest(kind, limit, exposure.seq, at, unit, plan, assigned, flags, caller))
                self._seal_if_full()

    def seal(self) -> None:
        """Ends the open batch, if there is anything in it."""
        self.catch_up()
        self._seal()

    def _seal(self) -> None:
        if len(self._open):
            self._number += 1
            self.rows.update(self._open.arms)
            self.backlog.add(self._open.sealed(self._number), self._open.arms)
            self._open = OpenBatch()

    def encoded(self, batch: SealedBatch, pins: Sequence[Pins] = (), pins_seen: int = 0) -> bytes:
        """A batch of the backlog, or `idle`, as it is sent now."""
        lost = [Lost(endpoint, deployment, rows) for (endpoint, deployment), rows in self.backlog.lost.items()]
        oldest = self.backlog.oldest or batch.number or self._number + 1
        if batch.number:
            oldest = min(oldest, batch.number)
        return encode_sealed(
            batch,
            router=self.router,
            oldest=oldest,
            sent_at=self._clock(),
            lost=lost,
            pins=list(pins),
            pins_seen=pins_seen,
            hashed=self._hashes.secret_id if self._hashes is not None else "",
        )

    def idle(self) -> SealedBatch:
        """An empty batch, to get the controller's stops and pins."""
        return OpenBatch().sealed(0)

    def _record_starts(self, started: Sequence[Exposure]) -> None:
        assert self.hashes is not None, "there is a scope"
        batch, epoch, unit_hash, caller_hash = self._open, self._epoch, self.hashes.unit, self.hashes.caller
        names, starts = batch.names, batch.starts
        for exposure in started:
            arrival, scope, seq = exposure.arrival, exposure.scope, exposure.seq
            (reason, flags), key = _REASONS[arrival.reason], arrival.key
            turn, at = turns(arrival.task, arrival.body), epoch + arrival.started
            if at < scope.settles_at or (turn and scope.carried_until is not None and at < scope.carried_until):
                flags |= Flag.CARRIED.value
            if arrival.is_shared:
                flags |= Flag.SHARED.value
            flags |= provoked(arrival.body, arrival.prompt_bytes, stream=arrival.stream)
            if arrival.patience_s is not None:
                flags |= in_a_hurry(arrival.patience_s)
            unit = unit_hash(key if key is not None else f"\0{self.router}:{seq}")  # as `unit_of`
            turn = turn if turn < _MAX_U16 else _MAX_U16
            request, caller = request_hash(arrival.request_id), caller_hash(arrival.caller)
            exposure.identity = ArrivalRecord(at, request, unit, caller, reason, turn, flags)
            starts.add((seq, at, unit, batch.plan(scope.plan), names[arrival.assigned], reason, flags))

    def _record(self, exposure: Exposure, ending: RequestEnd) -> None:
        batch, arm = self._open, (exposure.scope.plan.endpoint, exposure.arrival.assigned)
        batch.rows.add(row_of(exposure, ending, batch))
        batch.arms[arm] += 1

    def _seal_if_full(self) -> None:
        if len(self._open) >= self._most_entries:
            self._seal()
