"""A plan's author and its number: one more than every plan that the controller of experiments knows."""

import asyncio
import time

import msgspec

from app.control_plane import Authorship
from app.errors import SwitchyardError
from app.experiments.contract.journal import PlanEntry
from app.exposures.controller_client import ControllerClient
from app.server.controller_answers import ask

PATIENCE_S = 1.0
"""Seconds that a change waits for the controller if it can do without the answer."""
TEMPORARY_S = 10.0
"""Seconds that a temporary plan waits: the controller ends it, and answers late while it computes a report."""


def authorship(caller: str, last: int | None) -> Authorship:
    """The author of a change now. `last`: the `last_generation`.

    If it is not known, the number is one more than the present plan's. That may have been given before, to a plan that
    a file has replaced since; the controller then counts on by itself.
    """
    return Authorship(caller, time.time(), (last or 0) + 1)


async def last_generation(controller: ControllerClient | None, endpoint: str, *, temporary: bool = False) -> int | None:
    """The highest number of the endpoint's plans; None if the controller does not answer.

    `temporary`: for a plan that the controller will end.
    """
    try:
        async with asyncio.timeout(TEMPORARY_S if temporary else PATIENCE_S):
            return max((it.generation for it in await history(controller, endpoint)), default=0)
    except (SwitchyardError, TimeoutError):
        return None


async def history(controller: ControllerClient | None, endpoint: str) -> list[PlanEntry]:
    """The endpoint's plans, the latest first. Raises Unavailable."""
    answer = await ask(controller, "GET", f"/endpoints/{endpoint}/plans")
    return msgspec.json.decode(answer.body, type=dict[str, list[PlanEntry]])["plans"]
