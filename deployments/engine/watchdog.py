"""A replica exits with its engine.

A replica whose engine process has died would reject every request within a millisecond, and the ingress, which prefers
the least loaded replica, would send it nearly all of them. Serve's health checks take half a minute to notice; refused
connections are noticed at once and go to another replica.
"""

import asyncio
import logging
import os
from typing import Any

from app.telemetry.logs import event

LOOK_EVERY_S = 0.02
"""The interval of the checks, shorter than the router's pause before a retry
(`app.exchange.forward.RETRY_SAME_AFTER_S`).
"""

_log = logging.getLogger("switchyard")


async def exit_when_engine_dies(engine: Any) -> None:
    """Ends this process once vLLM's `engine` (an `EngineClient`) has died. Never returns otherwise."""
    while not engine.errored:  # noqa: ASYNC110  vLLM has nothing to wait for
        await asyncio.sleep(LOOK_EVERY_S)
    message = "The engine died: this replica exits, so that its requests go to others and Serve starts a new one"
    _log.critical(message, extra=event("engine_died"))
    logging.shutdown()
    # Sockets first, since clients wait for them: on exit the kernel frees gigabytes of memory before it closes files.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os._exit(1)
