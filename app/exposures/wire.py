"""Messages of routers to the controller: batches of starts and rows, as MessagePack. `acknowledgement` has its answers.

A **start** is recorded when a request's arm is drawn, a **row** when the request ends; both carry the request's `seq`,
which counts from 1 in each router process. No text, no user name, no key: `unit`, `caller` and `request` are hashes.

The controller's answer to a router's batch, as MessagePack: the batches that it has, and state for routers.
"""

from enum import IntEnum, IntFlag
from typing import NamedTuple

import msgspec

VERSION = 4
READABLE = frozenset({2, 3, VERSION})
"""The versions that a controller reads: routers are replaced one by one. Rows of 2 know no continued streams, and late
records of 3 no caller."""


class Reason(IntEnum):
    """The reason for the assigned deployment. Header and model are a client's choice, an override a manager's: flagged
    FORCED."""

    TRAFFIC = 0
    STICKY = 1
    HEADER = 2
    MODEL = 3
    OVERRIDE = 4
    PINNED = 5
    """The conversation started under other weights, and keeps its deployment."""


class FinishCode(IntEnum):
    """The answer's finish reason; NONE if the engine reported none."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    TOOL_CALLS = 3
    CONTENT_FILTER = 4
    ABORT = 5


class Failure(IntEnum):
    """The failure of the *assigned* deployment, even if another one answered; NONE: it did not fail.

    A client's 4xx is NONE. The names are those of `app.errors` kinds, by their meaning for the deployment.
    """

    NONE = 0
    UNREACHABLE = 1
    UNAVAILABLE = 2
    TIMEOUT = 3
    BROKEN = 4
    INCOMPLETE = 5
    OTHER = 6


class Flag(IntFlag):
    """Facts about an exposure."""

    FORCED = 1
    """The client named the deployment, or a manager gave it to the unit; never analysed."""
    CARRIED = 2
    """The conversation may have started under an earlier plan; left out of the analysis, not of guardrails."""
    INVALID_OUTPUT = 4
    """A JSON schema or a forced tool was asked for, and the whole answer does not parse."""
    EMPTY = 8
    """A successful answer without visible output and without a tool call."""
    CLIENT_GONE = 16
    OWN_EMPTY = 32
    """The request's own parameters, and no variant, may leave its answer empty: see `app.exposures.provoked`. This bit
    and the next ones take it out of the evidence about these events."""
    OWN_LENGTH = 64
    OWN_FORM = 128
    OWN_TIME = 256
    OWN_GAPS = 512
    OWN_FAILURE = 1024
    """Its client allows less than a second. Earlier versions say so of requests that failed, alone."""
    LONG = 2048
    """Its size, what it asks for, or its client's patience may make it slow or late on any variant."""
    SHARED = 4096
    """There are other callers. Without this bit a caller's evidence is not bounded: it harms nobody else."""


class LateKind(IntEnum):
    """Reports about a request before it ends, by the router's clock."""

    SLOW = 0
    """No first token within a guardrail's `ttft_above_s`."""
    UNFINISHED = 1
    """Not ended within `unfinished_above_s`."""
    SLOW_ANSWER = 2
    """An answer that is not streamed has not ended within a guardrail's `answer_above_s`."""


class Start(NamedTuple):
    """The draw of an arm. `plan` indexes the batch's `plans`, `assigned` its `names`."""

    seq: int
    at: float
    """Unix seconds of the request's arrival, by the router's clock."""
    unit: int
    plan: int
    assigned: int
    reason: int
    flags: int


class Row(NamedTuple):
    """One request that has ended. Indexes as in `Start`; `dialect`, `task` and `endpoint` index `names`, too.

    Times are in seconds, sizes in bytes; None where there is no value.
    """

    seq: int
    at: float
    request: int
    """`units.request_hash` of the request id."""
    answer: int
    """`units.request_hash` of the answer's body id (chatcmpl-…), 0 if it has none: feedback may name either."""
    unit: int
    caller: int
    plan: int
    assigned: int
    served: int
    """-1: no deployment answered."""
    reason: int
    dialect: int
    task: int
    stream: bool
    status: int
    error: int
    """A `Failure`."""
    attempts: int
    prompt_bytes: int
    max_tokens: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    ttft_s: float | None
    """The time from the arrival to the first token of a stream; None for whole answers."""
    duration_s: float
    itl_mean_s: float | None
    itl_max_s: float | None
    finish: int
    turn: int
    """Assistant messages in the request."""
    in_flight: int
    """Requests on this router at arrival that were assigned to the same deployment, of recorded endpoints."""
    cold: bool
    """The replica was younger than 60 s."""
    flags: int
    group: int = -1
    """The caller's group, an index like `endpoint`'s; -1: it is in none."""
    moves: int = 0
    """How often another engine continued the stream. `error` is the first engine's failure then."""
    pause_s: float = 0.0
    """How long it had no token: from the last one before those to the first one after."""


