"""What the control plane runs, asked now and then: its controller serves the whole cluster."""

import asyncio
import time
from collections.abc import Callable

from app.control_plane import ControlPlane, Replicas
from app.errors import UpstreamError

EVERY_S = 5.0
"""How old what the control plane said may be."""

PATIENCE_S = 1.0
"""How long an answer waits for the control plane."""


class RunningReplicas:
    """`control`: None if nobody knows. `clock`: monotonic seconds."""

    def __init__(self, control: ControlPlane | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_known = control is not None
        """Whether there is somebody to ask."""
        self.last: Replicas | None = None
        """As the control plane said last, however long ago."""
        self._control, self._clock = control, clock
        self._known: Replicas | None = None
        self._asked_at = float("-inf")

    async def now(self) -> Replicas | None:
        """At most `EVERY_S` old; None if the control plane does not answer, or there is none."""
        if self._control is None:
            return None
        if self._clock() - self._asked_at >= EVERY_S:
            # Marked before it is asked: others do not ask meanwhile, and nobody asks one that is away all the time.
            self._asked_at = self._clock()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    self._known = self.last = await self._control.replicas()
            except (UpstreamError, TimeoutError):
                self._known = None
            self._asked_at = self._clock()
        return self._known
