"""Reports to the control plane the requests for which this router's applications lack replicas."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from app.access.caller import ConfigViews
from app.aio import run_in_background
from app.control_plane import ControlPlane
from app.errors import UpstreamError
from app.routing.admission import Unserved
from app.telemetry.logs import event

EVERY_S = 2.0
"""Seconds, as often as replicas report (`metrics_interval_s` of the examples)."""

_log = logging.getLogger("switchyard")


class UnservedDemand:
    """Reports the counts of `unserved`. `views` returns the configuration in force (None before the first)."""

    def __init__(
        self,
        unserved: Unserved,
        views: Callable[[], ConfigViews | None],
        control: ControlPlane | None,
        every_s: float = EVERY_S,
    ) -> None:
        self._unserved, self._views, self._control, self._every_s = unserved, views, control, every_s
        self._sent: dict[str, int] = {}
        self._is_away = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reports while the block runs; does nothing without a control plane."""
        if (control := self._control) is None:
            yield
            return

        async def repeat() -> None:
            while True:
                await asyncio.sleep(self._every_s)
                await self.report(control)

        async with run_in_background(repeat()):
            yield

    async def report(self, control: ControlPlane) -> None:
        """Sends the demand; 0 once for an application that has none any more."""
        applications = self._by_application()
        demand = {**dict.fromkeys(self._sent, 0), **applications}
        if not demand:
            return
        try:
            await control.report_unserved(demand)
        except UpstreamError as error:
            if not self._is_away:
                unavailable = event("control_plane_unavailable", error=error.message)
                _log.warning("The control plane does not take the report of unserved requests", extra=unavailable)
            self._is_away = True
            return
        self._sent, self._is_away = applications, False

    def _by_application(self) -> dict[str, int]:
        if (views := self._views()) is None:
            return {}
        found: dict[str, int] = {}
        for name, count in self._unserved.demand().items():
            deployment = views.config.deployments.get(name)
            if deployment is not None and deployment.app is not None:
                found[deployment.app] = found.get(deployment.app, 0) + count
        return found
