"""Conversation keys: the same in every turn, different for other beginnings, and small however long the request is."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.config.access import ANONYMOUS
from app.config.endpoints import Affinity
from app.config.schema import Config, Task, parse
from app.dialects.base import Call, Translation
from app.exchange.affinity import Place, prompt_prefix
from app.exchange.snapshot import Snapshot
from app.limits.limiter import estimate
from app.routing.traffic import Assignment
from app.upstream.balancer import Placement
from app.upstream.target import RuntimeEnvironment, targets

SYSTEM = {"role": "system", "content": "Be kind."}
ASKS = {"role": "user", "content": "What is rain?"}
ANSWERS = {"role": "assistant", "content": "Water."}
AGAIN = {"role": "user", "content": "And snow?"}
GENERATES = cast(Translation, SimpleNamespace(generates=True))


def chat(*messages: Any, **fields: Any) -> str | None:
    return prompt_prefix("chat", {"messages": list(messages), **fields})


def test_later_turns_have_the_text_of_the_first() -> None:
    first = chat(SYSTEM, ASKS)
    assert first is not None
    assert chat(SYSTEM, ASKS, ANSWERS, AGAIN) == first
    assert chat(SYSTEM, ASKS, ANSWERS, AGAIN, temperature=0.5, stream=True) == first


def test_another_system_prompt_question_or_set_of_tools_is_another_beginning() -> None:
    def tool(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name}}

    different = [
        chat(SYSTEM, ASKS),
        chat(ASKS),
        chat(SYSTEM, AGAIN),
        chat(SYSTEM, ASKS, tools=[tool("weather")]),
        chat(SYSTEM, ASKS, tools=[tool("stocks")]),
        prompt_prefix("chat", {"system": "Be brief.", "messages": [ASKS]}),
        prompt_prefix("responses", {"instructions": "Be terse.", "input": "What is rain?"}),
    ]
    assert len(set(different)) == len(different)


def test_long_texts_are_hashed_at_both_ends_with_their_length() -> None:
    def calls(text: str) -> str:
        request = chat({"role": "user", "content": text})
        assert request is not None
        return request

    long = "a" * 100_000
    assert len(calls(long)) < 2_000
    assert len({calls(long), calls(long + "a"), calls("b" + long[1:]), calls(long[1:] + "b")}) == 4


@pytest.mark.parametrize(
    ("prompt", "later"),
    [
        ("x" * 1024, "x" * 1024 + " and more"),
        (list(range(256)), list(range(300))),
        (["x" * 2000, "y"], ["x" * 1500]),
        ([[1, 2], [3]], [[1, 2], [4]]),
    ],
)
def test_a_completions_prompt_counts_by_its_first_part(prompt: Any, later: Any) -> None:
    prefix = prompt_prefix("completions", {"prompt": prompt})
    assert prefix
    assert prompt_prefix("completions", {"prompt": later}) == prefix
    assert len(prefix) < 2_000


@pytest.mark.parametrize(
    ("task", "body"),
    [
        ("embeddings", {"input": "text"}),
        ("rerank", {"query": "q", "documents": ["d"]}),
        ("completions", {"prompt": ""}),
        ("completions", {"prompt": []}),
        ("completions", {}),
        ("chat", {"messages": []}),
        ("chat", {}),
        ("chat", {"messages": None, "tools": [None, {}]}),
    ],
)
def test_a_request_without_a_beginning_has_no_key(task: str, body: Mapping[str, Any]) -> None:
    assert prompt_prefix(task, body) is None


def configured(sticky: Mapping[str, str] | None = None, **affinity: Any) -> Snapshot:
    """Two deployments in Serve, and one external server."""
    config: Config = parse(
        {
            "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 100}, "sticky": sticky}},
            "deployments": {
                "blue": {"app": "blue", "model": "m", "affinity": affinity},
                "green": {"app": "green", "model": "m", "affinity": {"by": "none"}},
                "other": {"url": "http://elsewhere", "model": "m"},
            },
        }
    )
    return Snapshot(config, targets(config, RuntimeEnvironment()), cast(Any, None), 0)


def key_of(snapshot: Snapshot, *messages: Any, **of: Any) -> int | None:
    return placement(snapshot, *messages, **of).key


def placement(
    snapshot: Snapshot,
    *messages: Any,
    key: str | None = None,
    deployment: str = "blue",
    task: Task = "chat",
    headers: Mapping[str, str] | None = None,
    caller: str = ANONYMOUS,
    cache_key: str | None = None,
) -> Placement:
    call = Call(task, {"messages": list(messages) or [ASKS]}, GENERATES, cache_key=cache_key)
    assignment = Assignment("chat", "blue", "traffic", (), key)
    place = Place(snapshot, assignment, caller, call, headers or {}, lambda: 100)
    return place.placement(snapshot.targets[deployment])


def test_a_first_turn_has_half_of_the_bound() -> None:
    first, later = placement(configured(), ASKS), placement(configured(), ASKS, ANSWERS, AGAIN)
    assert first.key == later.key is not None
    assert (first.bound, later.bound) == (1, 2)
    assert placement(configured(bound=0.25), ASKS).bound == 0.125


def test_only_what_follows_the_models_last_turn_is_not_in_its_replicas_cache() -> None:
    first, later = placement(configured(), ASKS), placement(configured(), ASKS, ANSWERS, AGAIN)
    assert (first.prompt, first.uncached) == (100, 100)
    assert (later.prompt, later.uncached) == (100, estimate({"messages": [AGAIN]}))


def test_only_an_application_of_the_cluster_gets_a_key_and_only_if_it_is_on() -> None:
    assert key_of(configured(), deployment="blue") is not None
    assert key_of(configured(), deployment="green") is None
    assert key_of(configured(), deployment="other") is None
    assert key_of(configured(), task="embeddings") is None


def test_a_sticky_key_counts_unless_it_is_a_whole_callers() -> None:
    for_user, for_caller = configured({"by": "user"}), configured({"by": "api_key"})
    assert key_of(for_user, ASKS, key="ann") == key_of(for_user, AGAIN, key="ann") != key_of(for_user, ASKS, key="bob")
    assert key_of(for_user, ASKS) != key_of(for_user, ASKS, key="ann")
    assert key_of(for_caller, ASKS, key="ann") == key_of(for_caller, ASKS, key="bob") != key_of(for_caller, AGAIN)


def test_the_clients_name_for_a_prefix_counts_first() -> None:
    for snapshot in (configured(), configured({"by": "user"})):
        one, other = key_of(snapshot, ASKS, key="ann", cache_key="a"), key_of(snapshot, AGAIN, key="bob", cache_key="a")
        assert one == other != key_of(snapshot, ASKS, key="ann", cache_key="b")
        assert key_of(snapshot, ASKS, cache_key="") == key_of(snapshot, ASKS)
        assert key_of(snapshot, ASKS, caller="key-b", cache_key="a") != one
    assert key_of(configured(), cache_key="a" * 5000) != key_of(configured(), cache_key="a" * 5001)
    assert key_of(configured(by="session"), cache_key="a") is None
    assert key_of(configured(by="none"), cache_key="a") is None


def test_by_session_needs_a_session_or_a_sticky_key() -> None:
    snapshot = configured(by="session")
    assert key_of(snapshot) is None
    one, other = ({"x-session-id": name} for name in ("s1", "s2"))
    assert key_of(snapshot, ASKS, headers=one) == key_of(snapshot, AGAIN, headers=one)
    assert key_of(snapshot, headers=one) != key_of(snapshot, headers=other)
    assert key_of(configured({"by": "user"}, by="session"), key="ann", headers=one) == key_of(snapshot, key="ann")


def test_two_callers_sessions_are_two_keys() -> None:
    snapshot, session = configured(by="session"), {"x-session-id": "s1"}
    ann, again, bob = (key_of(snapshot, headers=session, caller=caller) for caller in ("key-a", "key-a", "key-b"))
    assert ann == again != bob


def test_after_a_failure_the_request_avoids_the_replica_under_every_name_of_its_deployment() -> None:
    snapshot = configured()
    call = Call("chat", {"messages": [ASKS]}, GENERATES)
    place = Place(snapshot, Assignment("chat", "blue", "traffic"), ANONYMOUS, call, {}, lambda: 1)
    place.failed("blue")
    place.placement(snapshot.targets["blue"]).chosen = "a"
    place.failed("blue")
    assert [set(place.placement(snapshot.targets[name]).avoided) for name in ("blue", "green")] == [{"a"}, {"a"}]


def test_a_url_takes_no_affinity() -> None:
    with pytest.raises(Exception, match="`affinity` needs `app`"):
        parse(
            {
                "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 100}}},
                "deployments": {"blue": {"url": "http://elsewhere", "model": "m", "affinity": {"by": "none"}}},
            }
        )


def test_affinity_is_on_by_default() -> None:
    assert Affinity().by == "prefix"
    assert configured().targets["blue"].affinity == Affinity()
