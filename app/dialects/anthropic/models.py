"""Anthropic's list of models: the endpoints and the deployments.

Contract: Anthropic's Models API. `kind`, `tasks` and `root` are additions, as in OpenAI's list.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from app.config.schema import Config
from app.dialects.base import Request
from app.dialects.common.model_list import description, model_names
from app.errors import BadRequest, NotFound
from app.misspellings import question

_DEFAULT_LIMIT, _MAX_LIMIT = 20, 1000


def model(config: Config, request: Request) -> dict[str, Any]:
    """The model object of the name in the path. Raises NotFound."""
    name = request.params["model"]
    if name not in (known := model_names(config)):
        raise NotFound(f"model: {name}{question(name, known)}", param="model")
    return _card(config, name, request.configured_at)


def models(config: Config, request: Request) -> dict[str, Any]:
    """One page of the list: the query's `limit`, `after_id` and `before_id`. Raises BadRequest."""
    names = model_names(config)
    limit, start, end = _limit(request.query), 0, len(names)
    if "after_id" in request.query:
        start = _position(names, request.query, "after_id") + 1
    if "before_id" in request.query:
        end = _position(names, request.query, "before_id")
        start = max(start, end - limit)
    page = names[start:end][:limit]
    before = "before_id" in request.query
    return {
        "data": [_card(config, name, request.configured_at) for name in page],
        "has_more": start > 0 if before else start + limit < end,
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }


def _card(config: Config, name: str, created: int) -> dict[str, Any]:
    created_at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    card = {"type": "model", "id": name, "display_name": name, "created_at": created_at}
    return {**card, **description(config, name)}


def _limit(query: Mapping[str, str]) -> int:
    limit = query.get("limit", str(_DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= _MAX_LIMIT):
        raise BadRequest(f"limit: must be a number from 1 to {_MAX_LIMIT}", param="limit")
    return int(limit)


def _position(names: list[str], query: Mapping[str, str], parameter: str) -> int:
    if (name := query[parameter]) not in names:
        raise BadRequest(f"{parameter}: there is no model '{name}'", param=parameter)
    return names.index(name)
