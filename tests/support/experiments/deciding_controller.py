"""A controller in memory with an acting experiment: it accepts every decision that is not stale."""

from collections.abc import Mapping
from typing import Any

import msgspec

from app.errors import Conflict, PreconditionFailed
from app.experiments.api import ControllerApi
from app.experiments.contract.query import ManualDecision
from app.experiments.contract.report import AutomationStatus, Foreseen, Report
from app.exposures.controller_client import Answer
from tests.support.experiments.fake_controller import FakeController
from tests.support.experiments.reader import FakeReader


class DecidingReader(FakeReader):
    """Its `doing` changes with each decision."""

    def decide(self, report: Report, request: ManualDecision) -> None:
        assert self.doing is not None
        self._check(request)
        super().decide(report, request)
        self.doing = msgspec.structs.replace(self.doing, revision=self.doing.revision + 1, by=request.by)

    def foresee(self, report: Report, request: ManualDecision) -> Foreseen:
        self._check(request)
        return super().foresee(report, request)

    def _check(self, request: ManualDecision) -> None:
        assert self.doing is not None
        if request.revision not in (None, self.doing.revision):
            raise PreconditionFailed(f"revision: the experiment is at {self.doing.revision} now", current={})


class DecidingController(FakeController):
    """`overtaken`: someone else decides before each decision. `steps_when_foreseen`: the ramp takes a step once a
    decision's effect was shown. `refusal`: the reason for which every decision is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = DecidingReader()
        self.answers = ControllerApi(self.reader)
        self.acting = AutomationStatus(state="running", revision=7, step=1, share=5, next_share=25)
        self.overtaken = self.steps_when_foreseen = False

    @property
    def acting(self) -> AutomationStatus | None:
        """The state of the actions on `green-float32`."""
        return self.reader.doing

    @acting.setter
    def acting(self, acting: AutomationStatus | None) -> None:
        self.reader.doing = acting

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decisions that were accepted."""
        return [
            {name: value for name, value in msgspec.to_builtins(made).items() if value} for made in self.reader.decided
        ]

    def refuse(self, message: str) -> None:
        """Every decision is refused."""
        self.reader.refusal = Conflict(message)

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        if method == "POST" and self.overtaken and self.acting is not None:
            self.acting = msgspec.structs.replace(self.acting, revision=self.acting.revision + 1, state="paused")
        answer = await super().ask(method, path, query, body)
        if "dry_run" in query and self.steps_when_foreseen and self.acting is not None:
            self.acting = msgspec.structs.replace(self.acting, revision=self.acting.revision + 1)
        return answer
