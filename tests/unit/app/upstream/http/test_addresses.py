"""Name resolution."""

import asyncio
import socket
from collections import deque

import pytest
from aiohappyeyeballs import AddrInfoType

from app.upstream.http.client import Addresses


def found(*hosts: str) -> deque[AddrInfoType]:
    return deque((socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 80)) for host in hosts)


class Names:
    """Resolves a name to three addresses when `go` is set, or raises `error`."""

    def __init__(self) -> None:
        self.lookups: list[str] = []
        self.go = asyncio.Event()
        self.error: OSError | None = None

    async def look_up(self, host: str, port: int) -> deque[AddrInfoType]:
        self.lookups.append(host)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return found("10.0.0.1", "10.0.0.2", "10.0.0.3")


@pytest.fixture
def names() -> Names:
    return Names()


async def first(known: Addresses) -> str:
    return str((await known.of("engine", 80))[0][4][0])


async def test_concurrent_callers_share_a_lookup_and_rotate_addresses(names: Names) -> None:
    known = Addresses(look_up=names.look_up)
    asking = [asyncio.create_task(first(known)) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.sleep(0)
    names.go.set()
    turns = [*await asyncio.gather(*asking[1:]), await first(known), await first(known)]
    assert sorted(turns[:3]) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert turns[3] == turns[0]
    assert names.lookups == ["engine"]


async def test_a_name_is_looked_up_again_after_a_while(names: Names) -> None:
    known = Addresses(fresh_s=-1, look_up=names.look_up)
    names.go.set()
    for _ in range(2):
        await first(known)
    assert names.lookups == ["engine", "engine"]


async def test_a_failure_is_not_kept(names: Names) -> None:
    known = Addresses(look_up=names.look_up)
    names.go.set()
    names.error = socket.gaierror("no such name")
    with pytest.raises(OSError, match="no such name"):
        await first(known)
    names.error = None
    assert (await first(known)).startswith("10.0.0.")


async def test_addresses_are_resolved_to_themselves() -> None:
    known = await Addresses().of("127.0.0.1", 80)
    assert [address[4] for address in known] == [("127.0.0.1", 80)]
