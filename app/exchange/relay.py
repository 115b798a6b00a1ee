"""Relays a deployment's stream to the client.

Each chunk is passed on in the callback that receives it: the request's task only waits for the end, or for a client
that reads slowly.
"""

import asyncio
from collections.abc import Awaitable

from app.aio import run_until_blocked
from app.dialects.base import Stream
from app.engine.collectors import CutCalls
from app.engine.errors import ENDED_EARLY
from app.errors import Incomplete, SwitchyardError
from app.exchange.deadlines import IdleTimeout
from app.exchange.deployment_names import DeploymentNames, EventNames
from app.exchange.failures import StreamAborted, malformed_answers
from app.exchange.observation import Observation
from app.exchange.response import ResponseWriter
from app.upstream.stream import ResponseStream


class Relay:
    """Relays one deployment stream to the client."""

    def __init__(
        self,
        stream: Stream,
        names: DeploymentNames,
        writer: ResponseWriter,
        observation: Observation,
        cut: CutCalls | None,
    ) -> None:
        """`cut` corrects the deployment's stream before anything else reads it."""
        self._stream, self._writer, self._cut = stream, writer, cut
        self._names = EventNames(names, stream.check)
        self._exposure, self._original = observation.exposure, observation.original
        self._span = observation.trace.span if observation.trace is not None else None
        self._clock = asyncio.get_running_loop().time
        self._rest = b""

    async def run(self, chunks: ResponseStream, idle_s: float, deadline: float) -> None:
        """Writes the whole stream and its end. Raises StreamAborted where a failure must break the connection."""
        end, in_order = b"", False
        try:
            with malformed_answers():
                async with IdleTimeout(idle_s, deadline) as self._idle:
                    self._rest = self._translated(await chunks.each(self._pass_on))
                if self._stream.failure is not None:
                    raise self._stream.failure
                if end := self._stream.close():
                    self._writer.fail(Incomplete(ENDED_EARLY))
                in_order = not end
        except SwitchyardError as error:
            end = self._stream.fail(error)
            self._writer.fail(error)
        finally:
            if self._span is not None:
                self._span.stream_ended()
            if self._exposure is not None:
                self._exposure.stream_ended(self._writer.record.deployment, self._clock(), in_order=in_order)
        self._writer.record.usage = self._stream.usage
        if self._writer.failure is not None and self._stream.aborts:
            if self._rest:
                await self._writer.send_chunk(self._rest)
            raise StreamAborted
        await self._writer.end_stream(self._rest, self._names.renamed(end, are_checked=False))

    def _pass_on(self, chunk: bytes) -> Awaitable[None] | None:
        data = self._translated(chunk)
        if self._stream.failure is not None:
            self._rest = data
            raise self._stream.failure
        return run_until_blocked(self._writer.send_chunk(data)) if data else None

    def _translated(self, chunk: bytes) -> bytes:
        """Translates a chunk for the client, and passes it to the request's observers."""
        if self._cut is not None:
            chunk = self._cut.feed(chunk)
        if self._span is not None:
            self._span.chunk(chunk)
        if self._original is not None:
            self._original.chunk(chunk)
        data = self._stream.feed(chunk)
        self._idle.last = now = self._clock()
        if self._exposure is not None:
            self._exposure.chunk(now, chunk)
        return self._names.renamed(data, are_checked=data is chunk) if data else b""
