"""Describes the model to the router, at a route alongside vLLM's own; `app.engine.model` reads it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response

from app.engine.model import labels_of
from app.internal_api import CONTINUES
from deployments.engine.logits.registry import supported_xargs


def add_model_card(app: FastAPI, path: str, *, continues: bool) -> None:
    """Adds `GET path` to vLLM's application `app`, whose state holds the engine's client once it runs.

    Routers poll it: an unchanged card costs only a 304.
    """
    cards: dict[str, bytes] = {}

    @app.get(path, include_in_schema=False)
    def model_card(request: Request) -> Response:
        if not cards:
            card = json.dumps({**_card(request.app.state.engine_client), CONTINUES: continues}).encode()
            cards[f'"{hashlib.sha256(card).hexdigest()}"'] = card
        ((etag, card),) = cards.items()
        headers = {"etag": etag}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(card, media_type="application/json", headers=headers)


def eos_token_ids(engine: Any) -> frozenset[int]:
    """All ids that end an answer: the tokenizer's, and those in the model's generation config."""
    listed = engine.model_config.try_get_generation_config().get("eos_token_id") or []
    ids = frozenset(listed if isinstance(listed, list) else [listed])
    own = engine.get_tokenizer().eos_token_id
    return ids | ({own} if own is not None else frozenset())


def _card(engine: Any) -> Mapping[str, Any]:
    model = engine.model_config
    return {
        "tokenizer": engine.get_tokenizer().backend_tokenizer.to_str(),
        "eos_token_ids": sorted(eos_token_ids(engine)),
        "max_model_len": model.max_model_len,
        "hidden_size": model.get_hidden_size(),
        "vocab_size": model.get_vocab_size(),
        "logprobs_mode": str(model.logprobs_mode),
        "processors": supported_xargs(model.logits_processors or ()),
        "labels": labels_of(getattr(model.hf_config, "id2label", None) or {}),
    }
