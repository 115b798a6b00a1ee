"""Tracing as long as the configuration has the section `tracing`."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import getrandbits

from app.config.endpoints import Tracing as Section
from app.telemetry.tracing.request import RequestSpan
from app.telemetry.tracing.sampling import Allowance, Sampler
from app.telemetry.tracing.sending import DROPPED, Exporter, Observer, SpanSender
from app.telemetry.tracing.settings import Settings, settings
from app.telemetry.tracing.tracer import Tracer

FLUSH_S = 2.0
"""Seconds that a router waits at its end for the collector to take the last spans."""


class Tracing:
    """`tracer` begins requests' traces; None while nothing is traced. Changes hold from the next request on; spans of
    requests that started earlier also go where the new settings send them.
    """

    def __init__(self, observer: Observer, environment: Mapping[str, str] = os.environ) -> None:
        self.tracer: Tracer | None = None
        self._observer, self._environment = observer, environment
        self._settings: Settings | None = None
        self._sender: SpanSender | None = None
        self._is_running = False

    def check(self, section: Section | None) -> Settings | None:
        """The section's settings. Raises ConfigError."""
        return settings(section, self._environment)

    def configure(self, new: Settings | None) -> None:
        """Traces with the settings `new` from the next request on; None: traces nothing."""
        if new == self._settings:
            return
        before, self._sender, self._settings = self._sender, None, new
        if new is None:
            self.tracer = None
        else:
            self._sender = self._new_sender(new)
            allowance = Allowance(new.follow_per_s, time.monotonic)
            self.tracer = Tracer(Sampler(new.share, allowance, lambda: getrandbits(64)), self._put)
            if self._is_running:
                self._sender.start()
        if before is not None and self._is_running:
            before.stop()

    def _new_sender(self, new: Settings) -> SpanSender:
        def new_exporter() -> Exporter:
            # Imported here, in the sender's thread: a router that traces nothing does without OpenTelemetry.
            from app.telemetry.tracing.otlp import OtlpExporter

            return OtlpExporter(new.endpoint)

        return SpanSender(new_exporter, self._observer, queue=new.queue, batch=new.batch, every_s=new.every_s)

    def _put(self, request: RequestSpan) -> None:
        if self._sender is not None:
            self._sender.put(request)
        else:  # tracing was switched off while the request ran
            self._observer.traces_sent(DROPPED, 1)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sends spans while the block runs. At its end the last ones are sent, for at most `FLUSH_S` seconds."""
        self._is_running = True
        if self._sender is not None:
            self._sender.start()
        try:
            yield
        finally:
            self._is_running = False
            if (sender := self._sender) is not None:
                sender.stop()
                await asyncio.to_thread(sender.join, FLUSH_S)
