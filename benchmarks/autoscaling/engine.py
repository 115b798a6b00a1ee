"""A model of vLLM replicas behind Serve: requests wait, prefill and decode, or are refused. Time advances in steps of
`STEP_S`. Nothing is random. The figures are those of an 8B model on a GPU with 24 GB, roughly; only ratios between
policies are of interest.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

STEP_S = 0.1

SLOTS = 64
"""`max_num_seqs`."""
CACHE_TOKENS = 60_000
PREFILL_TOKENS_PER_S = 8_000.0
MAX_ONGOING, MAX_QUEUED = 2 * SLOTS, 64
"""`max_ongoing_requests`, `max_queued_requests`."""


@dataclass(eq=False)
class Request:
    """Times are in seconds since the start of the trace. `written`: tokens of the answer so far."""

    at: float
    prompt_tokens: int
    output_tokens: int
    attempts: int = 0
    accepted_at: float = 0.0
    begun_at: float = 0.0
    read: float = 0.0
    written: float = 0.0
    first_token_at: float | None = None

    @property
    def cached(self) -> float:
        """Tokens in the KV cache."""
        return self.read + self.written


@dataclass(eq=False)
class Replica:
    """One replica; `name` is its id in Serve. It counts as a GPU from `started_at` until it is removed, and takes
    requests from `ready_at` on."""

    name: str
    started_at: float
    ready_at: float
    running: list[Request] = field(default_factory=list)
    waiting: deque[Request] = field(default_factory=deque)
    held: deque[Request] = field(default_factory=deque)
    draining: bool = False
    waited: float = 0.0
    begun: int = 0
    served: float = 0.0
    finished: int = 0

    def is_ready(self, now: float) -> bool:
        return now >= self.ready_at

    @property
    def ongoing(self) -> int:
        """Requests as Serve counts them: running or waiting in vLLM."""
        return len(self.running) + len(self.waiting)

    @property
    def connections(self) -> int:
        """All of its requests."""
        return self.ongoing + len(self.held)

    @property
    def is_empty(self) -> bool:
        return not (self.running or self.waiting or self.held)

    @property
    def cache_use(self) -> float:
        return min(1.0, sum(request.cached for request in self.running) / CACHE_TOKENS)

    def offer(self, request: Request, now: float) -> bool:
        """Accepts the request, or refuses it as Serve does when its queue is full."""
        request.accepted_at = now
        if self.ongoing < MAX_ONGOING:
            self.waiting.append(request)
        elif len(self.held) < MAX_QUEUED:
            self.held.append(request)
        else:
            return False
        return True

    def give_up(self) -> Request:
        """Gives the request away that came last of those that wait."""
        return (self.held or self.waiting).pop()

    def step(self, now: float) -> list[Request]:
        """Works for one step; returns the finished requests."""
        while self.held and self.ongoing < MAX_ONGOING:
            self.waiting.append(self.held.popleft())
        self._begin(now)
        budget = PREFILL_TOKENS_PER_S * STEP_S
        writing = 0
        for request in self.running:
            missing = request.prompt_tokens - request.read
            if missing > 0:
                taken = min(missing, budget)
                request.read += taken
                budget -= taken
            else:
                writing += 1
        tokens = STEP_S / (0.018 + 0.0007 * writing)
        for request in self.running:
            if request.read >= request.prompt_tokens:
                request.written += tokens
                if request.first_token_at is None:
                    request.first_token_at = now + STEP_S
        done = [request for request in self.running if request.written >= request.output_tokens]
        if done:
            self.served += sum(now - request.begun_at for request in done)
            self.finished += len(done)
            self.running = [request for request in self.running if request.written < request.output_tokens]
        return done

    def _begin(self, now: float) -> None:
        """Schedules as vLLM does: first come, first served, while there is a slot and room in the cache."""
        used = sum(request.prompt_tokens + request.output_tokens / 2 for request in self.running)
        while self.waiting and len(self.running) < SLOTS:
            size = self.waiting[0].prompt_tokens + self.waiting[0].output_tokens / 2
            if used + size > CACHE_TOKENS and self.running:
                return
            request = self.waiting.popleft()
            self.running.append(request)
            used += size
            self.waited += now - request.accepted_at
            self.begun += 1
            request.begun_at = now


def least_loaded(replicas: Iterable[Replica]) -> Replica | None:
    """HAProxy's choice: the fewest connections."""
    return min(replicas, key=lambda replica: replica.connections, default=None)
