"""The files of `app/` that a reader enters to follow one streamed chat request, and the calls that it makes in each.

The router's ASGI application is called in this process, in front of an upstream that returns canned chunks. The request
is the second of its kind: what the first one prepares is not part of it. The upstream's client is not called, so its
files (`app/upstream/`) are not counted.

    python -m benchmarks.hops       prints the files of a request with an experiment, in the order of their first calls
"""

import asyncio
import sys
from collections import Counter
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from benchmarks.ledger import SHORT, Acknowledging, Asking, Canned, body, document, started

APP = Path(__file__).resolve().parents[1] / "app"


async def calls_of_a_request(endpoint: str) -> Counter[str]:
    """The Python calls in each file of `app/`, by its path there, in the order of the first calls."""
    router = Router(
        RuntimeEnvironment(internal_key="benchmark"), random=Random(1), controller=Acknowledging(), send_every_s=3600
    )
    router.reconfigure(document())
    router.state.upstream = Canned()
    calls: Counter[str] = Counter()

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (path := Path(frame.f_code.co_filename)).is_relative_to(APP):
            calls[str(path.relative_to(APP))] += 1

    async def send(message: Any) -> None:
        pass

    async with started(router.app):
        client = Asking(router.app, body(endpoint, SHORT))
        await client.ask(send)
        sys.setprofile(called)
        try:
            await client.ask(send)
        finally:
            sys.setprofile(None)
    return calls


def main() -> int:
    """The command line; returns the exit status."""
    without, with_one = (asyncio.run(calls_of_a_request(endpoint)) for endpoint in ("off", "on"))
    for path, calls in with_one.items():
        print(f"{calls:5}  {path}")
    print(f"{with_one.total()} calls in {len(with_one)} files; {len(without)} files without an experiment")
    return 0


if __name__ == "__main__":
    sys.exit(main())
