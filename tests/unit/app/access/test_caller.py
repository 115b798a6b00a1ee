"""Where credentials are read from, and what a caller may see and use."""

import pytest

from app.access.caller import ANONYMOUS_CALLER, Caller, ConfigViews, credentials, visible_config
from app.config.schema import parse
from app.errors import Forbidden

CONFIG = parse(
    {
        "endpoints": {
            "chat": {"tasks": ["chat"], "traffic": {"blue": 90, "green": 10}},
            "beta": {"tasks": ["chat"], "traffic": {"green": 100}, "fallback": ["red"]},
            "embed": {"tasks": ["embeddings"], "traffic": {"mini": 100}},
        },
        "deployments": {
            **{name: {"app": name, "model": "m"} for name in ("blue", "green", "red")},
            "mini": {"app": "mini", "model": "e", "tasks": ["embeddings"]},
        },
        "defaults": {"chat": "chat", "embeddings": "embed"},
    }
)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"authorization": "Bearer k"}, ("k",)),
        ({"authorization": "bearer  k "}, ("k",)),
        ({"api-key": "k"}, ("k",)),
        ({"x-api-key": "k"}, ("k",)),
        ({"authorization": "Bearer k", "api-key": "k"}, ("k",)),
        ({"authorization": "Bearer", "api-key": "k"}, ("k",)),
        ({"authorization": "Bearer  ", "api-key": "k"}, ("k",)),
        ({"authorization": "Basic dXNlcjpwYXNz", "api-key": "k"}, ("k",)),
        ({"authorization": "Basic dXNlcjpwYXNz"}, ()),
        ({"authorization": "Bearer"}, ()),
        ({"api-key": ""}, ()),
        ({}, ()),
        ({"authorization": "Bearer k", "api-key": "other"}, ("k", "other")),
        ({"api-key": "k", "x-api-key": "other"}, ("k", "other")),
    ],
)
def test_a_credential_is_read_where_an_sdk_puts_it(headers: dict[str, str], found: tuple[str, ...]) -> None:
    assert credentials(headers) == found


def test_an_unrestricted_caller_sees_everything() -> None:
    assert visible_config(ANONYMOUS_CALLER, CONFIG) is CONFIG
    ConfigViews(CONFIG).require_access(ANONYMOUS_CALLER, "embed")


def test_a_restricted_caller_sees_its_endpoints_and_their_deployments() -> None:
    seen = visible_config(Caller("team", "k", frozenset({"beta"})), CONFIG)
    assert list(seen.endpoints) == ["beta"]
    assert set(seen.deployments) == {"green", "red"}
    assert seen.defaults == {}
    assert visible_config(Caller("team", "k", frozenset({"embed"})), CONFIG).defaults == {"embeddings": "embed"}
    assert set(visible_config(Caller("team", "k", frozenset({"blue", "gone"})), CONFIG).deployments) == {"blue"}


@pytest.mark.parametrize(
    ("allowed", "named", "may"),
    [
        ({"chat"}, "chat", True),
        ({"chat"}, "blue", True),
        ({"chat"}, "embed", False),
        ({"chat"}, "mini", False),
        ({"blue"}, "blue", True),
        ({"blue"}, "chat", False),
        (set(), "chat", False),
        ({"chat"}, "no such thing", True),  # another check reports that it does not exist
        ({"chat"}, None, True),
    ],
)
def test_a_caller_may_use_only_its_endpoints(allowed: set[str], named: str | None, may: bool) -> None:
    caller = Caller("team", "k", frozenset(allowed))
    if may:
        ConfigViews(CONFIG).require_access(caller, named)
        return
    with pytest.raises(Forbidden) as raised:
        ConfigViews(CONFIG).require_access(caller, named)
    assert raised.value.message.startswith(f"'team' may not use '{named}'; it may use: ")
    others = {"chat", "beta", "embed"} - allowed - {named}
    assert not any(other in raised.value.message.partition("it may use")[2] for other in others)


def test_a_view_is_copied_once_per_set_of_endpoints() -> None:
    views = ConfigViews(CONFIG)
    view = views.of(Caller("team", "k", frozenset({"beta", "unknown"})))
    assert views.of(Caller("another", "l", frozenset({"beta"}))) is view
    assert views.of(ANONYMOUS_CALLER) is CONFIG
