"""Begins the trace of each request."""

from collections.abc import Callable, Mapping
from random import getrandbits

from app.telemetry.access_log import Record
from app.telemetry.tracing.request import RequestSpan, Trace
from app.telemetry.tracing.sampling import Sampler
from app.telemetry.tracing.w3c import RANDOM, SAMPLED, remote


def passed_on(headers: Mapping[str, str]) -> Trace | None:
    """The caller's trace, to pass on to deployments while nothing is traced here; None if the caller has none."""
    if (caller := remote(headers)) is None:
        return None
    return Trace(caller.trace_id, caller.span_id, caller.flags, caller.state)


class Tracer:
    """Decides which requests are traced. `send` gets the spans of those that are, when they are over."""

    def __init__(self, sampler: Sampler, send: Callable[[RequestSpan], None]) -> None:
        self._sampler, self._send = sampler, send

    def begin(self, headers: Mapping[str, str], record: Record) -> Trace:
        """The trace of a request that has just arrived: the caller's, or a new one. Header names are lower-case."""
        span_id = getrandbits(64) or 1
        if (caller := remote(headers)) is None:
            trace_id = getrandbits(128) or 1
            is_sampled = self._sampler.is_drawn(trace_id)
            trace = Trace(trace_id, span_id, RANDOM | is_sampled * SAMPLED, "", self._send)
        else:
            is_sampled = self._sampler.follows(caller)
            flags = (caller.flags & RANDOM) | is_sampled * SAMPLED
            trace = Trace(caller.trace_id, span_id, flags, caller.state, self._send)
        if is_sampled:
            trace.span = RequestSpan(trace, record, caller)
        return trace
