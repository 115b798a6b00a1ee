"""A trial ends within its bounds, whatever the constraint is, and says whether xgrammar compiles it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import psutil
import pytest
import xgrammar

from deployments.engine.trial import AT_A_TIME, NICENESS, Bounds, TooCostly, Trials
from tests.support.waiting import wait_until_async

BOUNDS = Bounds(reading_s=1, compiling_s=2, bytes=256 * 1024 * 1024, elapsed_s=300)
_PAIRS = [bytes(pair) for pair in product(range(ord("a"), ord("z") + 1), repeat=2)]
VOCABULARY = (
    [bytes([byte]) for byte in range(256)]
    + _PAIRS
    + [first + b"e" + second for first, second in product(_PAIRS, _PAIRS[:30])]
    + [b"</s>"]
)


def names(count: int) -> list[str]:
    return [f"p{number}" for number in range(count)]


def schema(value: Any) -> tuple[str, str]:
    return "json", json.dumps(value)


def optional(count: int) -> tuple[str, str]:
    return schema({"type": "object", "properties": {name: {"type": "string"} for name in names(count)}})


def nested(depth: int) -> tuple[str, str]:
    return "json", '{"type":"array","items":' * depth + "{}" + "}" * depth


OBJECT = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TAG = {"begin": "<a>", "schema": OBJECT, "end": "</a>"}
NOW_TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": OBJECT}}
_TARGETS = [{"$ref": f"#/$defs/a{number}"} for number in range(26)]
CHAIN = "root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1} | a{i + 1} a{i + 1}" for i in range(200)) + "\na200 ::= [a-z]*"
REFERENCES = {
    "$ref": "#/$defs/a0",
    "$defs": {f"a{i}": {"anyOf": [ref, {"type": "array", "items": ref}]} for i, ref in enumerate(_TARGETS[1:])}
    | {"a25": {"type": "string"}},
}

COMPILES: Mapping[str, tuple[str, str]] = {
    "schema": schema(OBJECT),
    "expression": ("regex", "(a|b)+c{2,5}"),
    "grammar": ("grammar", 'root ::= "a" root | "b"'),
    "old tag": ("structural_tag", json.dumps({"structures": [TAG], "triggers": ["<a"]})),
    "tag": ("structural_tag", json.dumps(NOW_TAG)),
    "invalid schema": ("json", "{"),
    "invalid expression": ("regex", "(("),
    "half of a surrogate pair": ("regex", "\ud800"),
    "invalid grammar": ("grammar", "root ::= missing"),
    "no tag": ("structural_tag", "[]"),
}
TOO_COSTLY: Mapping[str, tuple[str, str]] = {
    "optional properties": optional(5000),
    "an enum": schema({"enum": names(100_000)}),
    "nested arrays": nested(350),
    "steps": ("grammar", CHAIN),
    "steps after a forced text": ("grammar", CHAIN.replace("a0", '"x"{5000} a0', 1)),
}
EITHER: Mapping[str, tuple[str, str]] = {
    "more nested arrays": nested(20_000),
    "lengths": schema({"type": "string", "minLength": 49_000, "maxLength": 50_000}),
    "items": schema({"type": "array", "maxItems": 99_999, "items": {"enum": names(3)}}),
    "references": schema(REFERENCES),
    "repetitions": ("regex", "(((([a-z]{50}){50}){50}){50})"),
    "optional letters": ("regex", "(.?)" * 2000),
    "parentheses": ("regex", "(" * 4000 + "a" + ")" * 4000),
    "rules": (
        "grammar",
        "root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1}{{50}}" for i in range(30)) + "\na30 ::= [a-z]",
    ),
    "ambiguity": (
        "grammar",
        "root ::= a0\n" + "\n".join(f"a{i} ::= (a{i + 1}? a{i + 1}?)*" for i in range(30)) + "\na30 ::= [a-z]?",
    ),
}


@asynccontextmanager
async def started(bounds: Bounds) -> AsyncIterator[Trials]:
    tokens = xgrammar.TokenizerInfo(VOCABULARY, xgrammar.VocabType.RAW, stop_token_ids=[len(VOCABULARY) - 1])
    trials = Trials(tokens.serialize_json(), bounds=bounds)
    try:
        await trials.check(*COMPILES["schema"])  # its process runs
        yield trials
    finally:
        trials.close()


@pytest.fixture
async def trials() -> AsyncIterator[Trials]:
    async with started(BOUNDS) as trials:
        yield trials


@pytest.fixture
async def patient() -> AsyncIterator[Trials]:
    async with started(Bounds(compiling_s=120, bytes=2 * 1024**3)) as trials:
        yield trials


def children(trials: Trials) -> list[psutil.Process]:
    """Of the process that tries constraints."""
    return psutil.Process(trials.start().pid).children(recursive=True)


async def is_costly(trials: Trials, constraint: tuple[str, str]) -> bool:
    try:
        await trials.check(*constraint)
    except TooCostly:
        return True
    return False


async def test_every_trial_ends_and_bounds_what_vllm_will_do(trials: Trials) -> None:
    everything = {**COMPILES, **TOO_COSTLY, **EITHER}
    few = asyncio.Semaphore(2)  # other tests run beside these

    async def verdict(constraint: tuple[str, str]) -> bool:
        async with few:
            return await is_costly(trials, constraint)

    verdicts = await asyncio.gather(*map(verdict, everything.values()))
    costly = {name for name, verdict in zip(everything, verdicts, strict=True) if verdict}
    assert costly - EITHER.keys() == TOO_COSTLY.keys()


async def test_a_refused_constraint_is_refused_at_once_and_a_tried_one_passes(trials: Trials) -> None:
    constraint = TOO_COSTLY["an enum"]
    assert await is_costly(trials, constraint)
    begin = time.process_time()
    for _ in range(100):
        assert await is_costly(trials, constraint)
        await trials.check(*COMPILES["schema"])
    assert children(trials) == []
    assert time.process_time() - begin < 5


async def test_one_trial_serves_all_who_wait_and_ends_when_they_leave(patient: Trials) -> None:
    waiting = [asyncio.create_task(patient.check(*optional(5000))) for _ in range(3)]
    (child,) = await wait_until_async(lambda: children(patient))
    for request in waiting[1:]:
        request.cancel()
    await asyncio.wait(waiting[1:])
    assert child.is_running()
    waiting[0].cancel()
    await wait_until_async(lambda: not children(patient))
    again = asyncio.create_task(patient.check(*optional(5000)))
    (other,) = await wait_until_async(lambda: children(patient))  # no verdict was remembered
    assert other.pid != child.pid
    again.cancel()


async def test_few_trials_run_at_a_time_and_soon_at_a_low_priority(patient: Trials) -> None:
    waiting = [asyncio.create_task(patient.check(*optional(5000 + number))) for number in range(AT_A_TIME + 2)]
    await wait_until_async(lambda: len(children(patient)) == AT_A_TIME)
    await wait_until_async(lambda: {child.nice() for child in children(patient)} == {NICENESS})
    for request in waiting:
        request.cancel()
    await wait_until_async(lambda: not children(patient))


async def test_its_process_ends_with_the_owner_and_is_started_again_if_it_is_gone(trials: Trials) -> None:
    process = trials.start()
    process.kill()
    await trials.check("regex", "after the end")
    successor = trials.start()
    assert successor.pid != process.pid
    trials.close()
    assert successor.poll() is not None
