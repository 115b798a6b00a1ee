"""A cache of the models that deployments describe: requests should not wait while a tokenizer is read."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from pydantic_core import from_json

from app.config.schema import Timeouts
from app.engine.model import Model
from app.errors import Broken, Rejected, UpstreamError
from app.internal_api import MODEL_PATH
from app.upstream.target import Target

FRESH_S = 30.0
"""Seconds for which a model is used before its deployment is asked again: a rollout can change it."""

MAX_WAIT_S = 0.5
"""Seconds that a request waits for a refresh if an older model is known."""


class CardResponse(NamedTuple):
    """A deployment's response to a GET."""

    body: bytes
    etag: str | None


Get = Callable[[Target, str, str | None, Timeouts], Awaitable[CardResponse | None]]
"""GETs a path of a deployment; None if the content with the given ETag is unchanged. Raises SwitchyardError."""


@dataclass(slots=True)
class _Entry:
    model: Model | None = None
    etag: str | None = None
    refreshed_at: float = 0.0
    refresh: asyncio.Task[Model] | None = None


class ModelCache:
    """The models of deployments, refreshed every `fresh_s` seconds.

    Requests share one refresh per deployment. A request that knows an older model waits at most `max_wait_s` for the
    new one, so that a hanging deployment delays no request for long.
    """

    def __init__(self, get: Get, *, fresh_s: float = FRESH_S, max_wait_s: float = MAX_WAIT_S) -> None:
        self._get, self._fresh_s, self._max_wait_s = get, fresh_s, max_wait_s
        self._entries: dict[object, _Entry] = {}

    async def of(self, target: Target, timeouts: Timeouts) -> Model:
        """The model of `target`. Raises UpstreamError if it never described one."""
        # A model application describes one model: its adapters have the same tokenizer.
        key = target.url if target.tokenizer_dir is None else (target.url, target.model, target.tokenizer_dir)
        entry = self._entries.setdefault(key, _Entry())
        if entry.model is not None and time.monotonic() - entry.refreshed_at <= self._fresh_s:
            return entry.model
        if entry.refresh is None:
            entry.refresh = asyncio.create_task(self._refresh(entry, target, timeouts))
        if entry.model is None:
            # Shielded: a request that is cancelled must not cancel the refresh that others wait for.
            return await asyncio.shield(entry.refresh)
        await asyncio.wait({entry.refresh}, timeout=self._max_wait_s)
        return entry.model

    async def close(self) -> None:
        """Cancels the refreshes under way."""
        tasks = [entry.refresh for entry in self._entries.values() if entry.refresh is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _refresh(self, entry: _Entry, target: Target, timeouts: Timeouts) -> Model:
        try:
            entry.model = await self._load(entry, target, timeouts)
        except UpstreamError:
            if entry.model is None:
                raise
        finally:
            entry.refreshed_at, entry.refresh = time.monotonic(), None
        return entry.model

    async def _load(self, entry: _Entry, target: Target, timeouts: Timeouts) -> Model:
        directory = target.tokenizer_dir
        try:
            card = await self._get(target, MODEL_PATH if directory is None else "/v1/models", entry.etag, timeouts)
        except Rejected as error:
            raise Broken(f"Deployment '{target.name}' did not describe its model") from error
        if card is None:
            assert entry.model is not None, "an ETag comes with a model"
            return entry.model
        if directory is None:
            model = await asyncio.to_thread(Model.read, card.body)
            entry.etag = card.etag
            return model
        max_len = _max_len(card.body, target)
        if entry.model is not None and entry.model.max_len == max_len:
            return entry.model
        try:
            return await asyncio.to_thread(Model.load, directory, max_len)
        except OSError as error:
            raise Broken(f"The files of deployment '{target.name}' cannot be read") from error


def _max_len(models: bytes, target: Target) -> int:
    """The context length in vLLM's list of models, where an adapter has its parent's."""
    try:
        cards = {card["id"]: card for card in from_json(models)["data"]}
        card = cards[target.model]
        length = card["max_model_len"]
        return int(cards[card["parent"]]["max_model_len"] if length is None else length)
    except (ValueError, KeyError, TypeError) as error:
        raise Broken(f"Deployment '{target.name}' did not report its context length") from error
