"""The keys that a router saw last."""

from typing import Any

from app.config.schema import Endpoint
from app.routing.conversations import MOST_KEYS, RecentKeys


def endpoint(**sticky: Any) -> Endpoint:
    return Endpoint.model_validate({"tasks": ["chat"], "traffic": {"blue": 100}, "sticky": sticky or None})


def test_different_keys_are_kept_the_latest_last() -> None:
    keys = RecentKeys()
    for key in ("ann", "bob", "ann"):
        keys.saw("chat", key)
    keys.saw("other", "cy")
    assert (keys.of("chat"), keys.of("other"), keys.of("third")) == (["bob", "ann"], ["cy"], [])


def test_the_oldest_and_the_very_long_ones_are_dropped() -> None:
    keys = RecentKeys()
    for number in range(MOST_KEYS + 10):
        keys.saw("chat", str(number))
    keys.saw("chat", "x" * 1025)
    assert keys.of("chat") == [str(number) for number in range(10, MOST_KEYS + 10)]


def test_another_kind_of_key_starts_over() -> None:
    keys = RecentKeys()
    keys.configure({"chat": endpoint(by="user"), "other": endpoint(by="user")})
    keys.saw("chat", "ann")
    keys.saw("other", "bob")
    keys.configure({"chat": endpoint(by="user"), "other": endpoint(by="api_key")})
    assert (keys.of("chat"), keys.of("other")) == (["ann"], [])
    keys.configure({})
    assert keys.of("chat") == []
