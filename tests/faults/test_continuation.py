"""Two hundred streams of every dialect go on when their engine dies, hangs or is stopped; poison kills two engines."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import aiohttp
import psutil
import pytest

from tests.faults.conftest import ENGINE, HAND_OVER_AFTER_S, REPLICA, TEMPLATE, Cluster
from tests.support.processes.load import Lane, Outcome, ask, lanes, unexplained
from tests.support.processes.scraper import Scraper
from tests.support.processes.seen import Seen, seen
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

TOKENS, OF_EACH = 96, 15
BEGUN = 0.3
"""The part of the answers that has arrived when the engine is lost."""

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}


PATIENT = {"first_byte_s": 90, "idle_s": 90}
"""Two hundred streams at once are slow on two cores, and a tool's arguments may be silent for long."""


def kinds(number: int, tokens: int = TOKENS, filling: str = "") -> Iterator[Lane]:
    """One stream of each dialect and kind of request; `number` tells those of one kind apart. Prompts begin with
    `filling`."""
    say = f"{filling}Say something about the number {number}."
    messages = {"messages": [{"role": "user", "content": say}]}
    seeded = {"temperature": 1.0, "seed": number}
    chat = {"model": "chat", **messages, "max_tokens": tokens, "min_tokens": tokens, "stream": True}
    usage = {"stream_options": {"include_usage": True}}
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    done = b"data: [DONE]"

    def lane(name: str, path: str, body: Mapping[str, Any], ends: bytes = done) -> Lane:
        return Lane(f"{name} {number}", path, body, ends, True)

    greedy = {**chat, "temperature": 0}
    yield lane("chat, greedy", "/v1/chat/completions", {**greedy, **usage})
    penalties = {"presence_penalty": 0.7, "frequency_penalty": 0.5, "repetition_penalty": 1.2}
    yield lane("chat, seeded, penalties", "/v1/chat/completions", {**chat, **usage, **seeded, **penalties})
    follows = {name: value for name, value in chat.items() if name != "min_tokens"}
    yield lane("chat, schema", "/v1/chat/completions", {**follows, **usage, **seeded, "response_format": schema})
    forced = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look_up"}}}
    yield lane("chat, tool", "/v1/chat/completions", {**follows, **usage, **seeded, **forced})
    text = {"model": "chat", "prompt": say, "max_tokens": tokens, "stream": True, **seeded, **usage}
    yield lane("completions", "/v1/completions", text)
    response = {"model": "chat", "input": say, "max_output_tokens": tokens, "stream": True, "temperature": 0}
    yield lane("responses", "/v1/responses", response, b'"output_tokens":')
    (azure,) = (one for one in lanes() if one.name == "azure" and one.streamed)
    yield Lane(f"azure {number}", azure.path, {**follows, **seeded}, azure.ends, True, azure.headers)
    for one in lanes():
        match one.name if one.streamed else "":
            case "anthropic":
                yield lane("anthropic", one.path, {**follows, "temperature": 0}, one.ends)
            case "databricks":
                yield lane(
                    "databricks",
                    one.path,
                    {**messages, "max_tokens": tokens, "temperature": 0, "stream": True},
                    one.ends,
                )
            case "tgi":
                parameters = {"max_new_tokens": tokens, "details": True, "do_sample": True, "seed": number + 1}
                yield lane("tgi", one.path, {"inputs": say, "parameters": parameters}, one.ends)
            case "friendli":
                body = {**one.body, "prompt": say, "max_tokens": tokens, "min_tokens": 0, **seeded, "stream": True}
                yield lane("friendli", one.path, body, one.ends)
    yield lane("friendli chat", "/serverless/v1/chat/completions", {**follows, **seeded})
    yield lane("tgi chat", "/tgi/chat/v1/chat/completions", {**follows, **seeded})
    yield lane("azure openai", "/openai/v1/chat/completions", {**follows, **seeded})


STREAMS = [lane for number in range(OF_EACH) for lane in kinds(number)]


async def _asked(url: str, streams: Sequence[Lane], chunks: int, happens: Callable[[], object]) -> list[Outcome]:
    arrived, begun = 0, set[float]()
    is_time = False

    def comes(when: float) -> None:
        nonlocal arrived, is_time
        arrived += 1
        begun.add(when)
        if arrived >= chunks and len(begun) == len(streams):
            is_time = True

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        answers = [asyncio.ensure_future(ask(session, url, lane, comes)) for lane in streams]
        while not is_time:
            assert not all(answer.done() for answer in answers), "the answers were over before"
            await asyncio.sleep(0.02)
        await asyncio.to_thread(happens)
        return await asyncio.gather(*answers)


def asked(url: str, streams: Sequence[Lane], chunks: int, happens: Callable[[], object]) -> list[Outcome]:
    """The outcomes of streams that begin together; `happens` is called once all have begun and `chunks` arrived."""
    return asyncio.run(_asked(url, streams, chunks, happens))


def warm_up(cluster: Cluster) -> None:
    """Each engine has compiled what it compiles once, which takes long beside two hundred streams."""
    cluster.change(timeouts=PATIENT)
    cluster.whole_again()
    for number in range(4):
        asked(cluster.url, list(kinds(number)), 1, lambda: None)


