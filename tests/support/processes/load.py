"""Continuous traffic over every dialect, whole and streamed, and the outcome of every request."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp

SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "Say something."}]}
PAUSE_S = 0.2
GIVE_UP_S = 180.0


@dataclass(frozen=True)
class Lane:
    """One kind of request; `ends` is in the end of every whole answer or stream, `fails` in no successful one."""

    name: str
    path: str
    body: Mapping[str, Any]
    ends: bytes
    streamed: bool
    headers: Mapping[str, str] = field(default_factory=dict)


def lanes(endpoint: str = "chat", tokens: int = 8) -> Sequence[Lane]:
    """Every dialect, whole and streamed."""
    length = {"max_tokens": tokens}
    chat = {"model": endpoint, **SAY, **length}
    tgi = {"inputs": "Say something.", "parameters": {"max_new_tokens": tokens, "details": True}}
    text = {"model": endpoint, "prompt": "Say something.", **length, "min_tokens": tokens}
    azure, version = {"user-agent": "azsdk-python-ai-inference/1.0"}, "?api-version=2024-05-01-preview"
    by_name = f"/serving-endpoints/{endpoint}/invocations"
    done, whole = b"data: [DONE]", b'"usage"'
    return [
        Lane("openai", "/v1/chat/completions", chat, whole, False),
        Lane("openai", "/v1/chat/completions", {**chat, "stream": True}, done, True),
        Lane("anthropic", "/v1/messages", chat, whole, False),
        Lane("anthropic", "/v1/messages", {**chat, "stream": True}, b"message_stop", True),
        Lane("azure", f"/chat/completions{version}", chat, whole, False, azure),
        Lane("azure", f"/chat/completions{version}", {**chat, "stream": True}, done, True, azure),
        Lane("databricks", by_name, {**SAY, **length}, whole, False),
        Lane("databricks", by_name, {**SAY, **length, "stream": True}, done, True),
        Lane("tgi", f"/tgi/{endpoint}/generate", tgi, b'"generated_text"', False),
        Lane("tgi", f"/tgi/{endpoint}/generate_stream", tgi, b'"generated_text":"', True),
        Lane("friendli", "/serverless/v1/completions", text, whole, False),
        Lane("friendli", "/serverless/v1/completions", {**text, "stream": True}, b'"event":"complete"', True),
    ]


def sent(url: str, lane: Lane) -> socket.socket:
    """A connection on which the request has been sent."""
    host = urlsplit(url)
    body = json.dumps(lane.body).encode()
    headers = {
        "host": host.netloc,
        "content-type": "application/json",
        "content-length": str(len(body)),
        **lane.headers,
    }
    head = f"POST {lane.path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    client = socket.create_connection((host.hostname, host.port), timeout=60)
    client.sendall(head.encode() + b"\r\n" + body)
    return client


@dataclass(frozen=True)
class Outcome:
    """The outcome of one request. Times are `time.monotonic`'s; `got` is the number of bytes of the body."""

    lane: Lane
    begun: float
    ended: float
    status: int | None
    headers: Mapping[str, str]
    body: bytes
    error: str | None

    @property
    def is_whole(self) -> bool:
        """Answered in full."""
        return self.error is None and self.status == 200 and self.lane.ends in self.body

    def __str__(self) -> str:
        kind = "streamed" if self.lane.streamed else "whole"
        tail = self.body[-160:].decode(errors="replace")
        return f"{self.lane.name} {kind} after {self.ended - self.begun:.1f} s: {self.status} {self.error} …{tail}"


async def ask(
    session: aiohttp.ClientSession, url: str, lane: Lane, comes: Callable[[float], None] = lambda begun: None
) -> Outcome:
    """One request, whatever becomes of it. `comes` gets its time once a part of the answer is there."""
    begun, status, headers, error = time.monotonic(), None, {}, None
    body = bytearray()
    try:
        async with (
            asyncio.timeout(GIVE_UP_S),
            session.post(url + lane.path, json=lane.body, headers=lane.headers) as answer,
        ):
            status, headers = answer.status, {name.lower(): value for name, value in answer.headers.items()}
            async for chunk in answer.content.iter_any():
                body += chunk
                comes(begun)
    except TimeoutError:
        error = f"no end within {GIVE_UP_S:g} s"
    except aiohttp.ClientError as failure:
        error = repr(failure)
    return Outcome(lane, begun, time.monotonic(), status, headers, bytes(body), error)


async def ask_all(url: str, requests: Iterable[Lane], *, at_once: int = 8) -> list[Outcome]:
    """Sends every request, a limited number at a time; returns the outcomes in the order in which they ended."""
    waiting, outcomes = iter(requests), list[Outcome]()

    async def work(session: aiohttp.ClientSession) -> None:
        for lane in waiting:
            outcomes.append(await ask(session, url, lane))

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(work(session) for _ in range(at_once)))
    return outcomes


class Traffic:
    """The driver while it runs."""

    def __init__(self, url: str, kinds: Sequence[Lane]) -> None:
        self._url, self._kinds = url, kinds
        self._stop = threading.Event()
        self._outcomes: list[Outcome] = []
        self._coming: dict[int, float] = {}
        """The times of the requests whose answers are arriving, by the lane's index."""

    def since(self, moment: float) -> list[Outcome]:
        """Every request that ended after `moment`, so far."""
        return [outcome for outcome in list(self._outcomes) if outcome.ended >= moment]

    def stop(self) -> None:
        """Starts no more requests."""
        self._stop.set()

    def flows(self, count: int = 3, *, within_s: float = 90) -> None:
        """Waits until every lane has ended `count` more requests. Fails if one does not."""
        begun = time.monotonic()
        while len(slow := [lane for lane in self._kinds if self._ended(lane, begun) < count]):
            assert time.monotonic() - begun < within_s, [f"{lane.name} {lane.streamed}" for lane in slow]
            time.sleep(0.05)

    def all_at_once(self, *, within_s: float = 90) -> float:
        """Waits for a moment at which an answer is arriving on every lane, and returns it. Fails if there is none."""
        deadline = time.monotonic() + within_s
        while True:
            moment = time.monotonic()
            begun = dict(self._coming)
            if len(begun) == len(self._kinds) and max(begun.values()) < moment:
                return moment
            assert moment < deadline, [kind.name for place, kind in enumerate(self._kinds) if place not in begun]
            time.sleep(0.005)

    def _ended(self, lane: Lane, begun: float) -> int:
        return sum(1 for outcome in self.since(begun) if outcome.lane is lane and outcome.begun >= begun)

    async def _drive(self) -> None:
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(self._repeat(session, place) for place in range(len(self._kinds))))

    async def _repeat(self, session: aiohttp.ClientSession, place: int) -> None:
        comes = partial(self._coming.__setitem__, place)
        while not self._stop.is_set():
            self._outcomes.append(await ask(session, self._url, self._kinds[place], comes))
            self._coming.pop(place, None)
            await asyncio.sleep(PAUSE_S)

    @contextmanager
    def running(self) -> Iterator["Traffic"]:
        """Sends traffic while the block runs; on leaving, waits for running requests."""
        driver = threading.Thread(target=lambda: asyncio.run(self._drive()))
        driver.start()
        try:
            yield self
        finally:
            self.stop()
            driver.join()


def unexplained(outcomes: Sequence[Outcome], explains: Callable[[Outcome], bool] = lambda outcome: False) -> list[str]:
    """The requests that were not answered in full and that `explains` does not account for."""
    return [str(outcome) for outcome in outcomes if not outcome.is_whole and not explains(outcome)]
