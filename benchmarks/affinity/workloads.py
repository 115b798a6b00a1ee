"""Conversations as segments of tokens: a prefix cache can save the segments that a request repeats."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.affinity.policies import Key


@dataclass(frozen=True, slots=True)
class Workload:
    """`at_once` requests run at any time; the conversation that has waited longest has the next turn. In tokens:
    `shared` is a system prompt, of which there are `prompts`; `first` is the first user message, `turn` each later one,
    `answer` each answer. `keys`: the number of different beginnings of conversations; None: each has its own.
    Each request comes to one of `routers` by chance, which knows its own running requests, or all (`knows_all`).
    """

    name: str
    conversations: int
    turns: int
    at_once: int
    replicas: int
    shared: int = 0
    prompts: int = 1
    first: int = 200
    turn: int = 100
    answer: int = 60
    keys: int | None = None
    routers: int = 1
    knows_all: bool = False


WORKLOADS: Sequence[Workload] = (
    Workload("64 conversations, 16 at once", 64, 6, 16, 4),
    Workload("64 conversations, 12 at once", 64, 6, 12, 4),
    Workload("the same with a system prompt of 2,000 tokens, 16 at once", 64, 6, 16, 4, shared=2000),
    Workload("64 conversations, 16 system prompts of 2,000 tokens, 16 at once", 64, 6, 16, 4, shared=2000, prompts=16),
    Workload("64 conversations, 4 at once", 64, 6, 4, 4),
    Workload("1,000 conversations, 128 at once, 8 replicas", 1000, 6, 128, 8),
    Workload("64 conversations, 16 at once, over three routers", 64, 6, 16, 4, routers=3),
    Workload("64 conversations, 16 at once, over three routers that know all", 64, 6, 16, 4, routers=3, knows_all=True),
    Workload("one beginning of 1,000 tokens for all, single turns, 40 at once", 600, 1, 40, 4, keys=1, first=1000),
)


@dataclass(frozen=True, slots=True)
class Request:
    """`chain`: the prompt's segments, each an id with its tokens. `adds`: the segment that the answer adds."""

    conversation: int
    turn: int
    chain: tuple[tuple[str, int], ...]
    adds: tuple[str, int]

    @property
    def tokens(self) -> int:
        """The prompt's."""
        return sum(tokens for _, tokens in self.chain)


class Conversations:
    """Gives the next requests of a workload; `done` puts a conversation back for its next turn."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload, self._random = workload, random.Random(seed)
        self._ready = [(number, 0) for number in range(workload.conversations)]
        self._chains: dict[int, tuple[tuple[str, int], ...]] = {}

    def key(self, request: Request, salt: int, router: int) -> Key:
        """The request's key; another `salt` gives all keys other home replicas."""
        number = request.conversation
        return Key(self._beginning(number) + salt, number % self._workload.prompts + salt, request.turn > 0, router)

    def _beginning(self, conversation: int) -> int:
        keys = self._workload.keys
        return conversation if keys is None else conversation % keys

    def next(self) -> Request | None:
        """None: no conversation has a turn at the moment."""
        if not self._ready:
            return None
        number, turn = self._ready.pop(0)
        w = self._workload
        if turn == 0:
            begin = ((f"s{number % w.prompts}", w.shared),) if w.shared else ()
            # The common beginning of a key's requests comes first, then some tokens of the request's own.
            key = (f"k{self._beginning(number)}", w.first)
            chain = (*begin, key) if w.keys is None else (*begin, key, (f"c{number}", w.turn))
        else:
            chain = (*self._chains[number], (f"c{number}t{turn}", self._about(w.turn)))
        return Request(number, turn, chain, (f"c{number}a{turn}", self._about(w.answer)))

    def done(self, request: Request) -> None:
        """Records that the request's answer is complete."""
        self._chains[request.conversation] = (*request.chain, request.adds)
        if request.turn + 1 < self._workload.turns:
            self._ready.append((request.conversation, request.turn + 1))

    def _about(self, tokens: int) -> int:
        return max(1, int(tokens * self._random.uniform(0.5, 1.5)))
