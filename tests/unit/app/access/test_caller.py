"""Where credentials are read from, and what a caller may see and use."""

from collections.abc import Callable

import pytest

from app.access.caller import (
    ANONYMOUS_CALLER,
    UNAUTHENTICATED,
    Caller,
    ConfigViews,
    Roles,
    credentials,
    visible_config,
)
from app.config.access import AccessSettings
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


OIDC = {"issuer": "https://id.example.com", "audience": "switchyard"}
A_KEY, A_TOKEN = Caller("boss", "key-1"), Caller("boss", "token-1", credential="token")


@pytest.mark.parametrize("role", ["managers", "viewers", "operators"])
@pytest.mark.parametrize(
    ("credentials", "name", "has_it"),
    [
        ({"keys_file": "k"}, "boss", [A_KEY]),
        ({"oidc": OIDC}, "boss", [A_TOKEN]),
        ({"keys_file": "k"}, "key:boss", [A_KEY]),
        ({"keys_file": "k", "oidc": OIDC}, "key:boss", [A_KEY]),
        ({"keys_file": "k", "oidc": OIDC}, "oidc:boss", [A_TOKEN]),
    ],
)
def test_a_role_is_of_a_key_or_of_a_token_and_never_of_both(
    role: str, credentials: dict[str, object], name: str, has_it: list[Caller]
) -> None:
    listed = {"chat": [name]} if role == "operators" else [name]
    roles = Roles.from_settings(AccessSettings.model_validate({**credentials, role: listed}))
    has: dict[str, Callable[[Caller], bool]] = {
        "managers": roles.may_manage,
        "viewers": roles.may_view,
        "operators": lambda caller: roles.may_operate(caller, "chat"),
    }
    for caller in (A_KEY, A_TOKEN, ANONYMOUS_CALLER, UNAUTHENTICATED, Caller("", ""), Caller("key:boss", "key-2")):
        assert has[role](caller) == (caller in has_it)
        assert not roles.may_operate(caller, "beta") or caller in has_it
    for caller in has_it:
        assert roles.role(caller) == role.removesuffix("s")
        assert roles.role(caller, "beta") == ("caller" if role == "operators" else role.removesuffix("s"))


def test_without_access_settings_everyone_on_the_machine_may_do_everything() -> None:
    roles = Roles.from_settings(AccessSettings())
    assert roles.may_manage(ANONYMOUS_CALLER)
    assert roles.may_operate(ANONYMOUS_CALLER, "chat")
    assert roles.may_view(ANONYMOUS_CALLER)
