"""What a router reports of its requests, as MessagePack. Numbers, names and error messages: no prompt, no key.

A report may come twice, as after a lost answer: requests have numbers that only rise, and counts a period of their own.
A router keeps counts until they are on disk, so that a controller that is killed takes none with it.
"""

import re

import msgspec
from msgspec.structs import replace

from app.errors import ROUTER_LOST, Outcome, outcome_of
from app.telemetry.logs import FailedAttempt

PERIOD_S = 10.0
"""Seconds that one entry of counts is about. Periods begin at multiples of it, in Unix time, on every router."""


LOST = "Its router ended before it. How long it took, and what its client got, is not known."

_ANSWER_ID = re.compile(r"[a-z]+[-_](.+?)(-[0-9a-f]{8})?")
"""An id in an answer: the API's prefix, the request's id, and often a number that vLLM adds."""


Kind = tuple[str, str, int, str]
"""What failures that are alike have in common: endpoint, deployment, status, error."""


class ListedRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of a client: its answer has ended, or it is `running`. Times are seconds since its arrival; None: it
    did not get there.

    `caller` is the caller's name, `caller_id` its unique id; both are "" if it is not known. `reason` is a
    `routing.traffic.Reason`, `error` a kind of `app.errors`, `trace` the hexadecimal id of its trace, "" without one.
    """

    id: str
    at: float
    """Unix seconds of its arrival, by the router's clock."""
    dialect: str
    operation: str
    status: int
    duration_s: float
    endpoint: str = ""
    deployment: str = ""
    caller: str = ""
    caller_id: str = ""
    reason: str = ""
    plan: str = ""
    error: str = ""
    stream: bool = False
    attempts: int = 0
    failed_attempts: tuple[FailedAttempt, ...] = ()
    engine: str = ""
    """The replica that has answered, "" if it has not told its name."""
    moves: int = 0
    """How often another engine has continued the stream."""
    pause_s: float = 0.0
    pauses: tuple[tuple[float, float], ...] = ()
    """When its client began to wait for another engine, and for how long: the first ones."""
    paused_s: float | None = None
    """For how long it has waited for another engine, if it does so now: the last of `pauses`, and a part of the sum."""
    admitted_s: float | None = None
    """The end of the wait for limits and the endpoint's queue."""
    lacked: tuple[float, float] | None = None
    """From when to when it waited for a replica while none ran: of one that waits still, until now."""
    sent_s: float | None = None
    """The last call of a deployment."""
    first_byte_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    max_tokens: int | None = None
    sent_tokens: int | None = None
    """Of a stream that runs, or whose engine has counted nothing: the tokens of the answer that were sent."""
    sent_events: int | None = None
    """The same for a stream whose tokens are not known: its events."""
    trace: str = ""
    message: str = ""
    """What its client was told of its failure: our own words, or the engine's, which are here only where the endpoint
    records texts; "" if they are not."""
    code: str = ""
    type: str = ""
    param: str = ""
    is_engines: bool = False
    """Whether the message is the engine's, which may quote the prompt."""
    engine_message: str = ""
    """The engine's own words for its failure, which may quote the prompt: only where the endpoint records texts."""
    running: bool = False
    """Whether its answer has not ended: `duration_s` is its age, and `status` is 0 before the answer has begun."""

    text: str = ""
    """What is recorded of its text: `whole`, `redacted`, or "" for none."""
    own_limit_s: float | None = None
    """The seconds that the request itself has allowed, if they were over before its end."""
    silent_s: float | None = None
    """Of one that runs: for how long its router has not been heard, if a report is missing."""

    @property
    def ended_at(self) -> float:
        """When its answer ended, in Unix seconds; of one that runs, when that was looked at."""
        return self.at + self.duration_s

    @property
    def outcome(self) -> Outcome:
        """What became of it, once it has ended."""
        return outcome_of(self.error, self.status)

    @property
    def failed(self) -> bool:
        """Whether its client got an error or an answer that was cut short, or left before its end."""
        return not self.running and self.outcome != "answered"

    def lost(self) -> "ListedRequest":
        """The request, which ran when its router was heard last, once that has ended: it took at least so long."""
        return replace(self, running=False, paused_s=None, error=ROUTER_LOST, message=LOST)

    def without_engines_words(self) -> "ListedRequest":
        """The request as it may be stored: an engine may have quoted the prompt."""
        return replace(self, message="" if self.is_engines else self.message, engine_message="")

    @property
    def kind(self) -> Kind:
        """The kind of its failure."""
        return self.endpoint, self.deployment, self.status, self.error

    def has_id(self, id: str) -> bool:
        """Whether this is the request's id, or the one in its answer."""
        parts = _ANSWER_ID.fullmatch(id)
        return id == self.id or (parts is not None and self.id in (parts[1], parts[1] + (parts[2] or "")))


class ArmCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One deployment's part of an endpoint's requests in a period, "" for those that none answered. `first_token`: the
    observations in each bucket of the histogram, without the empty buckets."""

    endpoint: str
    deployment: str
    requests: int = 0
    errors: int = 0
    refused: int = 0
    output_tokens: int = 0
    first_token: dict[int, int] = {}
    left: int = 0
    """Those whose clients left before the end."""
    longest_first_token_s: float = 0.0
    """The longest of `first_token`'s observations; 0 if it is not known."""
    lost: int = 0
    """Streams whose engine has died, also those of requests that still run."""
    down: tuple[float, float] | None = None
    """From when to when in the period no replica ran, in seconds since its beginning; the same twice: one always ran;
    None: the router does not say."""


class CallerCounts(msgspec.Struct, omit_defaults=True):
    """One caller's requests in a period, by its id."""

    caller_id: str
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class PeriodCounts(msgspec.Struct, frozen=True):
    """The counts of the period that begins at `at` (Unix seconds). `bounds` are the upper ends of the histogram's
    buckets in seconds, the last one infinite. `used`: when a key was used last, by its caller's id, where that has
    changed. `unauthorized`: the requests without valid credentials, by the reason in words."""

    at: float
    bounds: list[float]
    arms: list[ArmCounts]
    callers: list[CallerCounts]
    used: dict[str, float] = {}
    unauthorized: dict[str, int] = {}
    unknown_routes: dict[str, int] = {}
    """The requests for routes that there are not, by what was probably meant, in words."""

    @property
    def has_any(self) -> bool:
        """Whether there is anything to count."""
        return bool(self.arms or self.callers or self.used or self.unauthorized or self.unknown_routes)


class RunningCount(msgspec.Struct, frozen=True):
    """How many requests of a caller run at an endpoint and a deployment, and what they have cost so far, in tokens."""

    endpoint: str
    deployment: str
    caller_id: str
    requests: int
    prompt_tokens: int = 0
    output_tokens: int = 0


class ActivityReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. `router` is a random id of the process. `first`: the number of the first of `requests`. `keeper`:
    the one that the periods are for, which has all before them. `running`: the requests that run now, or the oldest.
    `served_s`: for how long a router has served without a pause: this one, or another one that ran when it began. None:
    it does not know yet, gets no requests yet, or is told to stop and gets none any more.

    `so_far`: the counts of the period that goes on, of the same requests that the router has listed. `running_counts`:
    all requests that run. Both count if no other report comes: as at the router's end, which it says (`is_last`) unless
    it is killed. `heard_at`: when a controller has heard of this, in Unix seconds, which has written it. `lost_until`:
    the report is a controller's own, of a router that it heard last then, and that ended by this time without a word.

    `outages`: what the router knows of those that go on, or have ended in the present period: endpoint, deployment, and
    from when to when no replica ran, in Unix seconds; infinite for one that goes on. None: it does not say.
    """

    router: str
    first: int
    requests: list[ListedRequest]
    periods: list[PeriodCounts]
    running: list[ListedRequest] = []
    keeper: str = ""
    served_s: float | None = None
    so_far: PeriodCounts | None = None
    running_counts: list[RunningCount] = []
    is_last: bool = False
    heard_at: float | None = None
    lost_until: float | None = None
    outages: list[tuple[str, str, float, float]] | None = None


class ReplicaStart(msgspec.Struct, frozen=True):
    """The start of a replica with an engine: at `at` (Unix seconds), ready `took_s` seconds later. `is_stopped`: it was
    seen to be told to stop, as at a deploy, a change of scale, or a drain of its node."""

    replica: str
    application: str
    at: float
    took_s: float
    is_stopped: bool = False


class Taken(msgspec.Struct, frozen=True):
    """The answer. `keeper` is a random id of who has taken the report, "" if it takes no periods yet. `saved`: it has
    written the router's periods up to this one (Unix seconds)."""

    keeper: str
    saved: float


encode = msgspec.msgpack.Encoder().encode
_report = msgspec.msgpack.Decoder(ActivityReport)
_reports = msgspec.msgpack.Decoder(list[ActivityReport])


def decode_taken(data: bytes) -> Taken:
    """Raises msgspec.DecodeError on anything else than an answer to a report."""
    return msgspec.json.decode(data, type=Taken)


def decode(data: bytes) -> ActivityReport:
    """Raises msgspec.DecodeError on anything else than a report."""
    return _report.decode(data)


def decode_all(data: bytes) -> list[ActivityReport]:
    """Raises msgspec.DecodeError on anything else than a list of reports."""
    return _reports.decode(data)
