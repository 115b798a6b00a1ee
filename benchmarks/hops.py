"""The files of `app/` that a reader enters to follow one streamed chat request, and those of a tick of the controller
of experiments, with the calls that each makes in them.

The router's ASGI application is called in this process, in front of an upstream that returns canned chunks. The request
is the second of its kind: what the first one prepares is not part of it. The upstream's client is not called, so its
files (`app/upstream/`) are not counted. The tick (`Controller.tick`) is one that writes the exposures of 400
requests, looks at their evidence and acts on it.

    python -m benchmarks.hops       prints the files of a request with an experiment, and of a tick, in the order of
                                    their first calls
"""

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from app.config.experiments import LedgerSettings
from app.config.schema import parse
from app.experiments.controller import Controller
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from benchmarks.ledger import SHORT, Acknowledging, Asking, Canned, body, document, started

APP = Path(__file__).resolve().parents[1] / "app"
REQUESTS = 400
"""Whose exposures the controller has."""

LATER_S = 60.0
"""Seconds from those requests to the tick: by then it writes."""


@contextmanager
def counted(calls: Counter[str]) -> Iterator[None]:
    """Counts the block's Python calls in each file of `app/`, by its path there, in the order of the first calls."""

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (path := Path(frame.f_code.co_filename)).is_relative_to(APP):
            calls[str(path.relative_to(APP))] += 1

    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(None)


def canned_router() -> Router:
    """A router with the configuration of `benchmarks.ledger`, in front of the canned upstream."""
    router = Router(
        RuntimeEnvironment(internal_key="benchmark"), random=Random(1), controller=Acknowledging(), send_every_s=3600
    )
    router.reconfigure(document())
    router.state.upstream = Canned()
    return router


async def _ignored(message: Any) -> None:
    pass


async def calls_of_a_request(endpoint: str) -> Counter[str]:
    """The calls of the second request."""
    router, calls = canned_router(), Counter[str]()
    async with started(router.app):
        client = Asking(router.app, body(endpoint, SHORT))
        await client.ask(_ignored)
        with counted(calls):
            await client.ask(_ignored)
    return calls


async def calls_of_a_tick() -> Counter[str]:
    """The calls of a tick of the controller, by file as above."""
    router, calls = canned_router(), Counter[str]()
    async with started(router.app):
        client = Asking(router.app, body("on", SHORT))
        for _ in range(REQUESTS):
            await client.ask(_ignored)
        ledger = router.state.ledger
        ledger.seal()
        batches = [ledger.encoded(batch) for batch in ledger.backlog]
    with tempfile.TemporaryDirectory() as folder:
        now = time.time()
        controller = Controller(LedgerSettings(url="ledger"), base=Path(folder), clock=lambda: now)
        controller.configure(parse(document()))
        for batch in batches:
            controller.ingest(batch)
        now += LATER_S
        with counted(calls):
            controller.tick()
        controller.close()
    return calls


def main() -> int:
    """The command line; returns the exit status."""
    without, with_one = (asyncio.run(calls_of_a_request(endpoint)) for endpoint in ("off", "on"))
    tick = asyncio.run(calls_of_a_tick())
    for title, calls in (("One request, with an experiment:", with_one), ("A tick of the controller:", tick)):
        print(title)
        for path, count in calls.items():
            print(f"{count:5}  {path}")
    print(f"Request: {with_one.total()} calls in {len(with_one)} files; {len(without)} files without an experiment")
    print(f"Tick: {tick.total()} calls in {len(tick)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
