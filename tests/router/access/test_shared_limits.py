"""Two routers that share the counts of one real Redis, and what happens when it is unavailable."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from app.access.keys import create
from app.config.access import Limits
from app.config.base import ConfigError
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import PROMPT, Rig
from tests.support.engine.fake_engine import chunk, stream
from tests.support.processes.redis_server import RedisServer, redis_server
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until, wait_until_async

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "x" * 396}]}  # estimated at 100 tokens
SEVERAL = RuntimeEnvironment(several_routers=True)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


class Pair:
    """Two routers with one configuration, and the clients of both."""

    def __init__(self, rig: Rig, urls: tuple[str, str], routers: tuple[Router, Router]) -> None:
        self.rig, self.urls, self.routers = rig, urls, routers

    def limit(self, redis: RedisServer, *, on_store_failure: str = "allow", **limits: int) -> None:
        counted = {"store": {"url": redis.url}, "default": limits, "on_store_failure": on_store_failure}
        for router in self.routers:
            router.reconfigure({**self.rig.config, "access": {"limits": counted}})

    async def ask(self, which: int, **fields: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=30) as client:
            return await client.post(f"{self.urls[which]}/v1/chat/completions", json={**CHAT, **fields})

    def metrics(self, which: int) -> str:
        return httpx.get(f"{self.urls[which]}/metrics").text

    def failures(self, which: int) -> float:
        lines = self.metrics(which).splitlines()
        (line,) = (line for line in lines if line.startswith("switchyard_limit_store_failures_total "))
        return float(line.rpartition(" ")[2])


@pytest.fixture
def pair(rig: Rig, servers: ServerPool) -> Iterator[Pair]:
    one, other = (Router(SEVERAL, random=Random(seed), access_timing=PROMPT) for seed in (1, 2))
    for router in (one, other):
        router.reconfigure(rig.config)
    with servers.host(one.app) as first, servers.host(other.app) as second:
        yield Pair(rig, (first, second), (one, other))


async def test_requests_are_counted_together(pair: Pair, redis: RedisServer) -> None:
    pair.limit(redis, requests_per_minute=3)
    answers = [await pair.ask(which) for which in (0, 1, 0, 1, 0)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0", "0", "0"]
    assert 1 <= int(answers[3].headers["retry-after"]) <= 120


async def test_tokens_are_settled_for_both(pair: Pair, redis: RedisServer) -> None:
    pair.limit(redis, tokens_per_minute=1000)
    assert (await pair.ask(0)).headers["x-ratelimit-remaining-tokens"] == "900"
    assert (await pair.ask(1, stream=True)).headers["x-ratelimit-remaining-tokens"] == "888"
    assert (await pair.ask(0)).headers["x-ratelimit-remaining-tokens"] == "876"


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answered_request_is_no_disconnect_while_its_limits_are_settled(
    pair: Pair, redis: RedisServer, streamed: bool
) -> None:
    """Servers report a disconnect after every answer."""
    pair.limit(redis, requests_per_minute=100)
    for _ in range(3):
        assert (await pair.ask(0, stream=streamed)).status_code == 200
    metrics = pair.metrics(0)
    assert 'status="200"' in metrics
    assert 'status="499"' not in metrics


async def test_concurrent_requests_are_counted_together_and_freed(pair: Pair, redis: RedisServer) -> None:
    pair.limit(redis, concurrent_requests=3)
    pair.rig.blue.answer = lambda body: stream([0.5, chunk("a", finish_reason="stop"), "data: [DONE]\n\n"])
    answers = await asyncio.gather(*(pair.ask(number % 2, stream=True) for number in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5
    pair.rig.blue.reset()
    assert [(await pair.ask(which)).status_code for which in (0, 1)] == [200, 200]


async def test_without_the_store_requests_pass_and_the_failure_is_counted(pair: Pair, redis: RedisServer) -> None:
    pair.limit(redis, requests_per_minute=1, tokens_per_minute=1000, concurrent_requests=1)
    assert (await pair.ask(0)).status_code == 200
    redis.stop()
    for _ in range(3):
        answer = await pair.ask(0)
        assert answer.status_code == 200
        assert "x-ratelimit-limit-requests" not in answer.headers
    assert pair.failures(0) > 0
    assert pair.failures(1) == 0
    redis.start()
    await _soon(pair, 429)


async def _soon(pair: Pair, status: int) -> None:
    async def answered() -> bool:
        return (await pair.ask(0)).status_code == status

    await wait_until_async(answered)


async def test_without_the_store_requests_are_rejected_if_the_configuration_says_so(
    pair: Pair, redis: RedisServer
) -> None:
    pair.limit(redis, requests_per_minute=100, on_store_failure="refuse")
    assert (await pair.ask(0)).status_code == 200
    redis.stop()
    answer = await pair.ask(0)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "Rate limits are temporarily unavailable" in answer.text
    assert str(redis.port) not in answer.text
    redis.start()
    await _soon(pair, 200)


async def test_a_stream_outlives_its_store(pair: Pair, redis: RedisServer) -> None:
    pair.limit(redis, tokens_per_minute=1000, concurrent_requests=1)
    pair.rig.blue.answer = lambda body: stream([chunk("a"), 0.5, chunk("b", finish_reason="stop"), "data: [DONE]\n\n"])
    running = asyncio.create_task(pair.ask(0, stream=True))
    await asyncio.sleep(0.2)
    redis.stop()
    assert (await running).text.endswith("data: [DONE]\n\n")


def test_several_routers_reject_limits_in_memory(rig: Rig, tmp_path: Path) -> None:
    router = Router(SEVERAL)
    limited = {"limits": {"default": {"requests_per_minute": 1}}}
    with pytest.raises(ConfigError, match=r"access\.limits: several routers cannot count limits in memory"):
        router.reconfigure({**rig.config, "access": limited})
    keys = tmp_path / "keys.yaml"
    keys.write_text(create("small", limits=Limits(requests_per_minute=1))[1].line)
    with pytest.raises(ConfigError, match=r"access\.limits: several routers"):
        router.reconfigure({**rig.config, "access": {"keys_file": str(keys)}})


def test_keys_that_bring_limits_are_not_taken_by_several_routers_without_a_store(pair: Pair, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    good, record = create("free")
    keys.write_text(record.line)
    for router in pair.routers:
        router.reconfigure({**pair.rig.config, "access": {"keys_file": str(keys)}})
    keys.write_text(record.line + create("small", limits=Limits(requests_per_minute=1))[1].line)
    wait_until(lambda: 'outcome="refused"} 1.0' in httpx.get(f"{pair.urls[0]}/metrics").text)
    headers = {"authorization": f"Bearer {good}"}
    assert httpx.post(f"{pair.urls[0]}/v1/chat/completions", json=CHAT, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({"url_env": "SWITCHYARD_NO_SUCH"}, r"store\.url_env: the variable SWITCHYARD_NO_SUCH is not set"),
        ({"url_file": "/no/such/file"}, r"store\.url_file: /no/such/file: No such file"),
        ({"url_file": "/dev/null"}, r"store: the URL is not a Redis URL"),
    ],
)
def test_a_store_that_cannot_be_found_rejects_the_configuration(rig: Rig, store: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rig.change(access={"limits": {"store": store}})
