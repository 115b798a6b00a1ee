"""A trial ends within its bounds, whatever the constraint is, and says whether xgrammar compiles it."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import xgrammar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployments.engine.trial import AT_A_TIME, NICENESS, Bounds, TooCostly, Trials, TrialText, read, trial_s
from deployments.invocation import ROOT
from tests.support.waiting import wait_until_async

BOUNDS = Bounds(reading_s=1, total_s=2, bytes=256 * 1024 * 1024, elapsed_s=300)
_PAIRS = [bytes(pair) for pair in product(range(ord("a"), ord("z") + 1), repeat=2)]
VOCABULARY = (
    [bytes([byte]) for byte in range(256)]
    + _PAIRS
    + [first + b"e" + second for first, second in product(_PAIRS, _PAIRS[:30])]
    + [b"</s>"]
)
TOKENS = xgrammar.TokenizerInfo(VOCABULARY, xgrammar.VocabType.RAW, stop_token_ids=[len(VOCABULARY) - 1])
STEP_S, TOKENS_FOLLOWED, ALL_S = 2.0, 300, 2.5
"""CPU time of one token, and of all that an engine follows before it ends the answer (`BoundedGrammar`)."""


def names(count: int) -> list[str]:
    return [f"p{number}" for number in range(count)]


def schema(value: Any) -> tuple[str, str]:
    return "json", json.dumps(value)


def optional(count: int) -> tuple[str, str]:
    return schema({"type": "object", "properties": {name: {"type": "string"} for name in names(count)}})


def nested(depth: int) -> tuple[str, str]:
    return "json", '{"type":"array","items":' * depth + "{}" + "}" * depth


OBJECT = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
FOR_OUTLINES = {"type": "object", "patternProperties": {"^a": {"type": "string"}}}
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
    "schema for llguidance": schema({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}}),
    "schema for outlines": schema({**FOR_OUTLINES, "properties": {"a": {"type": "string"}}}),
    "expression": ("regex", "(a|b)+c{2,5}"),
    "words whose first letters begin with the same byte": schema({"enum": ["да", "нет"]}),
    "letters that begin with the same byte": ("regex", "(é|à){8}"),
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
    "arrays for outlines": schema({**FOR_OUTLINES, "properties": {"a": json.loads(nested(30)[1])}}),
    "ambiguity after a free text": (
        "grammar",
        "root ::= [A-Z]{90} a0\n"
        + "\n".join(f"a{i} ::= (a{i + 1}? a{i + 1}?)*" for i in range(12))
        + "\na12 ::= [a-z]?",
    ),
    "optional letters after a free text": ("regex", "[A-Z]{90}" + "((a|b)?c?)*" * 700),
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


FREE = ["", "[A-Z]{90}", "[A-Z ]*"]
"""How a constraint may begin: harmless for as long as the model likes."""

_PARTS = ["@", "@?", "@*", "(@? @?)*", "@ | @ @", "[a-z]?", "[a-z]*", '"a"', "", "root"]
_EXPRESSIONS = ["(a|b)?", "((a|b)?c?)*", "[a-z]{0,9}", ".?", "(.*x?)*", "(ab|a|b)+"]
_SCHEMAS = [
    '{"type":"array","items":@}',
    '{"anyOf":[@,{"type":"array","items":@}]}',
    '{"type":"object","properties":{"a":@,"b":{"type":"string"}}}',
    '{"type":"object","additionalProperties":@}',
    '{"anyOf":[{"type":"string","pattern":"(a?b?)*"},@]}',
]


@st.composite
def constraints(draw: st.DrawFn) -> tuple[str, str]:
    """A constraint that repeats and nests a part, after a free text; cheap or not."""
    kind, free = draw(st.sampled_from(["grammar", "regex", "json"])), draw(st.sampled_from(FREE))
    if kind == "regex":
        parts = draw(st.lists(st.sampled_from(_EXPRESSIONS), min_size=1, max_size=3))
        return kind, free + "".join(parts) * draw(st.sampled_from([1, 20, 300]))
    depth = draw(st.sampled_from([3, 8, 40]))
    if kind == "json":
        text = json.dumps({"type": "string", "pattern": free})
        for _ in range(depth):
            part = draw(st.sampled_from(_SCHEMAS))
            text = part.replace("@", text) if len(text) < 10_000 else text
        return kind, text
    part = " ".join(draw(st.lists(st.sampled_from(_PARTS), min_size=1, max_size=3)))
    leaf = draw(st.sampled_from(["[a-z]?", "[a-z]*", '"ab"']))
    rules = [f"a{number} ::= {part.replace('@', f'a{number + 1}')}" for number in range(depth)]
    return kind, "\n".join([f"root ::= {free} a0", *rules, f"a{depth} ::= {leaf}"])


@asynccontextmanager
async def started(bounds: Bounds) -> AsyncIterator[Trials]:
    trials = Trials(TOKENS.serialize_json(), bounds=bounds)
    try:
        assert await trials.ready()
        yield trials
    finally:
        trials.close()


@pytest.fixture
async def trials() -> AsyncIterator[Trials]:
    async with started(BOUNDS) as trials:
        yield trials


@pytest.fixture
async def patient() -> AsyncIterator[Trials]:
    async with started(Bounds(total_s=120, bytes=2 * 1024**3)) as trials:
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


@settings(suppress_health_check=list(HealthCheck))
@given(constraint=constraints(), seed=st.integers(0, 9))
async def test_no_constraint_that_passes_holds_an_engine(
    trials: Trials, constraint: tuple[str, str], seed: int
) -> None:
    if await is_costly(trials, constraint):
        return
    begin = time.process_time()
    try:
        grammar = read(*constraint, any_whitespace=True)
    except Exception:  # noqa: BLE001  vLLM refuses it
        return
    compiled = xgrammar.GrammarCompiler(TOKENS, max_threads=8).compile_grammar(grammar)
    assert time.process_time() - begin < 2 * BOUNDS.total_s
    text, choose = TrialText(compiled, np.arange(len(VOCABULARY))), random.Random(seed)
    total, count, goes_on = 0.0, 0, True
    while goes_on and count < TOKENS_FOLLOWED and total < ALL_S:
        begin = time.process_time()
        goes_on = text.add(choose.choice)
        took = time.process_time() - begin
        assert took < STEP_S, count
        total, count = total + took, count + 1


async def test_all_of_a_trial_has_the_cpu_time_of_one_bound(trials: Trials) -> None:
    """Compiling this is cheap, and so is following it from each of its thousands of places."""
    trial = asyncio.create_task(is_costly(trials, optional(1000)))
    used = 0.0
    while not trial.done():
        for child in children(trials):
            with suppress(psutil.Error):
                used = max(used, sum(child.cpu_times()[:2]))
        await asyncio.sleep(0.01)
    assert used < BOUNDS.total_s + 0.5


@pytest.mark.parametrize(("tokens", "seconds"), [(300, 2), (49_152, 10), (151_936, 31)])
def test_a_larger_vocabulary_has_more_time(tokens: int, seconds: int) -> None:
    assert trial_s(tokens) == seconds


async def test_a_refused_constraint_is_refused_at_once_and_a_tried_one_passes(trials: Trials) -> None:
    constraint = TOO_COSTLY["an enum"]
    assert await is_costly(trials, constraint)
    tried = children(trials)  # one that has ended, until its parent has asked for its status
    begin = time.process_time()
    for _ in range(100):
        assert await is_costly(trials, constraint)
        await trials.check(*COMPILES["schema"])
    assert set(children(trials)) <= set(tried)
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


async def test_who_is_ready_has_nothing_left_to_import(trials: Trials) -> None:
    process = psutil.Process(trials.start().pid)
    used = sum(process.cpu_times()[:2])
    await trials.check(*COMPILES["schema"])
    assert sum(process.cpu_times()[:2]) - used < 0.5, "importing takes some seconds of CPU time"


async def test_one_that_ends_while_it_starts_will_not_be_ready() -> None:
    trials = Trials("no vocabulary")
    assert not await trials.ready()
    trials.close()


async def test_its_process_ends_with_the_owner_and_is_started_again_if_it_is_gone(trials: Trials) -> None:
    process = trials.start()
    process.kill()
    await trials.check("regex", "after the end")
    successor = trials.start()
    assert successor.pid != process.pid
    trials.close()
    assert successor.poll() is not None


IN_A_SPARE = """
if __name__ == "__main__":
    from deployments.engine import fork
    fork.Spare.waiting.append(spare := fork.Spare())

    import asyncio
    from deployments.engine.trial import Trials
    from tests.unit.deployments.engine.test_trial import BOUNDS, COMPILES, TOKENS, TOO_COSTLY, is_costly

    async def main():
        trials = Trials(TOKENS.serialize_json(), bounds=BOUNDS)
        process = trials.start()
        print(process.pid == spare.pid, await trials.ready())
        print(await is_costly(trials, COMPILES["schema"]), await is_costly(trials, TOO_COSTLY["an enum"]))
        process.kill()
        print(await is_costly(trials, ("regex", "after the end")), trials.start().pid == spare.pid)
        trials.close()

    asyncio.run(main())
"""


def test_a_spare_of_the_replica_tries_as_a_process_of_its_own_does(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(IN_A_SPARE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["True True", "False True", "False False"]
