"""Which requests are traced: decided once, from the headers, before anything is noted."""

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
        """Whether there is one left; takes it."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Sampler:
    """Draws a share of the requests; follows callers' own decisions as far as `followed` allows.

    A caller that has not sampled its trace is followed always: that makes less work. One that has is followed within
    the allowance. Beyond it a fresh number is drawn, since the caller has chosen its trace id and with it what a draw
    by that id says. `number`: 64 random bits.
    """

    def __init__(self, share: float, followed: Allowance, number: Callable[[], int]) -> None:
        self._bound = round(share * (1 << 64))
        self._followed, self._number = followed, number

    def is_drawn(self, trace_id: int) -> bool:
        """For a trace that begins here. Its id decides, as with OpenTelemetry's TraceIdRatioBased."""
        return (trace_id & _LOW) < self._bound

    def follows(self, caller: Remote) -> bool:
        """For a trace that a caller has begun."""
        if not caller.is_sampled:
            return False
        return self._followed.take() or self._number() < self._bound
