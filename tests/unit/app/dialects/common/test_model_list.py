"""The list of models."""

from typing import Any

import pytest

from app.access.caller import Caller, ConfigViews
from app.config.schema import parse
from app.dialects.common.requests import model_card

CONFIG = parse(
    {
        "endpoints": {
            "chat": {"tasks": ["chat"], "traffic": {"fr": 100}},
            "plain": {"tasks": ["chat"], "traffic": {"base": 100}},
        },
        "deployments": {
            "base": {"app": "m", "model": "llama"},
            "fr": {"app": "m", "model": "fr-lora", "parent": "base"},
        },
    }
)


def card(name: str, *endpoints: str) -> dict[str, Any]:
    """The model's card for a caller with access to these endpoints; by default to all of them."""
    seen = ConfigViews(CONFIG).of(Caller("ann", "1", endpoints=frozenset(endpoints) or None))
    return model_card(seen, name, created=7)


def test_an_adapter_has_vllms_root_and_parent() -> None:
    assert card("fr") == {
        "id": "fr",
        "object": "model",
        "created": 7,
        "owned_by": "switchyard",
        "kind": "deployment",
        "tasks": ("chat", "completions", "responses"),
        "root": "fr-lora",
        "parent": "base",
    }


@pytest.mark.parametrize("name", ["base", "chat"])
def test_nothing_else_has_a_parent(name: str) -> None:
    assert "parent" not in card(name)


def test_a_parent_that_the_caller_may_not_use_is_not_named() -> None:
    assert "parent" not in card("fr", "chat")
    assert card("fr", "chat", "plain")["parent"] == "base"
