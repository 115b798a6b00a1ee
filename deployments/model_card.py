"""Tells the router about the model: what `app.model` reads, at a route beside vLLM's own."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response


def add_model_card(app: FastAPI, path: str) -> None:
    """Adds `GET path` to vLLM's application `app`, whose state holds the engine's client once it runs.

    A router asks again now and then: an unchanged card costs no more than a 304.
    """
    cards: dict[str, bytes] = {}

    @app.get(path, include_in_schema=False)
    def model_card(request: Request) -> Response:
        if not cards:
            card = json.dumps(_card(request.app.state.engine_client)).encode()
            cards[f'"{hashlib.sha256(card).hexdigest()}"'] = card
        ((etag, card),) = cards.items()
        headers = {"etag": etag}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(card, media_type="application/json", headers=headers)


def _card(engine: Any) -> Mapping[str, Any]:
    tokenizer = engine.get_tokenizer()
    model = engine.model_config
    return {
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "eos_token_ids": sorted(_eos_ids(model.try_get_generation_config(), tokenizer.eos_token_id)),
        "max_model_len": model.max_model_len,
        "hidden_size": model.get_hidden_size(),
        "vocab_size": model.get_vocab_size(),
        "logprobs_mode": str(model.logprobs_mode),
    }


def _eos_ids(generation_config: Mapping[str, Any], eos_token_id: int | None) -> set[int]:
    """All ids at which the engine ends an answer: the tokenizer's, and those the model's authors list."""
    listed = generation_config.get("eos_token_id") or []
    ids = set(listed if isinstance(listed, list) else [listed])
    return ids | ({eos_token_id} if eos_token_id is not None else set())
