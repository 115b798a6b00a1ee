"""An HTTP client of the controller of experiments, which is another process."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Self

import aiohttp
from yarl import URL

from app.errors import Broken, TimedOut, Unavailable
from app.exposures.controller_client import Answer, ExportStream
from app.internal_api import (
    API_PATH,
    APP_PREFIX,
    BATCHES_PATH,
    CONTROLLER_HEADER,
    EXPERIMENTS,
    EXPORT_PATH,
    INTERNAL_KEY_HEADER,
    MESSAGE_PACK,
    RECORDINGS_PATH,
)
from app.internal_keys import Purpose, sent
from app.upstream.target import RuntimeEnvironment

BATCH_TIMEOUT_S = 2.0
RECORDING_TIMEOUT_S = 10.0
QUESTION_TIMEOUT_S = 30.0
"""A report of millions of requests may take a moment."""

_UNAVAILABLE = "The controller of experiments is not available"


class HttpController:
    """A `ControllerClient`, a `RecordingClient` and an `ExportClient`.

    An async context manager: it opens and closes its connections.
    """

    def __init__(self, environment: RuntimeEnvironment) -> None:
        self._url = f"{environment.serve_url.rstrip('/')}{APP_PREFIX}{EXPERIMENTS}"
        self._headers = {INTERNAL_KEY_HEADER: sent(environment.internal_key, Purpose.CONTROLLER)}
        self._open: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._open = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(keepalive_timeout=15),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._open is not None
        await self._open.close()

    async def send(self, batch: bytes) -> bytes:
        """Raises Unavailable, TimedOut, and Broken if the controller refuses the batch."""
        headers = {"content-type": MESSAGE_PACK}
        async with self._asked("POST", self._url + BATCHES_PATH, BATCH_TIMEOUT_S, batch, headers) as response:
            body = await response.read()
            if response.status == 200:
                return body
            if response.status >= 500:
                raise Unavailable(_UNAVAILABLE)
            raise Broken(f"The controller of experiments refused a batch with status {response.status}: {body[:500]!r}")

    async def record(self, recording: bytes) -> None:
        """Raises Unavailable, TimedOut, and Broken if the controller refuses the recording."""
        headers = {"content-type": MESSAGE_PACK}
        url = self._url + RECORDINGS_PATH
        async with self._asked("POST", url, RECORDING_TIMEOUT_S, recording, headers) as response:
            if response.status >= 500:
                raise Unavailable(_UNAVAILABLE)
            if response.status >= 400:
                raise Broken(f"The controller of experiments refused a recording with status {response.status}")

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        """Raises Unavailable and TimedOut."""
        url = URL(self._url + API_PATH).joinpath(*path.lstrip("/").split("/")).with_query(dict(query))
        async with self._asked(method, url, QUESTION_TIMEOUT_S, body, {}) as response:
            return Answer(response.status, await response.read(), response.headers.get("content-type", ""))

    @asynccontextmanager
    async def export(self, query: Mapping[str, str]) -> AsyncIterator[ExportStream | Answer]:
        """Raises Unavailable and TimedOut. The timeout holds for each piece, not for the whole export."""
        url = URL(self._url + EXPORT_PATH).with_query(dict(query))
        timeout = aiohttp.ClientTimeout(sock_connect=QUESTION_TIMEOUT_S, sock_read=QUESTION_TIMEOUT_S)
        async with self._asked("GET", url, timeout, b"", {}) as response:
            media_type = response.headers.get("content-type", "")
            if response.status == 200:
                yield ExportStream(media_type, response.content.iter_any())
            else:
                yield Answer(response.status, await response.read(), media_type)

    @asynccontextmanager
    async def _asked(
        self,
        method: str,
        url: str | URL,
        timeout_s: float | aiohttp.ClientTimeout,
        body: bytes,
        headers: Mapping[str, str],
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._open is not None, "entered by the router's lifespan"
        timeout = aiohttp.ClientTimeout(total=timeout_s) if isinstance(timeout_s, float) else timeout_s
        try:
            async with self._open.request(method, url, data=body, headers=headers, timeout=timeout) as response:
                if CONTROLLER_HEADER not in response.headers:  # the ingress, which has no replica
                    raise Unavailable(_UNAVAILABLE)
                yield response
        except TimeoutError as error:
            raise TimedOut("The controller of experiments did not respond in time") from error
        except aiohttp.ClientError as error:
            raise Unavailable(_UNAVAILABLE) from error
