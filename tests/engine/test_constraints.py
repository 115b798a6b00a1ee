"""One request's constraint delays other answers neither while it is compiled nor while it is followed."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from app.engine.constraints import too_long_field, too_repetitive_field
from app.engine.errors import TOO_COSTLY
from app.internal_api import APP_PREFIX, INTERNAL_KEY_HEADER
from tests.support.engine.model_application import ENGINE_KEY

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications

LONG = 3
PATIENCE_S = 10.0
"""Also on a busy machine. Without a bound these constraints take minutes."""

CHAIN = "\n".join(f"a{i} ::= a{i + 1} | a{i + 1} a{i + 1}" for i in range(200)) + "\na200 ::= [a-z]*"
NESTED = '{"type":"array","items":' * 350 + "{}" + "}" * 350
OPTIONAL = "\n".join(f"a{i} ::= (a{i + 1}? a{i + 1}?)*" for i in range(30)) + "\na30 ::= [a-z]?"
ARRAYS = '{"type":"array","items":' * 40 + "{}" + "}" * 40
COSTLY: Mapping[str, Mapping[str, Any]] = {
    "nested arrays": {"json": NESTED},
    "arrays in a schema for outlines": {
        "json": f'{{"type":"object","properties":{{"a":{ARRAYS}}},"patternProperties":{{"^b":{{}}}}}}'
    },
    "steps": {"grammar": f"root ::= a0\n{CHAIN}"},
    "ambiguity after a free text": {"grammar": f"root ::= [A-Z]{{90}} a0\n{OPTIONAL}"},
}
AMBIGUOUS: Mapping[str, Mapping[str, Any]] = {
    "grammar": {"grammar": 'root ::= root root | "a" | ""'},
    "letters": {"grammar": 'root ::= s\ns ::= s s s | s s | [ab] | ""'},
}


class Client:
    """Asks the engine, as the router does."""

    def __init__(self, engine: str) -> None:
        self._url = f"{engine}{APP_PREFIX}tiny/v1/completions"
        self._http = httpx.AsyncClient(headers={INTERNAL_KEY_HEADER: ENGINE_KEY}, timeout=1200)

    async def __aenter__(self) -> "Client":
        await self.answer({"json": {"type": "boolean"}})  # what is loaded once
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def answer(self, constraint: Mapping[str, Any] | None, **fields: Any) -> httpx.Response:
        body: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 1, **fields}
        if constraint is not None:
            body["structured_outputs"] = constraint
            assert too_repetitive_field(body) is too_long_field(body) is None  # the router passes it on
        return await self._http.post(self._url, json=body)

    async def longest_wait(self, task: "asyncio.Task[Any]") -> float:
        """For a token of other requests while `task` runs, in seconds."""
        longest = 0.0
        while not task.done():
            begin = time.monotonic()
            assert (await self.answer(None)).status_code == 200
            longest = max(longest, time.monotonic() - begin)
        return longest


def _long(number: int) -> dict[str, Any]:
    """A schema that takes some seconds of CPU time to compile."""
    lengths = {f"p{place}": {"type": "string", "maxLength": 200 + 10 * number + place} for place in range(3)}
    return {"json": {"type": "object", "properties": lengths, "additionalProperties": False}}


async def test_a_short_constraint_does_not_wait_for_long_ones(engine: str) -> None:
    ended: list[str] = []

    async def ask(name: str, constraint: Mapping[str, Any] | None) -> None:
        answer = await client.answer(constraint)
        assert answer.status_code == 200, answer.text
        ended.append(name)

    async with Client(engine) as client:
        long = [asyncio.create_task(ask(f"long {number}", _long(number))) for number in range(LONG)]
        await asyncio.sleep(0.3)  # they are being compiled
        await asyncio.gather(ask("short", {"json": {"enum": ["yes", "no"]}}), ask("free", None))
        await asyncio.gather(*long)
    assert {*ended[:2]} == {"short", "free"}, ended


@pytest.mark.parametrize("name", COSTLY)
async def test_what_is_too_costly_is_refused_while_others_are_answered_and_then_at_once(engine: str, name: str) -> None:
    async with Client(engine) as client:
        costly = asyncio.create_task(client.answer(COSTLY[name]))
        waited = await client.longest_wait(costly)
        assert waited < PATIENCE_S
        for answer in (costly.result(), await client.answer(COSTLY[name])):
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["message"].startswith(TOO_COSTLY)


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_an_answer_ends_when_its_grammar_takes_too_long_to_follow(engine: str, name: str) -> None:
    many = {"max_tokens": 480, "min_tokens": 480}
    async with Client(engine) as client:
        ambiguous = asyncio.create_task(client.answer(AMBIGUOUS[name], **many))
        waited = await client.longest_wait(ambiguous)
    assert ambiguous.result().status_code == 500, "which the router reports as the constraint's fault"
    assert waited < PATIENCE_S
