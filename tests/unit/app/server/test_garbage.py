"""What a request leaves behind: a cycle of objects keeps its body until the garbage collector runs, and costs time."""

import asyncio
import gc
from random import Random
from typing import Any

from app.exchange.exchange import Exchange
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from benchmarks.ledger import Acknowledging, Asking, Canned, body, document, started


async def test_a_stream_leaves_nothing_to_the_garbage_collector() -> None:
    environment = RuntimeEnvironment(internal_key="test", unit_secret="test")
    router = Router(environment, random=Random(1), controller=Acknowledging(), send_every_s=3600)
    router.reconfigure(document())
    router.state.upstream = Canned()

    async def send(message: Any) -> None:
        pass

    async with started(router.app):
        gc.collect()
        gc.disable()
        try:
            await Asking(router.app, body("off", 2)).ask(send)
            await asyncio.sleep(0)
            left = [type(each) for each in gc.get_objects() if isinstance(each, Exchange)]
        finally:
            gc.enable()
    assert left == []
