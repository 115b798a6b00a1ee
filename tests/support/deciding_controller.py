"""A controller in memory on whose experiment something acts: it takes every decision that is not stale."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from app.experiments.summary import Acting, Summary
from app.ledger.controller_client import Answer
from tests.support.fake_controller import FakeController


class DecidingController(FakeController):
    """`acting` is what is told of `green-float32`, `decisions` what came. `overtaken`: somebody decides before each."""

    def __init__(self) -> None:
        super().__init__()
        self.acting: Acting | None = Acting(state="running", revision=7, step=1, share=5, next_share=25)
        self.decisions: list[dict[str, Any]] = []
        self.overtaken = False
        self.refusal = ""

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        if method == "POST" and path == "/experiments/green-float32/decision" and not self.absent:
            self.asked.append(f"{method} {path}")
            return await self._decided(json.loads(body))
        answer = await super().ask(method, path, query, body)
        if path == "/experiments/green-float32" and answer.media_type == "application/json":
            summary = msgspec.json.decode(answer.body, type=Summary)
            return Answer(200, msgspec.json.encode(msgspec.structs.replace(summary, acting=self.acting)))
        return answer

    async def _decided(self, decision: dict[str, Any]) -> Answer:
        assert self.acting is not None
        if self.overtaken:
            self.acting = msgspec.structs.replace(self.acting, revision=self.acting.revision + 1, state="paused")
        if decision["revision"] != self.acting.revision:
            return Answer(412, (await self.ask("GET", "/experiments/green-float32", {}, b"")).body)
        if self.refusal:
            return Answer(409, json.dumps({"message": self.refusal, "param": None}).encode())
        self.decisions.append(decision)
        self.acting = msgspec.structs.replace(self.acting, revision=self.acting.revision + 1, by=decision["by"])
        return await self.ask("GET", "/experiments/green-float32", {}, b"")
