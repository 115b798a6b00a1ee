"""Who makes a plan, and which number it gets: one more than every plan that the controller of experiments knows."""

import asyncio
import time

import msgspec

from app.control_plane import Authorship
from app.errors import SwitchyardError
from app.experiments.plan_history import PlanEntry
from app.ledger.controller_client import ControllerClient
from app.server.controller_answers import ask

PATIENCE_S = 1.0
"""How long a change waits for the controller."""


async def authorship(controller: ControllerClient | None, endpoint: str, caller: str) -> Authorship:
    """The author of a change now.

    Without the controller, the number is one more than the present plan's. That may have been given before, to a plan
    that a file has replaced since; the controller then counts on by itself.
    """
    least = 1
    try:
        async with asyncio.timeout(PATIENCE_S):
            least = max((it.generation for it in await history(controller, endpoint)), default=0) + 1
    except (SwitchyardError, TimeoutError):
        pass
    return Authorship(caller, time.time(), least)


async def history(controller: ControllerClient | None, endpoint: str) -> list[PlanEntry]:
    """The endpoint's plans, the latest first. Raises Unavailable."""
    answer = await ask(controller, "GET", f"/endpoints/{endpoint}/plans")
    return msgspec.json.decode(answer.body, type=dict[str, list[PlanEntry]])["plans"]