class OverdueRequest(NamedTuple):
    """A request that is late, reported while it runs. At most one per kind, limit and request."""

    kind: int
    above_s: float
    """The limit that it passed."""
    seq: int
    at: float
    unit: int
    plan: int
    assigned: int
    flags: int
    caller: int = 0
    """As in `Row`; 0 in records of earlier versions."""


class Skip(IntEnum):
    """The reason why a request drawn for mirroring was not copied; NONE: it was."""

    NONE = 0
    BUDGET = 1
    """`tokens_per_minute` is spent."""
    QUEUE_FULL = 2
    """Too many copies wait, or they take too much memory."""
    REQUEST_TOO_LARGE = 3
    ANSWER_TOO_LARGE = 4
    SEVERAL_REQUESTS = 5
    """The operation takes more than one call of the engine."""
    BOUND_TO_MODEL = 6
    """The engine's request was made for the primary's model: it holds tokens."""
    PRIMARY_FAILED = 7
    """It failed, or its client disconnected before the end: there is nothing to compare with."""
    CARRIED = 8
    """Its conversation may have started under other weights."""
    STOPPED = 9
    """The experiment's controller has stopped the shadow."""
    BREAKER_OPEN = 10
    """The shadow has failed several times in a row."""
    SHUTDOWN = 11


class Plan(msgspec.Struct, frozen=True):
    """One version of an endpoint's weights. `id` is ``<generation>-<8 hex digits>`` of the canonical content."""

    endpoint: str
    id: str
    weights: dict[str, int]


class Pair(NamedTuple):
    """A mirrored request: the shadow's answer against the primary's. Indexes as in `Row`; None where there is no value.

    Differences are shadow minus primary, in seconds or tokens per second, both counted from the call of the engine.
    Comparisons are 1 (as wanted) or 0.
    """

    seq: int
    """The `seq` of the primary's request."""
    at: float
    unit: int
    plan: int
    primary: int
    """The deployment that answered."""
    shadow: int
    status: int = 0
    """The shadow's HTTP status, as the router would have passed it on; 0 without an answer."""
    error: int = 0
    """A `Failure` of the shadow."""
    tokens: int | None = None
    """Tokens that the shadow's call cost."""
    equal: int | None = None
    """The same texts and tool calls."""
    equal_words: int | None = None
    """Equal except for white space."""
    length_ratio: float | None = None
    """Characters of the shadow's answer by those of the primary's."""
    same_finish: int | None = None
    valid: int | None = None
    """Whether the shadow kept the form that the request demands; None: it demands none."""
    same_tools: int | None = None
    """Tool calls with the same names and arguments; None: neither has any."""
    cosine: float | None = None
    """Mean over the embeddings; None, too, where they have another number of dimensions."""
    ttft_s: float | None = None
    duration_s: float | None = None
    tokens_per_s: float | None = None
    primary_valid: int | None = None
    finish: int = 0
    """A `FinishCode` of the shadow."""
    primary_finish: int = 0
    visible: int | None = None
    """The shadow's answer has text other than white space, or a tool call."""
    primary_visible: int | None = None
    skipped: int = 0
    """A `Skip`. Other than 0, nothing was sent, and the record says nothing about the shadow."""


class FeedbackItem(msgspec.Struct, frozen=True):
    """A caller's score for an answer. `caller` is 0 for a manager, who may score every answer."""

    at: float
    request: int
    caller: int
    metric: str
    value: float


class Pins(msgspec.Struct, frozen=True):
    """Conversations that started after a change of an endpoint's traffic, with their deployment.

    `conversations` are `Hashes.conversation`. `until`: Unix seconds; it counts for all pins of the endpoint, and may be
    sent without conversations and deployment.
    """

    endpoint: str
    deployment: str
    until: float
    conversations: list[int]


class Lost(msgspec.Struct, frozen=True):
    """Rows that this router dropped since its start, because the buffer was full: cumulative."""

    endpoint: str
    deployment: str
    rows: int


class Batch(msgspec.Struct, frozen=True):
    """One message of a router. `(router, number)` identifies it: repeats are harmless."""

    version: int
    router: str
    """A random id of the router process."""
    number: int
    """1, 2, 3, … without gaps, except for batches that were dropped. 0: nothing is recorded, the router only
    asks for stops and pins; such a batch is never kept."""
    oldest: int
    """The lowest number that the router still keeps, this batch included: every lower one is durable or dropped. By it
    the controller distinguishes a gap that will be filled (it restarted) from one that will not."""
    sent_at: float
    """The router's clock, so that the controller can compute its offset."""
    names: list[str]
    plans: list[Plan]
    starts: list[Start]
    rows: list[Row]
    late: list[OverdueRequest]
    feedback: list[FeedbackItem]
    lost: list[Lost]
    pairs: list[Pair] = []
    pins: list[Pins] = []
    """Pins made by this router that the controller may not have yet."""
    pins_seen: int = 0
    """The position up to which the router has read the controller's pins: the last `Acknowledgement.pins_end`."""
    hashed: str = ""
    """Of the secret with which units are hashed: `Hashes.secret_id`. Empty in earlier versions, and before any was."""