@pytest.fixture(scope="module")
def golden(cluster: Cluster) -> Mapping[str, Seen]:
    """What the clients see of undisturbed streams."""
    warm_up(cluster)
    outcomes = asked(cluster.url, STREAMS, 1, lambda: None)
    failed = unexplained(outcomes)
    assert not failed, "\n".join(failed)
    bodies = {outcome.lane.name: seen(outcome.body) for outcome in outcomes}
    assert all(len(json.dumps(answer)) > TOKENS for answer in bodies.values())
    return bodies


def differences(actual: Seen, expected: Seen) -> Iterator[tuple[str, Any, Any]]:
    for path in sorted(actual.keys() | expected.keys()):
        if actual.get(path) != expected.get(path):
            yield path, actual.get(path), expected.get(path)


def moved(cluster: Cluster) -> float:
    """The streams that went on, of all routers."""
    labels = {"deployment": "tiny", "endpoint": "chat", "outcome": "continued"}
    return sum(
        value
        for (name, given), value in Scraper(cluster.url).scrape().items()
        if name == "switchyard_continued_streams_total" and labels.items() <= dict(given).items()
    )


LOSSES: Mapping[str, Callable[[Cluster], object]] = {
    "killed": lambda cluster: cluster.kill(ENGINE),
    "replica killed": lambda cluster: cluster.kill(REPLICA),
    "hung": lambda cluster: cluster.processes(ENGINE)[0].suspend(),
    "stopped": lambda cluster: cluster.change(timeouts=PATIENT, engine={"num_replicas": 1}),
    # Each stream may move twice: to a replica that is replaced next.
    "replaced": lambda cluster: cluster.change(timeouts=PATIENT, args={"hand_over_after_s": HAND_OVER_AFTER_S + 1}),
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("loss", LOSSES)
def test_every_stream_ends_as_if_its_engine_had_not_been_lost(
    cluster: Cluster, golden: Mapping[str, Seen], loss: str
) -> None:
    assert len(STREAMS) >= 200
    chunks = int(BEGUN * TOKENS * len(STREAMS) / 4)  # a chunk may have several tokens
    warm_up(cluster)
    before, moved_before = {process.pid for process in cluster.processes(ENGINE)}, moved(cluster)
    outcomes = asked(cluster.url, STREAMS, chunks, lambda: LOSSES[loss](cluster))
    failed = unexplained(outcomes)
    assert not failed, "\n".join(failed)
    different = [
        f"{outcome.lane.name}: {path}: {actual!r}, not {expected!r}"
        for outcome in outcomes
        for path, actual, expected in differences(seen(outcome.body), golden[outcome.lane.name])
    ]
    assert not different, "\n".join(different)
    wait_until(lambda: moved(cluster) > moved_before, lambda: moved(cluster), within_s=30)
    left = 0 if loss == "replaced" else 1
    wait_until(
        lambda: len(before & {process.pid for process in cluster.processes(ENGINE)}) == left, cluster.state, within_s=60
    )


@pytest.mark.usefixtures("unchanged")
def test_a_stream_whose_engines_die_ends_after_two_of_them(cluster: Cluster) -> None:
    """The second engine is stopped, so that it dies before its first new token."""
    (lane,) = [one for one in kinds(1000) if one.name.startswith("chat, greedy")]
    lane = Lane(lane.name, lane.path, {**lane.body, "max_tokens": 1500, "min_tokens": 1500}, lane.ends, True)

    def both_die() -> None:
        serving, other = by_work(cluster.processes(ENGINE))
        other.suspend()
        serving.kill()
        time.sleep(2)
        other.kill()

    (outcome,) = asked(cluster.url, [lane], 20, both_die)
    assert not outcome.is_whole
    assert b'"error"' in outcome.body
    cluster.whole_again()
    engines = {process.pid for process in cluster.processes(ENGINE)}
    (again,) = asyncio.run(_once(cluster.url, lane))
    assert again.status == 422 or again.is_whole  # the other router has not seen it
    time.sleep(5)
    assert {process.pid for process in cluster.processes(ENGINE)} == engines


async def _once(url: str, lane: Lane) -> list[Outcome]:
    async with aiohttp.ClientSession() as session:
        return [await ask(session, url, lane)]


def by_work(engines: Sequence[psutil.Process]) -> list[psutil.Process]:
    """The engines, the one first that uses most CPU time."""
    before = {process.pid: process.cpu_times().user for process in engines}
    time.sleep(1)
    return sorted(engines, key=lambda process: before[process.pid] - process.cpu_times().user)


@pytest.mark.usefixtures("unchanged")
def test_the_streams_of_a_deployment_without_engines_end_with_an_error(cluster: Cluster) -> None:
    """They wait ten seconds for a replica. Until then none can start: what it would be copied from is suspended."""
    may_end = ("chat, schema", "chat, tool")
    streams = [lane for lane in kinds(2000, tokens=1200) if not lane.name.startswith(may_end)]

    # A replica's own copies have the title of their template.
    own = {process.pid for process in cluster.processes(REPLICA)}
    templates = [process for process in cluster.processes(TEMPLATE) if process.ppid() not in own]
    assert templates

    def all_die() -> None:
        for template in templates:
            template.suspend()
        for process in cluster.processes(ENGINE):
            process.kill()

    try:
        outcomes = asked(cluster.url, streams, len(streams) * 8, all_die)
    finally:
        for template in templates:
            template.resume()
    ended_late = [outcome for outcome in outcomes if outcome.is_whole]
    assert ended_late == []
    # Azure's and Friendli's clients take no error event: their connection breaks.
    silent = [outcome for outcome in outcomes if b"error" not in outcome.body and outcome.error is None]
    assert silent == []
