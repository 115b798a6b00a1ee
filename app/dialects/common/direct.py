"""Requests that are known in full before a deployment is chosen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.dialects.base import EngineRequest, Flow, ServingContext, Translation, no_lookups


@dataclass(frozen=True)
class DirectTranslation(Translation):
    """One engine request, whose answer is the client's unless a subclass translates it."""

    path: str
    body: Mapping[str, Any]

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(EngineRequest(self.path, self.body))