class SealedBatch(msgspec.Struct, frozen=True):
    """A batch with its parts encoded. Fields that depend on the moment of sending are added then: `encode_sealed`."""

    number: int
    names: msgspec.Raw
    plans: msgspec.Raw
    starts: msgspec.Raw
    rows: msgspec.Raw
    late: msgspec.Raw
    feedback: msgspec.Raw
    pairs: msgspec.Raw

    @property
    def size(self) -> int:
        """The size in bytes, nearly that of the sent form."""
        parts = (self.names, self.plans, self.starts, self.rows, self.late, self.feedback, self.pairs)
        return 128 + sum(map(len, parts))


class _SealedBatch(msgspec.Struct, frozen=True):
    """A `Batch` on the wire, made of a `SealedBatch`."""

    version: int
    router: str
    number: int
    oldest: int
    sent_at: float
    names: msgspec.Raw
    plans: msgspec.Raw
    starts: msgspec.Raw
    rows: msgspec.Raw
    late: msgspec.Raw
    feedback: msgspec.Raw
    pairs: msgspec.Raw
    lost: list[Lost]
    pins: list[Pins]
    pins_seen: int
    hashed: str


encoder = msgspec.msgpack.Encoder()
_batches = msgspec.msgpack.Decoder(Batch)


def encode(batch: Batch) -> bytes:
    """The batch as MessagePack."""
    return encoder.encode(batch)


def encode_sealed(
    batch: SealedBatch,
    *,
    router: str,
    oldest: int,
    sent_at: float,
    lost: list[Lost],
    pins: list[Pins] = [],  # noqa: B006  it is not changed
    pins_seen: int = 0,
    hashed: str = "",
) -> bytes:
    """The same bytes as of a `Batch` with these fields."""
    sealed = _SealedBatch(
        VERSION,
        router,
        batch.number,
        oldest,
        sent_at,
        batch.names,
        batch.plans,
        batch.starts,
        batch.rows,
        batch.late,
        batch.feedback,
        batch.pairs,
        lost,
        pins,
        pins_seen,
        hashed,
    )
    return encoder.encode(sealed)


def decode_batch(data: bytes) -> Batch:
    """Raises msgspec.DecodeError on anything else than a batch."""
    return _batches.decode(data)


class TrafficBlock(msgspec.Struct, frozen=True):
    """A treatment that gets no traffic any more: its weight is control's, until a plan has the same effect.

    On the wire, in the journal and for users it is a stop.
    """

    id: str
    endpoint: str
    deployment: str
    control: str


class Replaced(msgspec.Struct, frozen=True):
    """Percentages of an endpoint that running conversations still follow under the present plan, whose `id` as
    `plans.plan_of` has it is `plan`. `until`: Unix seconds. `withdrawn`: deployments that they have left since, each
    with the one that got them."""

    endpoint: str
    plan: str
    weights: dict[str, int]
    until: float
    withdrawn: dict[str, str] = {}


class Acknowledgement(msgspec.Struct, frozen=True):
    """The controller's answer to a batch.

    `received` and `durable`: every batch of this router up to that number has arrived, or is durably in the ledger's
    directory (dropped ones apart: see `Batch.oldest`). A router keeps batches that are not durable, and sends the kept
    batches above `received` in order. `received` goes back where a controller restarted, or recovered from a failed
    directory.
    """

    received: int
    durable: int
    controller: str = ""
    """A random id of the controller's process. Another process has no pins: routers send theirs again, and read
    from 0."""
    stops: list[TrafficBlock] = []
    """All stops that are in force."""
    pins: list[Pins] = []
    """Pins of other routers, after `Batch.pins_seen`; not necessarily all of them at once."""
    pins_end: int = 0
    windows: dict[str, float] = {}
    """Endpoints that have changed on any router, each with the end of the time in which running conversations keep
    their deployment, in Unix seconds."""
    routers: int = 1
    """Routers that report to the controller now."""
    replaced: list[Replaced] = []
    """Weights replaced by plans that do not list them, an endpoint's oldest first: for routers that have started
    since."""


_acknowledgements = msgspec.msgpack.Decoder(Acknowledgement)


def encode_acknowledgement(acknowledgement: Acknowledgement) -> bytes:
    """The acknowledgement as MessagePack."""
    return encoder.encode(acknowledgement)


def decode_acknowledgement(data: bytes) -> Acknowledgement:
    """Raises msgspec.DecodeError on anything else."""
    return _acknowledgements.decode(data)
