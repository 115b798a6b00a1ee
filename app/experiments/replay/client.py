"""Sends one replayed request to one arm, and records the answer in an exposure, as a router's forwarder does."""

import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from app.engine.usage import Usage, find_usage
from app.errors import Broken, SwitchyardError, TimedOut, Unavailable, Unreachable
from app.experiments.replay.requests import ReplayRequest
from app.exposures.exposure import Exposure
from app.exposures.log import RequestEnd
from app.routing.traffic import DEPLOYMENT_HEADER

_FAILURES: Mapping[int, type[SwitchyardError]] = {503: Unavailable, 504: TimedOut}
_WRONG = (401, 403, 404)
"""The server does not have the key, the endpoint or an arm: it would answer every request with this error."""

_LAST_CHUNKS = 8
"""The usage of a stream is in one of the last."""


class ReplayRefused(Exception):
    """The server rejects the whole replay; the message is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True, slots=True)
class ReplayClient:
    """`url` is the server's, without /v1."""

    session: aiohttp.ClientSession
    url: str
    headers: Mapping[str, str]

    async def send(self, request: ReplayRequest, arm: str, exposure: Exposure, body: bytes) -> RequestEnd:
        """The request at one arm. Raises ReplayRefused; any other failure is the arm's."""
        began, status, usage, complete = time.perf_counter(), 0, None, False
        headers = {**self.headers, DEPLOYMENT_HEADER: arm, "content-type": "application/json"}
        exposure.sent(request.path, request.body)
        try:
            async with self.session.post(self.url + request.path, data=body, headers=headers) as answer:
                status = answer.status
                exposure.head({name.lower(): value for name, value in answer.headers.items()})
                if status == 200:
                    exposure.served = answer.headers.get(DEPLOYMENT_HEADER, arm)
                    usage = await _read(answer, request, arm, exposure)
                    complete = True
                else:
                    await _refused(answer, arm, exposure)
        except TimeoutError:
            status = status or TimedOut.status
            exposure.failed(arm, TimedOut("The server did not answer in time"))
        except aiohttp.ClientConnectorError as error:
            status = Unreachable.status
            exposure.failed(arm, Unreachable(str(error)))
        except aiohttp.ClientError as error:
            status = status or Broken.status
            exposure.failed(arm, Broken(str(error)))
        limit = request.body.get("max_tokens", request.body.get("max_output_tokens"))
        return RequestEnd(status, time.perf_counter() - began, 1, usage, limit, complete)


async def _read(answer: aiohttp.ClientResponse, request: ReplayRequest, arm: str, exposure: Exposure) -> Usage | None:
    if not request.recorded.stream:
        whole = await answer.read()
        exposure.answer(whole)
        return find_usage(whole)
    last: deque[bytes] = deque(maxlen=_LAST_CHUNKS)
    in_order = False
    try:
        async for chunk in answer.content.iter_any():
            exposure.chunk(time.perf_counter(), chunk)
            last.append(chunk)
        in_order = True
    finally:
        exposure.stream_ended(arm, time.perf_counter(), in_order=in_order)
    return find_usage(b"".join(last))


async def _refused(answer: aiohttp.ClientResponse, arm: str, exposure: Exposure) -> None:
    text = await answer.text(errors="replace")
    if answer.status in _WRONG:
        raise ReplayRefused(answer.status, _message(text))
    if answer.status >= 500:
        exposure.failed(arm, _FAILURES.get(answer.status, Broken)(text[:200]))
    else:
        exposure.served = arm


def _message(text: str) -> str:
    """The message of an error in OpenAI's or Anthropic's form; else the beginning of the text."""
    try:
        error = json.loads(text)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        return text[:200]
    return str(error)
