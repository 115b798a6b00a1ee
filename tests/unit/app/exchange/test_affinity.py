"""Conversation keys: the same in every turn, different for other beginnings, and small however long the request is."""

import re
from collections.abc import Mapping
from typing import Any, cast

import pytest

from app.config.access import ANONYMOUS
from app.config.endpoints import Affinity
from app.config.schema import Config, Task, parse
from app.dialects.base import Call, Translation
from app.exchange.affinity import Place, prompt_prefix
from app.exchange.snapshot import Snapshot
from app.internal_api import AFFINITY_HEADER
from app.routing.traffic import Assignment
from app.upstream.target import RuntimeEnvironment, targets

SYSTEM = {"role": "system", "content": "Be kind."}
ASKS = {"role": "user", "content": "What is rain?"}
ANSWERS = {"role": "assistant", "content": "Water."}
AGAIN = {"role": "user", "content": "And snow?"}


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


def header(
    snapshot: Snapshot,
    *messages: Any,
    key: str | None = None,
    deployment: str = "blue",
    task: Task = "chat",
    headers: Mapping[str, str] | None = None,
    caller: str = ANONYMOUS,
    cache_key: str | None = None,
) -> str | None:
    call = Call(task, {"messages": list(messages) or [ASKS]}, cast(Translation, None), cache_key=cache_key)
    place = Place(snapshot, Assignment("chat", "blue", "traffic", (), key), caller, call, headers or {})
    return place.headers(snapshot.targets[deployment]).get(AFFINITY_HEADER)


def test_the_header_holds_a_hash_and_the_bound_which_is_half_for_a_first_turn() -> None:
    first, later = header(configured(), ASKS), header(configured(), ASKS, ANSWERS, AGAIN)
    assert first is not None
    assert later is not None
    assert re.fullmatch(r"[0-9a-f]{16} 1", first)
    assert later == first.removesuffix(" 1") + " 2"
    assert header(configured(bound=0.25)) == first.removesuffix(" 1") + " 0.125"


def test_only_an_application_of_the_cluster_gets_a_key_and_only_if_it_is_on() -> None:
    assert header(configured(), deployment="blue") is not None
    assert header(configured(), deployment="green") is None
    assert header(configured(), deployment="other") is None
    assert header(configured(), task="embeddings") is None


def test_a_sticky_key_counts_unless_it_is_a_whole_callers() -> None:
    for_user, for_caller = configured({"by": "user"}), configured({"by": "api_key"})
    assert header(for_user, ASKS, key="ann") == header(for_user, AGAIN, key="ann") != header(for_user, ASKS, key="bob")
    assert header(for_user, ASKS) != header(for_user, ASKS, key="ann")
    assert header(for_caller, ASKS, key="ann") == header(for_caller, ASKS, key="bob") != header(for_caller, AGAIN)


def test_the_clients_name_for_a_prefix_counts_first() -> None:
    for snapshot in (configured(), configured({"by": "user"})):
        one, other = header(snapshot, ASKS, key="ann", cache_key="a"), header(snapshot, AGAIN, key="bob", cache_key="a")
        assert one == other != header(snapshot, ASKS, key="ann", cache_key="b")
        assert header(snapshot, ASKS, cache_key="") == header(snapshot, ASKS)
        assert header(snapshot, ASKS, caller="key-b", cache_key="a") != one
    assert header(configured(), cache_key="a" * 5000) != header(configured(), cache_key="a" * 5001)
    assert header(configured(by="session"), cache_key="a") is None
    assert header(configured(by="none"), cache_key="a") is None


def test_by_session_needs_a_session_or_a_sticky_key() -> None:
    snapshot = configured(by="session")
    assert header(snapshot) is None
    one, other = ({"x-session-id": name} for name in ("s1", "s2"))
    assert header(snapshot, ASKS, headers=one) == header(snapshot, AGAIN, headers=one)
    assert header(snapshot, headers=one) != header(snapshot, headers=other)
    assert header(configured({"by": "user"}, by="session"), key="ann", headers=one) == header(snapshot, key="ann")


def test_two_callers_sessions_are_two_keys() -> None:
    snapshot, session = configured(by="session"), {"x-session-id": "s1"}
    ann, again, bob = (header(snapshot, headers=session, caller=caller) for caller in ("key-a", "key-a", "key-b"))
    assert ann == again != bob


def test_after_a_failure_the_request_has_no_key() -> None:
    snapshot = configured()
    call = Call("chat", {"messages": [ASKS]}, cast(Any, None))
    place = Place(snapshot, Assignment("chat", "blue", "traffic"), ANONYMOUS, call, {})
    assert place.headers(snapshot.targets["blue"])
    place.failed("blue")
    assert not place.headers(snapshot.targets["blue"])


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
