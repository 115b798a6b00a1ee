"""The replicas that the control plane runs, cached: its controller serves the whole cluster."""

import asyncio
import time
from collections.abc import Callable

from app.control_plane import ControlPlane, Replicas
from app.errors import UpstreamError

EVERY_S = 5.0
"""Seconds for which an answer of the control plane is reused."""

PATIENCE_S = 1.0
"""Seconds to wait for the control plane."""


class RunningReplicas:
    """The running replicas. `control`: None without a control plane. `clock`: monotonic seconds."""

    def __init__(self, control: ControlPlane | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_known = control is not None
        """Whether there is a control plane."""
        self.last: Replicas | None = None
        """The control plane's last answer, however old."""
        self._control, self._clock = control, clock
        self._known: Replicas | None = None
        self._asked_at = float("-inf")

    async def now(self) -> Replicas | None:
        """The replicas, at most `EVERY_S` old; None if the control plane does not answer, or there is none."""
        if self._control is None:
            return None
        if self._clock() - self._asked_at >= EVERY_S:
            # Marked before the call: others do not call meanwhile, and one that does not answer is not called all the
            # time.
            self._asked_at = self._clock()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    self._known = self.last = await self._control.replicas()
            except (UpstreamError, TimeoutError):
                self._known = None
            self._asked_at = self._clock()
        return self._known
