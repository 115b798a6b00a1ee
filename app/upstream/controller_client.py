"""An HTTP client of the controller of experiments, which is another process."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Self

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
from app.upstream.http.client import HttpClient, Response
from app.upstream.http.connection import ConnectTimedOut, HttpError
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
        self._open: HttpClient | None = None

    async def __aenter__(self) -> Self:
        self._open = HttpClient()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._open is not None
        self._open.close()

    async def send(self, batch: bytes) -> bytes:
        """Raises Unavailable, TimedOut, and Broken if the controller refuses the batch."""
        answer = await self._answer("POST", self._url + BATCHES_PATH, batch, BATCH_TIMEOUT_S, MESSAGE_PACK)
        if answer.status == 200:
            return answer.body
        if answer.status >= 500:
            raise Unavailable(_UNAVAILABLE)
        said = f"status {answer.status}: {answer.body[:500]!r}"
        raise Broken(f"The controller of experiments refused a batch with {said}")

    async def record(self, recording: bytes) -> None:
        """Raises Unavailable, TimedOut, and Broken if the controller refuses the recording."""
        url = self._url + RECORDINGS_PATH
        answer = await self._answer("POST", url, recording, RECORDING_TIMEOUT_S, MESSAGE_PACK)
        if answer.status >= 500:
            raise Unavailable(_UNAVAILABLE)
        if answer.status >= 400:
            raise Broken(f"The controller of experiments refused a recording with status {answer.status}")

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        """Raises Unavailable and TimedOut."""
        url = URL(self._url + API_PATH).joinpath(*path.lstrip("/").split("/")).with_query(dict(query))
        return await self._answer(method, str(url), body, QUESTION_TIMEOUT_S)

    @asynccontextmanager
    async def export(self, query: Mapping[str, str]) -> AsyncIterator[ExportStream | Answer]:
        """Raises Unavailable and TimedOut. The timeout holds for each piece, not for the whole export."""
        url = URL(self._url + EXPORT_PATH).with_query(dict(query))
        with _translated():
            async with asyncio.timeout(QUESTION_TIMEOUT_S):
                response = await self._sent("GET", str(url), b"", "")
            with closing(response):
                if response.status == 200:
                    yield ExportStream(response.headers.get("content-type", ""), _pieces(response))
                else:
                    yield await _read(response)

    async def _answer(self, method: str, url: str, body: bytes, timeout_s: float, media_type: str = "") -> Answer:
        with _translated():
            async with asyncio.timeout(timeout_s):
                with closing(await self._sent(method, url, body, media_type)) as response:
                    return await _read(response)

    async def _sent(self, method: str, url: str, body: bytes, media_type: str) -> Response:
        """The head of the controller's own answer, whose body is still to be read."""
        assert self._open is not None, "entered by the router's lifespan"
        headers = {**self._headers, "content-type": media_type} if media_type else self._headers
        if method == "GET":
            response = await self._open.get(url, headers, QUESTION_TIMEOUT_S, redirects=0)
        else:
            response = await self._open.send(method, url, headers, body, QUESTION_TIMEOUT_S)
        if CONTROLLER_HEADER not in response.headers:  # the ingress, which has no replica
            response.close()
            raise Unavailable(_UNAVAILABLE)
        return response


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (TimeoutError, ConnectTimedOut) as error:
        raise TimedOut("The controller of experiments did not respond in time") from error
    except HttpError as error:
        raise Unavailable(_UNAVAILABLE) from error


async def _read(response: Response) -> Answer:
    return Answer(response.status, await response.whole(), response.headers.get("content-type", ""))


async def _pieces(response: Response) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(QUESTION_TIMEOUT_S):
            if not (piece := await response.read()):
                return
        yield piece
