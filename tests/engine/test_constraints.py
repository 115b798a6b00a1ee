"""Compiling the constraint of one request delays neither other constraints nor other answers for its whole time."""

import asyncio
from typing import Any

import httpx
import pytest

from app.engine.constraints import too_repetitive_field
from app.internal_api import APP_PREFIX, INTERNAL_KEY_HEADER
from tests.support.engine.model_application import ENGINE_KEY

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications

LONG = 3


def _long(number: int) -> dict[str, Any]:
    """A schema that the router passes on, and that takes some seconds of CPU time to compile."""
    lengths = {f"p{place}": {"type": "string", "maxLength": 200 + 10 * number + place} for place in range(3)}
    return {"type": "object", "properties": lengths, "additionalProperties": False}


def test_a_short_constraint_does_not_wait_for_long_ones(engine: str) -> None:
    ended: list[str] = []

    async def ask(client: httpx.AsyncClient, name: str, schema: dict[str, Any] | None) -> None:
        body: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 1}
        if schema is not None:
            body["structured_outputs"] = {"json": schema}
            assert too_repetitive_field(body) is None
        answer = await client.post(f"{engine}{APP_PREFIX}tiny/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        ended.append(name)

    async def all_of_them() -> None:
        async with httpx.AsyncClient(headers={INTERNAL_KEY_HEADER: ENGINE_KEY}, timeout=600) as client:
            await ask(client, "first", {"type": "boolean"})  # what is compiled and loaded once
            long = [asyncio.create_task(ask(client, f"long {number}", _long(number))) for number in range(LONG)]
            await asyncio.sleep(0.3)  # they are being compiled
            await asyncio.gather(ask(client, "short", {"enum": ["yes", "no"]}), ask(client, "free", None))
            await asyncio.gather(*long)

    asyncio.run(all_of_them())
    assert {*ended[:3]} == {"first", "short", "free"}, ended
