"""Clients of the application on the pod network, and the outcome of each request."""

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp

CONNECT_WITHIN_S = 5.0

Endpoints = Callable[[], Sequence[str]]
"""Returns the present addresses behind a Service."""


@dataclass(frozen=True)
class Ask:
    """A chat request for `chunks` chunks, `every_s` seconds apart. `within_s`: when the client gives up.

    `after_s`: how long after the others of its group it is sent. `fill`: a pod's name; an engine there takes `fill_mib`
    of memory for it.
    """

    chunks: int = 1
    every_s: float = 0.0
    streamed: bool = True
    endpoint: str = "chat"
    within_s: float = 120.0
    after_s: float = 0.0
    fill: str = ""
    fill_mib: int = 0

    def body(self) -> dict[str, object]:
        """The request in OpenAI's form. Each is its own conversation, since turns of one would go to one replica."""
        wanted = {"every_s": self.every_s, "fill": self.fill, "fill_mib": self.fill_mib}
        content = json.dumps({**wanted, "conversation": random.getrandbits(64)})
        messages = [{"role": "user", "content": content}]
        return {"model": self.endpoint, "messages": messages, "max_tokens": self.chunks, "stream": self.streamed}


@dataclass
class Outcome:
    """The outcome of a request. Times are `time.monotonic`'s; `first_at` is the first byte's of a body, `last_at` that
    of the newest data of a stream. `paused_s`: the longest time without data, in seconds.
    """

    ask: Ask
    begun: float
    status: int | None = None
    first_at: float | None = None
    last_at: float | None = None
    paused_s: float = 0.0
    ended: float | None = None
    text: str = ""
    error: str | None = None
    address: str = ""

    def took(self, text: str) -> None:
        """Adds what has just come. A comment is no data."""
        now = time.monotonic()
        self.first_at = self.first_at or now
        self.text += text
        if "data: " in text:
            self.paused_s = max(self.paused_s, now - (self.last_at or now))
            self.last_at = now

    @property
    def is_whole(self) -> bool:
        """Answered in full."""
        mark = "[DONE]" if self.ask.streamed else '"usage"'
        return self.ended is not None and self.error is None and self.status == 200 and mark in self.text

    @property
    def served_by(self) -> str:
        """`pod:pid` of the replica, empty without one."""
        content = re.search(r'"content": ?"([^" ]+)', self.text)
        return content[1] if content else ""

    @property
    def stream_error(self) -> dict[str, object] | None:
        """OpenAI's error object, from the event that ends a failed stream; None without one."""
        for line in self.text.split("\n"):
            try:
                event = json.loads(line.removeprefix("data: "))
            except ValueError:
                continue
            if isinstance(event, dict) and isinstance(event.get("error"), dict):
                error: dict[str, object] = event["error"]
                return error
        return None

    def __str__(self) -> str:
        lasted = (self.ended or time.monotonic()) - self.begun
        tail = self.text[-200:]
        return f"at {self.begun:.1f} by {self.address} after {lasted:.1f} s: {self.status} {self.error} …{tail}"


class Client:
    """Sends each request over a connection of its own to one endpoint of a Service, at random.

    If it accepts no connection, another one is tried, as an ingress in front would do.
    """

    def __init__(self, endpoints: Endpoints, key: str) -> None:
        self._endpoints, self._key = endpoints, key

    def ask(self, ask: Ask = Ask()) -> Outcome:
        """One request."""
        [outcome] = self.ask_all([ask])
        return outcome

    def ask_all(self, asks: Sequence[Ask]) -> list[Outcome]:
        """All at once."""
        with self.asking(asks) as running:
            return running.wait()

    @contextmanager
    def asking(self, asks: Sequence[Ask]) -> Iterator["RunningRequests"]:
        """Sends all at once, in the background; on leaving, waits until they have ended."""
        running = RunningRequests([Outcome(ask, time.monotonic()) for ask in asks])

        async def work() -> None:
            async with self._session() as session:
                await asyncio.gather(*(self._send(session, outcome) for outcome in running.outcomes))

        running.thread = threading.Thread(target=lambda: asyncio.run(work()))
        running.thread.start()
        try:
            yield running
        finally:
            running.thread.join()

    @contextmanager
    def dripping(self, every_s: float = 0.25, ask: Ask | None = None) -> Iterator["RunningRequests"]:
        """Sends a short request at regular intervals while the block runs; on leaving, waits for running ones."""
        running, stop = RunningRequests([]), threading.Event()
        wanted = ask or Ask(streamed=False)

        async def work() -> None:
            tasks = []
            async with self._session() as session:
                while not stop.is_set():
                    running.outcomes.append(outcome := Outcome(wanted, time.monotonic()))
                    tasks.append(asyncio.create_task(self._send(session, outcome)))
                    await asyncio.sleep(every_s)
                await asyncio.gather(*tasks)

        running.thread = threading.Thread(target=lambda: asyncio.run(work()))
        running.thread.start()
        try:
            yield running
        finally:
            stop.set()
            running.thread.join()

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN_S)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        return aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers={"authorization": f"Bearer {self._key}"}
        )

    async def _send(self, session: aiohttp.ClientSession, outcome: Outcome) -> None:
        await asyncio.sleep(outcome.ask.after_s)
        outcome.begun = time.monotonic()
        try:
            async with asyncio.timeout(outcome.ask.within_s):
                await self._exchange(session, outcome)
        except TimeoutError:
            outcome.error = f"no end within {outcome.ask.within_s:g} s"
        except aiohttp.ClientError as failure:
            outcome.error = repr(failure)
        outcome.ended = time.monotonic()

    async def _exchange(self, session: aiohttp.ClientSession, outcome: Outcome) -> None:
        refused: set[str] = set()
        while True:
            address = random.choice([address for address in self._endpoints() if address not in refused] or [""])
            if not address:
                outcome.error = f"no endpoint takes connections, tried {sorted(refused)}"
                return
            outcome.address = address
            try:
                url = f"http://{address}:8000/v1/chat/completions"
                async with session.post(url, json=outcome.ask.body()) as response:
                    outcome.status = response.status
                    async for data in response.content.iter_any():
                        outcome.took(data.decode(errors="replace"))
                    return
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                refused.add(address)


class RunningRequests:
    """Requests in progress; `outcomes` grows as they end."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        self.thread = threading.Thread()

    def have_started(self) -> bool:
        """Whether every stream has had its first bytes."""
        return all(outcome.first_at is not None for outcome in self.outcomes)

    def wait(self) -> list[Outcome]:
        """Waits until all have ended."""
        self.thread.join()
        return self.outcomes


def lost(outcomes: Sequence[Outcome]) -> list[str]:
    """Descriptions of the requests that were not answered in full."""
    return [str(outcome) for outcome in outcomes if outcome.ended is not None and not outcome.is_whole]
