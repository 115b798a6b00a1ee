"""The one seam to deployments: a call to one over HTTP.

Whatever goes wrong on the wire leaves here as one of our errors. The timeouts until the first byte are kept here, those
after it by the exchange.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
from pydantic_core import from_json, to_json

from app.config import (
    APP_PREFIX,
    INTERNAL_KEY_HEADER,
    INTERNAL_KEY_VARIABLE,
    Config,
    ConfigError,
    Deployment,
    Timeouts,
)
from app.engine import engine_error
from app.errors import Broken, Incomplete, Rejected, SwitchyardError, TimedOut, Unavailable, UpstreamError
from app.model import MODEL_PATH, Model

_MAX_ERROR_BYTES = 64 * 1024
_MODEL_FRESH_S = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where a deployment is: base URL without /v1, the model's name there, the headers that open it."""

    name: str
    url: str
    model: str
    headers: Mapping[str, str]
    tokenizer_dir: Path | None = None

    def __repr__(self) -> str:
        return f"Target({self.name!r}, {self.url!r})"  # the headers hold a key


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process knows beside its configuration: the Serve ingress's URL, and the key to model applications.

    `loopback`: only this machine reaches it. `several_routers`: others serve the same callers with it.
    """

    serve_url: str = "http://127.0.0.1:8000"
    internal_key: str = ""
    loopback: bool = True
    several_routers: bool = False

    @classmethod
    def from_environment(cls, serve_url: str, *, loopback: bool, several_routers: bool = False) -> Self:
        """With the key from SWITCHYARD_INTERNAL_KEY."""
        key = os.environ.get(INTERNAL_KEY_VARIABLE, "")
        return cls(serve_url, key, loopback=loopback, several_routers=several_routers)


def targets(config: Config, surroundings: Surroundings) -> dict[str, Target]:
    """Every deployment's Target. Raises ConfigError where a key's variable or file cannot be read."""
    problems: list[str] = []
    found: dict[str, Target] = {}
    for name, deployment in config.deployments.items():
        try:
            found[name] = _target(name, deployment, surroundings)
        except OSError as error:
            problems.append(f"deployments.{name}.api_key_file: {deployment.api_key_file}: {error.strerror}")
        except KeyError:
            problems.append(f"deployments.{name}.api_key_env: the variable {deployment.api_key_env} is not set")
    if problems:
        raise ConfigError(problems)
    return found


def _target(name: str, deployment: Deployment, surroundings: Surroundings) -> Target:
    if deployment.url is None:
        url = f"{surroundings.serve_url.rstrip('/')}{APP_PREFIX}{deployment.app}"
        return Target(name, url, deployment.model, {INTERNAL_KEY_HEADER: surroundings.internal_key})
    key = None
    if deployment.api_key_env is not None:
        key = os.environ[deployment.api_key_env]
    elif deployment.api_key_file is not None:
        key = deployment.api_key_file.read_text().strip()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return Target(name, deployment.url.rstrip("/"), deployment.model, headers, deployment.tokenizer_dir)


class Upstream:
    """The connections to deployments. One per process; an async context manager that opens and closes them.

    Every call POSTs a body with the target's own model name in it. It raises Rejected where the deployment refuses
    the request and UpstreamError where it fails, in both cases before the first byte of an answer.
    """

    def __init__(self) -> None:
        self._open: aiohttp.ClientSession | None = None
        self._models: dict[str, _Known] = {}

    async def __aenter__(self) -> Self:
        self._open = aiohttp.ClientSession(
            # The bound on concurrent requests is admission's; a second one here would queue in silence.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
            cookie_jar=aiohttp.DummyCookieJar(),  # one deployment's cookies are no business of the next caller's
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._open is not None, "entered by the application's lifespan"
        return self._open

    async def unary(
        self, target: Target, path: str, body: Mapping[str, Any], *, request_id: str, timeouts: Timeouts
    ) -> bytes:
        """The whole answer."""
        with _translated(target):
            async with asyncio.timeout(timeouts.first_byte_s):
                response = await self._post(target, path, body, request_id, timeouts)
                async with response:
                    if response.status != 200:
                        raise await _refusal(response, target)
                    return await response.read()

    @asynccontextmanager
    async def stream(
        self, target: Target, path: str, body: Mapping[str, Any], *, request_id: str, timeouts: Timeouts
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The answer's chunks as they arrive, entered once the first one is here.

        The iterator raises UpstreamError. Leaving the block before the end closes the connection, which ends the
        engine's work.
        """
        with _translated(target):
            async with asyncio.timeout(timeouts.first_byte_s):
                response = await self._post(target, path, body, request_id, timeouts)
                try:
                    if response.status != 200:
                        raise await _refusal(response, target)
                    first = await response.content.readany()
                except BaseException:
                    response.close()
                    raise
        try:
            if not first:
                raise Incomplete(f"Deployment '{target.name}' gave an empty answer")
            yield _chunks(response, first, target)
        finally:
            # After the body's end the connection is already back in the pool and this does nothing.
            response.close()

    async def _post(
        self, target: Target, path: str, body: Mapping[str, Any], request_id: str, timeouts: Timeouts
    ) -> aiohttp.ClientResponse:
        headers = {**target.headers, "content-type": "application/json", "x-request-id": request_id}
        data = to_json({**body, "model": target.model})
        limits = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect_s)
        return await self._session.post(target.url + path, data=data, headers=headers, timeout=limits)

    async def model(self, target: Target, timeouts: Timeouts) -> Model:
        """What `target` says of its model: kept, and asked again every half a minute, since a rollout can change it.

        Raises UpstreamError where it says nothing.
        """
        known = self._models.setdefault(target.url, _Known())
        async with known.lock:
            if known.model is None or time.monotonic() - known.when > _MODEL_FRESH_S:
                try:
                    with _translated(target):
                        async with asyncio.timeout(timeouts.first_byte_s):
                            await self._learn(target, known)
                except UpstreamError:
                    if known.model is None:
                        raise
                known.when = time.monotonic()
            assert known.model is not None
            return known.model

    async def _learn(self, target: Target, known: "_Known") -> None:
        elsewhere = target.tokenizer_dir is not None
        headers = {**target.headers, **({"if-none-match": known.etag} if known.etag else {})}
        path = "/v1/models" if elsewhere else MODEL_PATH
        async with self._session.get(target.url + path, headers=headers) as response:
            if response.status == 304:
                return
            if response.status != 200:
                refused = await _refusal(response, target)
                said_no = isinstance(refused, Rejected)
                raise Broken(f"Deployment '{target.name}' does not tell about its model") if said_no else refused
            body = await response.read()
        known.etag = response.headers.get("etag")
        if target.tokenizer_dir is not None:
            known.model = await asyncio.to_thread(Model.load, target.tokenizer_dir, _max_len(body, target))
        else:
            known.model = await asyncio.to_thread(Model.read, body)

    async def probe(self, target: Target, timeout_s: float) -> bool:
        """Whether the deployment says that it is healthy."""
        limits = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.get(f"{target.url}/health", headers=target.headers, timeout=limits) as response:
                return response.status < 500 and response.status not in (401, 403)
        except (aiohttp.ClientError, TimeoutError):
            return False


