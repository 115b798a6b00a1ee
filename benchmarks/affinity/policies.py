"""Policies: choose the replica for a key, by the running requests on each replica that the router knows of."""

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple


class Key(NamedTuple):
    """`beginning`: the system prompt; `running`: whether the conversation has had a turn; `router`: which one
    chooses."""

    conversation: int
    beginning: int
    running: bool
    router: int


WAITING_SHARE = 0.2
"""How much a running request delays the next one's first token, as a share of computing the prompt. Prompts in these
workloads are alike."""

Policy = Callable[[Key, Sequence[int]], int]
"""(key, running requests on each replica) -> replica."""


@cache
def order(key: int, replicas: int) -> tuple[int, ...]:
    """A key's replicas in its order of rendezvous hashing, which is the same on all routers."""

    def score(replica: int) -> bytes:
        return hashlib.blake2b(f"{key}:{replica}".encode(), digest_size=8).digest()

    return tuple(sorted(range(replicas), key=score))


def least(loads: Sequence[int], among: Sequence[int], rng: random.Random) -> int:
    """A random one of those with the fewest requests: HAProxy's order among equals does not depend on the key
    either."""
    fewest = min(loads[replica] for replica in among)
    return rng.choice([replica for replica in among if loads[replica] == fewest])


def least_connections(seed: int = 0) -> Policy:
    """The ingress's policy without a key."""
    rng = random.Random(seed)
    return lambda key, loads: least(loads, range(len(loads)), rng)


def bounded(
    factor: float,
    slack: float = 0.0,
    *,
    spread: float = 0.0,
    first: float = 1.0,
    homes: int | None = None,
    least_room: int = 1,
) -> Policy:
    """The first of the key's replicas with room. A replica has room up to `factor` times the mean, `slack` more than
    the mean, or `spread` times the mean's root more, whichever is largest: randomly distributed keys vary by that much.
    With `factor` alone this is HAProxy's own bounded-load hashing (`hash-balance-factor`). A conversation's first turn
    may use only the share `first` of the margin above the mean. If `homes` replicas have no room, the replica with the
    fewest requests gets it.
    """
    rng = random.Random(0)

    def choose(key: Key, loads: Sequence[int]) -> int:
        n = len(loads)
        mean = (sum(loads) + 1) / n
        more = max(math.ceil(mean * factor) - mean, slack, spread * math.sqrt(mean)) * (1.0 if key.running else first)
        for home in order(key.conversation, n)[: homes or n]:
            if loads[home] + 1 <= max(least_room, mean + more + 1e-9):
                return home
        return least(loads, range(n), rng)

    return choose


def within_group(subset: int, spread: float) -> Policy:
    """A key hierarchy: a system prompt has `subset` replicas, and the conversation is placed among these."""
    rng = random.Random(0)

    def choose(key: Key, loads: Sequence[int]) -> int:
        n = len(loads)
        mean = (sum(loads) + 1) / n
        group = order(key.beginning + 7_919, n)[:subset]
        own = [replica for replica in order(key.conversation, n) if replica in group]
        for home in own:
            if loads[home] + 1 <= mean + spread * math.sqrt(mean):
                return home
        return least(loads, range(n), rng)

    return choose


def two_choices(lead: int) -> Policy:
    """The key's first replica, unless the second one has more than `lead` requests fewer."""

    def choose(key: Key, loads: Sequence[int]) -> int:
        first, second, *_ = order(key.conversation, len(loads))
        return first if loads[first] <= loads[second] + lead else second

    return choose


def table(seed: int = 0) -> Policy:
    """With state, for comparison: a new key goes to the replica with the fewest requests, and stays there. All routers
    know the same table."""
    rng = random.Random(seed)
    known: dict[int, int] = {}

    def choose(key: Key, loads: Sequence[int]) -> int:
        if key.conversation not in known:
            known[key.conversation] = least(loads, range(len(loads)), rng)
        return known[key.conversation]

    return choose


def soonest(*, remembers: bool) -> Policy:
    """The replica that is expected to answer first: it computes what it has not cached, after a part of each running
    request's prompt. The cached prompt is on the replica to which this router sent the conversation's last turn
    (`remembers`), or on the first one in the key's order.
    """
    rng = random.Random(0)
    sent: dict[tuple[int, int], int] = {}

    def choose(key: Key, loads: Sequence[int]) -> int:
        at = (key.router, key.conversation)
        home = sent.get(at) if remembers else order(key.conversation, len(loads))[0]

        def waits(replica: int) -> tuple[float, float]:
            return (replica != home) + WAITING_SHARE * loads[replica], rng.random()

        sent[at] = chosen = min(range(len(loads)), key=waits)
        return chosen

    return choose


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "least connections": least_connections,
    "bound 1.25 (HAProxy's own)": lambda: bounded(1.25),
    "bound 2 (HAProxy's own)": lambda: bounded(2),
    "bound 4 (HAProxy's own)": lambda: bounded(4),
    "two choices, lead 0": lambda: two_choices(0),
    "two choices, lead 4": lambda: two_choices(4),
    "1.25, or 2 more than the mean": lambda: bounded(1.25, 2),
    "1.25, or 4 more": lambda: bounded(1.25, 4),
    "1.25, or 8 more": lambda: bounded(1.25, 8),
    "1 root more": lambda: bounded(1, spread=1),
    "1.25 roots more": lambda: bounded(1, spread=1.25),
    "1.5 roots more": lambda: bounded(1, spread=1.5),
    "2 roots more": lambda: bounded(1, spread=2),
    "1.5 roots more, first turns half": lambda: bounded(1, spread=1.5, first=0.5),
    "2 roots more, first turns half (ours)": lambda: bounded(1, spread=2, first=0.5, least_room=2),
    "2.5 roots more, first turns half": lambda: bounded(1, spread=2.5, first=0.5),
    "1.5 roots more, two homes": lambda: bounded(1, spread=1.5, homes=2),
    "1.5 roots more, two replicas for a system prompt": lambda: within_group(2, 1.5),
    "the key alone": lambda: bounded(1e9),
    "a table of keys (has state)": table,
    "answers soonest, cached where the key says": lambda: soonest(remembers=False),
    "answers soonest, cached where it was sent (has state)": lambda: soonest(remembers=True),
}
