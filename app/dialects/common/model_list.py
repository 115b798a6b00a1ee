"""OpenAI's list of models, as several dialects have it."""

from collections.abc import Iterable
from typing import Any


def model_card(name: str) -> dict[str, Any]:
    """The model object of an endpoint or deployment."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "switchyard"}


def model_list(names: Iterable[str]) -> dict[str, Any]:
    """The list object of these endpoints and deployments."""
    return {"object": "list", "data": [model_card(name) for name in names]}
