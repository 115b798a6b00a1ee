"""A conversation keeps its key in every later turn."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.exposures.identity import conversation_key, turns

SYSTEM = {"role": "system", "content": "Be kind."}
DEVELOPER = {"role": "developer", "content": "Be brief."}
FIRST = {"role": "user", "content": "Hello"}
LATER: list[Any] = [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "And now?"}]
CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "3"}


def chat(*messages: Any, **fields: Any) -> str | None:
    return conversation_key("ann", "chat", {"messages": list(messages), **fields})


def response(input: Any, **fields: Any) -> str | None:
    return conversation_key("ann", "responses", {"input": input, **fields})


@pytest.mark.parametrize("system", [[], [SYSTEM], [DEVELOPER], [SYSTEM, DEVELOPER]])
def test_later_turns_have_the_key_of_the_first(system: list[Any]) -> None:
    assert chat(*system, FIRST) == chat(*system, FIRST, *LATER) == chat(*system, FIRST, *LATER, *LATER) is not None


def test_anything_before_the_first_answer_makes_another_conversation() -> None:
    keys = [
        chat(FIRST),
        chat(SYSTEM, FIRST),
        chat(DEVELOPER, FIRST),
        chat({"role": "user", "content": "Hello!"}),
        chat({"role": "user", "content": "Be kind.Hello"}),
        conversation_key("bob", "chat", {"messages": [FIRST]}),
    ]
    assert len(set(keys)) == len(keys)
    assert chat(SYSTEM, FIRST) == chat(FIRST, system="Be kind.")  # a system message, and Anthropic's field


def test_a_text_and_its_only_part_are_the_same_and_cache_marks_change_nothing() -> None:
    part = {"type": "text", "text": "Hello"}
    marked = {**part, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    assert chat(FIRST) == chat({"role": "user", "content": [part]}) == chat({"role": "user", "content": [marked]})
    assert chat(FIRST, system="Be kind.") == chat(FIRST, system=[{"type": "text", "text": "Be kind."}])


def test_images_are_part_of_the_conversations_key() -> None:
    def with_image(url: str) -> str | None:
        image = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
        return chat({"role": "user", "content": [image]})

    assert with_image("https://a.example/1.png") != with_image("https://a.example/2.png")


def test_responses_requests_are_conversations() -> None:
    first = {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
    key = response("Hello", instructions="Be kind.")
    assert (
        key == response([first], instructions="Be kind.") == response([first, answer, first], instructions="Be kind.")
    )
    assert key != response("Hello")


@pytest.mark.parametrize(
    ("task", "body"),
    [
        ("completions", {"prompt": "Hello"}),
        ("embeddings", {"input": ["Hello"]}),
        ("chat", {"messages": [SYSTEM]}),
        ("chat", {"messages": []}),
        ("chat", {"input": "Hello"}),
        ("responses", {}),
    ],
)
def test_requests_without_a_conversation_have_no_key(task: str, body: dict[str, Any]) -> None:
    assert conversation_key("ann", task, body) is None


def test_long_texts_count_up_to_a_bound_and_by_their_length() -> None:
    long = "x" * 1_000_000
    assert chat({"role": "user", "content": long}) != chat({"role": "user", "content": long + "y"})
    assert chat({"role": "user", "content": ["a"] * 100_000}) is not None


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=10,
)
MESSAGE: Any = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": JSON}
)


@given(st.lists(MESSAGE | JSON, max_size=6))
def test_no_messages_break_the_key_or_the_count_of_turns(messages: list[Any]) -> None:
    for task, name in (("chat", "messages"), ("responses", "input")):
        conversation_key("ann", task, {name: messages})
        assert 0 <= turns(task, {name: messages}) <= len(messages)


def test_the_models_turns_are_counted() -> None:
    assert turns("chat", {"messages": [SYSTEM, FIRST]}) == 0
    assert turns("chat", {"messages": [FIRST, *LATER, *LATER]}) == 2
    calls = [FIRST, {"role": "assistant", "tool_calls": [{}]}, {"role": "tool", "content": "3"}, *LATER]
    assert turns("chat", {"messages": calls}) == 2
    assert turns("responses", {"input": [FIRST, {"type": "reasoning"}, CALL, RESULT, LATER[0], FIRST]}) == 2
    assert turns("responses", {"input": "Hello"}) == turns("completions", {"prompt": "Hello"}) == 0
