"""The law for bodies, `keeps_the_law`.

For every body of at most `max_body_bytes`, on every route, whoever sends it, the event loop is held for 50 ms at most,
memory grows by eight times the body and twice the answer at most, and the answer takes 1 s of CPU and 0.2 s for each
MiB. `measured.Cost` says what "held" means.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.applications import Starlette
from starlette.routing import Mount

from tests.router.hostile.bombs import Bomb
from tests.router.hostile.engine import HostileEngine, compact
from tests.router.hostile.measured import MeasuredRouter, measured_router
from tests.support.processes.servers import serve

HELD_S = 0.05
MEASUREMENTS = 12
"""At most so many: other programs that want the cores and their caches only ever add to the times."""

MEMORY_FACTOR, MEMORY_BYTES = 8, 32 * 1024**2
"""The memory: a multiple of the decoded body, and what the most values in a body take."""

ANSWER_S, ANSWER_S_PER_MIB = 1.0, 0.2


@contextmanager
def serving(max_body_bytes: int, engine: HostileEngine | None = None) -> Iterator[MeasuredRouter]:
    """A measured router in front of `engine`, by default one of its own."""
    with (
        serve(Starlette(routes=[Mount("/e", (engine or HostileEngine()).app)])) as engine_url,
        measured_router(f"{engine_url}/e", max_body_bytes) as router,
    ):
        router.client.request("POST", "/v1/chat/completions", compact({"model": "chat", "messages": []}))
        yield router


def keeps_the_law(router: MeasuredRouter, bomb: Bomb, *, is_served: bool = False) -> None:
    most_cpu_s = ANSWER_S + ANSWER_S_PER_MIB * bomb.size / 1024**2
    for _ in range(MEASUREMENTS):
        reply, cost = router.measured(bomb.method, bomb.path, bomb.body, list(bomb.headers))
        if cost.held_s <= HELD_S and cost.cpu_s <= most_cpu_s:
            break
    told = (bomb, cost, reply.status, reply.body[:300])
    assert reply.complete, told
    assert reply.status == 200 or not is_served, told
    assert reply.status < 500 or (reply.status == 503 and bomb.path.startswith("/api/")), told
    assert cost.held_s <= HELD_S, told
    assert cost.cpu_s <= most_cpu_s, told
    assert cost.memory <= MEMORY_FACTOR * bomb.size + 2 * len(reply.body) + MEMORY_BYTES, told
