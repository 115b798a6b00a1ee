"""What deployments tell of their models, kept: a tokenizer takes long to read, and a request should not wait for it."""

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

_FRESH_S = 30.0
_PATIENCE_S = 0.5


class CardResponse(NamedTuple):
    """A deployment's answer to a GET."""

    body: bytes
    etag: str | None


Get = Callable[[Target, str, str | None, Timeouts], Awaitable[CardResponse | None]]
"""Asks a deployment for a path; None where what carries the given ETag still holds. Raises SwitchyardError."""


@dataclass(slots=True)
class _Card:
    model: Model | None = None
    etag: str | None = None
    told: float = 0.0
    asking: asyncio.Task[Model] | None = None


class ModelCache:
    """The models of deployments, each asked for again every half a minute, since a rollout can change it.

    One question at a time goes to a deployment, whoever waits for it. Who knows an older answer waits for the new one
    only a moment: a deployment that hangs holds nobody up.
    """

    def __init__(self, get: Get) -> None:
        self._get = get
        self._cards: dict[object, _Card] = {}

    async def of(self, target: Target, timeouts: Timeouts) -> Model:
        """The model of `target`. Raises UpstreamError where it has never told."""
        card = self._cards.setdefault((target.url, target.model, target.tokenizer_dir), _Card())
        if card.model is not None and time.monotonic() - card.told <= _FRESH_S:
            return card.model
        if card.asking is None:
            card.asking = asyncio.create_task(self._refresh(card, target, timeouts))
        if card.model is None:
            # Shielded: whoever leaves must not take the answer from those who stay.
            return await asyncio.shield(card.asking)
        await asyncio.wait({card.asking}, timeout=_PATIENCE_S)
        return card.model

    async def close(self) -> None:
        """Ends the questions that are open."""
        asking = [card.asking for card in self._cards.values() if card.asking is not None]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _refresh(self, card: _Card, target: Target, timeouts: Timeouts) -> Model:
        try:
            card.model = await self._learn(card, target, timeouts)
        except UpstreamError:
            if card.model is None:
                raise
        finally:
            card.told, card.asking = time.monotonic(), None
        return card.model

    async def _learn(self, card: _Card, target: Target, timeouts: Timeouts) -> Model:
        elsewhere = target.tokenizer_dir
        try:
            told = await self._get(target, MODEL_PATH if elsewhere is None else "/v1/models", card.etag, timeouts)
        except Rejected as error:
            raise Broken(f"Deployment '{target.name}' did not describe its model") from error
        if told is None:
            assert card.model is not None, "an ETag comes with a model"
            return card.model
        if elsewhere is None:
            model = await asyncio.to_thread(Model.read, told.body)
            card.etag = told.etag
            return model
        max_len = _max_len(told.body, target)
        if card.model is not None and card.model.max_len == max_len:
            return card.model
        try:
            return await asyncio.to_thread(Model.load, elsewhere, max_len)
        except OSError as error:
            raise Broken(f"The files of deployment '{target.name}' cannot be read") from error


def _max_len(models: bytes, target: Target) -> int:
    """The context length in vLLM's list of models."""
    try:
        listed = from_json(models)["data"]
        return next(int(card["max_model_len"]) for card in listed if card["id"] == target.model)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise Broken(f"Deployment '{target.name}' did not report its context length") from error
