"""The counts themselves, in memory and in a real Redis: two implementations with the same behaviour."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.limits.redis_store import shared_store
from app.limits.store import Store, StoreFailed
from tests.support.processes.certificates import certificate_for, server_context
from tests.support.processes.raw_server import tls_in_front_of
from tests.support.processes.redis_server import RedisServer, redis_server
from tests.support.processes.servers import free_port
from tests.support.waiting import wait_until_async


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(params=["memory", "redis", "valkey's scheme"])
async def store(request: pytest.FixtureRequest, server: RedisServer) -> AsyncIterator[Store]:
    """An empty store of each kind."""
    if (rest := 60 - time.time() % 60) < 5:
        await asyncio.sleep(rest + 0.1)
    if request.param == "memory":
        store = Store.in_memory()
    else:
        server.stop()
        server.start()
        url = server.url if request.param == "redis" else server.url.replace("redis:", "valkey:")
        store = shared_store(url, timeout_s=60)  # the machine may be busy
    yield store
    await store.close()


async def test_only_counts_that_fit_are_added(store: Store) -> None:
    assert await store.take("k", 10, 6)
    assert not await store.take("k", 10, 5)
    assert await store.take("k", 10, 4)
    assert await store.take("another", 10, 10)
    window = await store.window("k")
    assert (window.used, window.remaining(10)) == (10, 0)
    assert 60 <= window.current_left_s <= 120
    assert 0 < window.frees_in_s(10, 1) <= 120


async def test_added_counts_may_exceed_the_limit_and_be_refunded(store: Store) -> None:
    await store.add("k", 500)
    assert (await store.window("k")).used == 500
    assert not await store.take("k", 10, 1)
    await store.add("k", -499)
    assert (await store.window("k")).used == 1
    assert await store.take("k", 10, 9)


async def test_an_untouched_key_is_empty(store: Store) -> None:
    window = await store.window("k")
    assert (window.used, window.resets_in_s) == (0, 0.0)


async def test_no_more_than_the_limit_fits_however_many_ask_at_once(store: Store) -> None:
    outcomes = await asyncio.gather(*(store.take("k", 10, 1) for _ in range(30)))
    assert outcomes.count(True) == 10


async def test_leases_are_held_until_they_are_released(store: Store) -> None:
    assert [await store.acquire("k", 2, holder) for holder in "abc"] == [True, True, False]
    await store.release("k", "c")
    assert not await store.acquire("k", 2, "d")
    await store.release("k", "a")
    await store.renew()
    assert await store.acquire("k", 2, "d")
    assert await store.acquire("another", 1, "e")


async def test_leases_of_a_router_that_died_end_and_those_of_a_living_one_do_not(server: RedisServer) -> None:
    dead, living = shared_store(server.url, lease_s=2), shared_store(server.url, lease_s=2)
    assert await dead.acquire("lease", 2, "theirs")
    assert await living.acquire("lease", 2, "ours")
    assert not await living.acquire("lease", 2, "more")

    async def free() -> bool:
        await living.renew()
        return await living.acquire("lease", 2, "more")

    await wait_until_async(free)
    assert not await living.acquire("lease", 2, "one more"), "the running router's lease ended"
    await dead.close()
    await living.close()


async def test_an_unreachable_store_fails() -> None:
    store = shared_store(f"redis://:secret@127.0.0.1:{free_port()}")
    for question in (store.take("k", 1, 1), store.add("k", 1), store.window("k"), store.acquire("k", 1, "h")):
        with pytest.raises(StoreFailed) as raised:
            await question
        assert "secret" not in str(raised.value)
    await store.close()


async def test_a_store_that_hangs_fails_in_time() -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(swallow, "127.0.0.1", 0)
    store = shared_store(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    with pytest.raises(StoreFailed):
        await asyncio.wait_for(store.take("k", 1, 1), 3)
    await store.close()
    listener.close()
    await listener.wait_closed()


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
async def test_tls_needs_a_certificate_of_a_trusted_authority_for_the_stores_name(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    certificate, key = certificate_for("127.0.0.1", tmp_path)
    async with tls_in_front_of(server.port, server_context(certificate, key)) as front:
        url = front.url.replace("https", scheme)
        by_url = f"{url}?ssl_ca_certs={certificate}"

        async def counts(url: str, trusted: str) -> bool:
            monkeypatch.setenv("SSL_CERT_FILE", trusted)
            store = shared_store(url)
            try:
                return await store.take(scheme, 100, 1)
            finally:
                await store.close()

        assert await counts(url, str(certificate))
        assert await counts(by_url, "/dev/null")
        for refused, trusted in ((url, "/dev/null"), (by_url.replace("127.0.0.1", "localhost"), str(certificate))):
            with pytest.raises(StoreFailed):
                await counts(refused, trusted)


async def test_a_store_that_comes_back_is_used_again(server: RedisServer) -> None:
    store = shared_store(server.url)
    assert await store.take("back", 5, 1)
    server.stop()
    with pytest.raises(StoreFailed):
        await store.take("back", 5, 1)
    server.start()
    assert await store.take("back", 5, 1)
    await store.close()


async def test_the_previous_window_fades_as_the_clock_moves_on() -> None:
    now = 90.0
    store = Store.in_memory(lambda: now)
    await store.add("k", 60)
    now = 135.0  # 15 s into the next window: 45 s of the previous one still count
    assert (await store.window("k")).used == 45
    assert not await store.take("k", 50, 6)
    assert await store.take("k", 50, 5)
    now = 180.0
    assert (await store.window("k")).used == 5
    now = 300.0
    assert (await store.window("k")).used == 0


async def test_the_running_requests_of_a_key_are_counted(store: Store) -> None:
    assert await store.running("k") == 0
    assert await store.acquire("k", 3, "first")
    assert await store.acquire("k", 3, "second")
    assert await store.acquire("another", 3, "third")
    assert await store.running("k") == 2
    await store.release("k", "first")
    assert await store.running("k") == 1