@dataclass(slots=True)
class _Known:
    """A deployment's model as it was last told."""

    model: Model | None = None
    etag: str | None = None
    when: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def _max_len(models: bytes, target: Target) -> int:
    """The context length in vLLM's list of models."""
    try:
        listed = from_json(models)["data"]
        return next(int(card["max_model_len"]) for card in listed if card["id"] == target.model)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise Broken(f"Deployment '{target.name}' does not tell how long its context is") from error


async def _chunks(response: aiohttp.ClientResponse, first: bytes, target: Target) -> AsyncIterator[bytes]:
    yield first
    with _translated(target):
        while chunk := await response.content.readany():
            yield chunk


async def _refusal(response: aiohttp.ClientResponse, target: Target) -> SwitchyardError:
    body = await response.content.read(_MAX_ERROR_BYTES)
    status = response.status
    if status in (401, 403):
        return Broken(f"Deployment '{target.name}' refused the router's own credentials")
    if status >= 500 and not response.content_type.endswith("json"):
        # Not the engine's words: the ingress in front of it has nobody to ask.
        return Unavailable(f"Deployment '{target.name}' is not available")
    if status in (429, 503):
        return Unavailable(f"Deployment '{target.name}' takes no more requests at the moment", retry_after=1)
    return engine_error(body, status)


@contextmanager
def _translated(target: Target | None = None) -> Iterator[None]:
    """Foreign exceptions as ours, the most specific first. What a client reads names no address."""
    name = f"Deployment '{target.name}'" if target else "The deployment"
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise TimedOut(f"{name} could not be reached in time") from error
    except (aiohttp.ServerTimeoutError, TimeoutError) as error:
        raise TimedOut(f"{name} did not answer in time") from error
    except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
        raise Unavailable(f"{name} is not available") from error
    except (aiohttp.ClientError, ValueError) as error:
        raise Incomplete(f"{name} ended its answer before it was complete") from error
