"""Samples requests for tracing: once, from the headers, before anything is noted."""

from collections.abc import Callable

from app.telemetry.tracing.w3c import Remote

_LOW = (1 << 64) - 1


class Allowance:
    """At most `per_s` grants a second, evenly, with a second's worth at once after a pause. `clock`: seconds."""

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s, self._clock = per_s, clock
        self._most = max(per_s, 1.0) if per_s > 0 else 0.0
        self._left, self._at = self._most, clock()

    def take(self) -> bool:
        """Takes a grant; False if none is left."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Sampler:
    """Draws a share of the requests; follows callers' own decisions as far as `followed` allows.

    A caller that has not sampled its trace is always followed: that makes less work. One that has is followed within
    the allowance. Beyond it a new number is drawn, since the caller has chosen its trace id, and with it the outcome of
    a draw by that id. `number`: 64 random bits.
    """

    def __init__(self, share: float, followed: Allowance, number: Callable[[], int]) -> None:
        self._bound = round(share * (1 << 64))
        self._followed, self._number = followed, number

    def is_drawn(self, trace_id: int) -> bool:
        """Whether a trace that begins here is sampled, by its id as in OpenTelemetry's TraceIdRatioBased."""
        return (trace_id & _LOW) < self._bound

    def follows(self, caller: Remote) -> bool:
        """Whether the caller's decision on its trace is followed."""
        if not caller.is_sampled:
            return False
        return self._followed.take() or self._number() < self._bound
