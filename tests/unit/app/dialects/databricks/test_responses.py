"""Databricks' Responses API: fields, items, both forms of tools and formats, responses, streams and their ends."""

import base64
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.base import Stream
from app.engine.output import Usage
from app.errors import BadRequest, Rejected, TimedOut
from app.sse import Decoder, encode
from tests.support.clients.samples import SERVED
from tests.unit.app.dialects.databricks.test_dialect import parse, reply_to

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
NESTED = {"type": "function", "function": {"name": "f", "description": "d", "parameters": PARAMETERS, "strict": True}}
FLAT = {"type": "function", "name": "f", "description": "d", "parameters": PARAMETERS, "strict": True}
SCHEMA = {"name": "n", "schema": {"type": "object"}, "strict": True}


def responses(**fields: Any) -> Mapping[str, Any]:
    return parse("responses", **fields).body


VALID: list[tuple[str, Any]] = [
    ("instructions", "be brief"),
    *[("max_output_tokens", value) for value in (1, 10**6)],
    *[("temperature", value) for value in (0, 2)],
    *[("top_p", value) for value in (0.001, 1)],
    ("stream", True),
    ("text", {"format": {"type": "text"}}),
    ("text", {"format": {"type": "json_object"}}),
    ("tools", [FLAT]),
    *[("tool_choice", value) for value in ("none", "auto")],
    *[("parallel_tool_calls", value) for value in (True, False)],
    ("max_tool_calls", 1),
    *[("top_logprobs", value) for value in (0, 20)],
    ("include", ["message.output_text.logprobs"]),
    ("reasoning", {"effort": "low"}),
]


@pytest.mark.parametrize(("field", "value"), VALID)
def test_a_valid_field_reaches_the_engine(field: str, value: Any) -> None:
    assert responses(**{field: value})[field] == value


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"type": "song"}]}, "input[0]"),
    ({"input": [{"role": "boss", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_song"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    ({"instructions": 5}, "instructions"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "json_schema": {"name": "n"}}}}, "text.format"),
    ({"reasoning": {"effort": "max"}}, "reasoning.effort"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [FLAT], "tool_choice": "perhaps"}, "tool_choice"),
    ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    ({"metadata": {"a": 5}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"truncation": "middle"}, "truncation"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"include": "all"}, "include"),
    ({"prompt_cache_key": 5}, "prompt_cache_key"),
    *[
        ({field: value}, field)
        for field, values in {
            "background": (True, False),
            "conversation": ("c", {"id": "c"}),
            "previous_response_id": ("resp_1",),
            "prompt": ({"id": "p"},),
            "service_tier": ("auto", "flex"),
            "store": (True, False),
        }.items()
        for value in values
    ],
]


@pytest.mark.parametrize(("fields", "param"), INVALID)
def test_an_invalid_or_unsupported_field_is_rejected_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        responses(**fields)
    assert raised.value.param is not None
    assert raised.value.param.startswith(param)
    assert param in raised.value.message


@pytest.mark.parametrize("field", ["background", "store", "conversation", "service_tier", "prompt", "instructions"])
def test_null_means_absent(field: str) -> None:
    assert responses(**{field: None}) == {"input": "hi", "store": False}


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {str(i): "x" for i in range(16)}},
        {"truncation": "auto"},
        {"user": "u"},
        {"prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h"},
        {"safety_identifier": "s"},
        {"reasoning": {"encrypted_content": True}},
        {"stream_options": {"include_usage": True}, "stream": True},
    ],
)
def test_fields_that_change_nothing_are_accepted_and_not_sent(fields: dict[str, Any]) -> None:
    stream = {"stream": True} if "stream" in fields else {}
    assert responses(**fields) == {"input": "hi", "store": False, **stream}


@pytest.mark.parametrize("tool", [NESTED, FLAT])
def test_tools_and_choices_are_sent_flat(tool: dict[str, Any]) -> None:
    chosen = {name: tool[name] for name in ("type", "name", "function") if name in tool}
    if "function" in chosen:
        chosen["function"] = {"name": "f"}
    body = responses(tools=[tool], tool_choice=chosen)
    assert body["tools"] == [FLAT]
    assert body["tool_choice"] == {"type": "function", "name": "f"}


@pytest.mark.parametrize("fields", [SCHEMA, {"json_schema": SCHEMA}])
def test_formats_are_sent_flat(fields: dict[str, Any]) -> None:
    body = responses(text={"format": {"type": "json_schema", **fields}})
    assert body["text"] == {"format": {"type": "json_schema", **SCHEMA}}


def test_top_logprobs_requests_log_probabilities() -> None:
    assert responses(top_logprobs=2)["include"] == ["message.output_text.logprobs"]
    given = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert responses(top_logprobs=2, include=given)["include"] == given
    assert "include" not in responses(top_logprobs=0)


CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": {"city": "Paris"}}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": {"degrees": 20}}
SENT_CALL = {**CALL, "arguments": '{"city":"Paris"}'}
SENT_OUTPUT = {**OUTPUT, "output": '{"degrees":20}'}
FILE = base64.b64encode("größe: 5".encode()).decode()


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(parts)}


ITEMS: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([{"role": "user", "content": "a"}], [{"type": "message", "role": "user", "content": "a"}]),
    ([user({"type": "input_text", "text": "a"})], [user({"type": "input_text", "text": "a"})]),
    (
        [user({"type": "input_image", "image_url": "http://x/y.png"})],
        [user({"type": "input_image", "image_url": "http://x/y.png", "detail": "auto"})],
    ),
    (
        [user({"type": "input_file", "file_data": f"data:text/plain;base64,{FILE}", "filename": "a.txt"})],
        [user({"type": "input_text", "text": "a.txt:\ngröße: 5"})],
    ),
    ([user({"type": "input_file", "file_data": FILE})], [user({"type": "input_text", "text": "größe: 5"})]),
    ([CALL, OUTPUT], [SENT_CALL, SENT_OUTPUT]),
    ([{**OUTPUT, "output": [{"type": "input_text", "text": "warm"}]}], [{**OUTPUT, "output": "warm"}]),
    ([{**OUTPUT, "output": "warm"}], [{**OUTPUT, "output": "warm"}]),
    (
        [{"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}, CALL]}],
        [{"type": "message", "role": "assistant", "content": "a"}, SENT_CALL],
    ),
    ([user({"type": "input_text", "text": "a"}, OUTPUT)], [user({"type": "input_text", "text": "a"}), SENT_OUTPUT]),
    (
        [
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "incomplete",
                "content": [
                    {"type": "output_text", "text": "a", "annotations": [], "logprobs": None},
                    {"type": "output_text", "text": "b"},
                ],
            },
            {"role": "user", "content": "c"},
        ],
        [
            {"type": "message", "role": "assistant", "content": "ab"},
            {"type": "message", "role": "user", "content": "c"},
        ],
    ),
    (
        [{"role": "assistant", "content": []}, {"role": "user", "content": "c"}],
        [{"type": "message", "role": "user", "content": "c"}],
    ),
    (
        [{"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}],
        [{"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}],
    ),
]


@pytest.mark.parametrize(("items", "sent"), ITEMS)
def test_a_conversation_is_translated_for_the_engine(items: list[dict[str, Any]], sent: list[dict[str, Any]]) -> None:
    assert responses(input=items)["input"] == sent


@pytest.mark.parametrize(
    "file",
    [
        {},
        {"file_id": "file-1"},
        {"file_data": "not base64!"},
        {"file_data": base64.b64encode(b"\x89PNG\x00").decode()},
        {"file_data": base64.b64encode(b"a\x00b").decode()},
        {"file_data": f"data:application/pdf;base64,{FILE}"},
        {"file_data": f"data:image/png,{FILE}"},
        {"file_data": base64.b64encode(b"%PDF-1.4\n1 0 obj").decode()},
        {"file_data": f"data:text/plain;base64,{base64.b64encode(b'%PDF-1.4').decode()}"},
    ],
)
def test_a_file_that_is_not_inline_text_is_rejected(file: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as raised:
        responses(input=[user({"type": "input_text", "text": "a"}, {"type": "input_file", **file})])
    assert raised.value.param == "input[0].content[1].file_data"


@pytest.mark.parametrize(
    "media_type",
    ["", ";charset=utf-8", "text/csv", "Text/Plain", "application/json", "image/svg+xml", "application/octet-stream"],
)
def test_a_file_of_a_textual_media_type_is_its_text(media_type: str) -> None:
    file = {"type": "input_file", "file_data": f"data:{media_type};base64,{FILE}"}
    assert responses(input=[user(file)])["input"] == [user({"type": "input_text", "text": "größe: 5"})]


MESSAGE = {
    "id": "msg_9",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
}
CALLED = {"id": "fc_8", "type": "function_call", "call_id": "c8", "name": "f", "arguments": "{}", "status": "completed"}
USAGE = {
    "input_tokens": 9,
    "output_tokens": 3,
    "total_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 0},
}
ANSWER: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [MESSAGE],
    "incomplete_details": None,
    "tools": [FLAT],
    "tool_choice": "none",
    "max_output_tokens": 8000,
    "text": None,
    "metadata": None,
    "usage": USAGE,
}


def test_a_response_repeats_its_request_in_the_clients_own_form() -> None:
    fields = {"tools": [NESTED], "text": {"format": {"type": "json_schema", "json_schema": SCHEMA}}, "user": "u"}
    response = reply_to(parse("responses", **fields, metadata={"a": "b"}, truncation="auto"), ANSWER)
    assert {name: response[name] for name in fields} == fields
    assert (response["metadata"], response["truncation"]) == ({"a": "b"}, "auto")


def test_a_completed_response_has_databricks_defaults_and_counts() -> None:
    response = reply_to(parse("responses"), ANSWER)
    assert (response["status"], response["error"], response["incomplete_details"]) == ("completed", None, None)
    assert (response["store"], response["tools"], response["tool_choice"]) == (False, [], "auto")
    assert response["max_output_tokens"] is None
    assert response["usage"] == {**USAGE, "prompt_tokens": 9, "completion_tokens": 3}
    assert response["output"] == [MESSAGE]


def test_a_response_that_reached_its_length_is_incomplete() -> None:
    cut = {**ANSWER, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    response = reply_to(parse("responses", max_output_tokens=3), cut)
    assert (response["status"], response["max_output_tokens"]) == ("incomplete", 3)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"


def test_reasoning_tokens_are_reported() -> None:
    usage = {**USAGE, "output_tokens_details": {"reasoning_tokens": 2}}
    assert reply_to(parse("responses"), {**ANSWER, "usage": usage})["usage"]["reasoning_tokens"] == 2


@pytest.mark.parametrize(("parallel", "names"), [(True, ["fc_8", "fc_9"]), (False, ["fc_8"])])
def test_only_one_call_is_returned_without_parallel_tool_calls(parallel: bool, names: list[str]) -> None:
    call = parse("responses", tools=[FLAT], parallel_tool_calls=parallel)
    response = reply_to(call, {**ANSWER, "output": [CALLED, {**CALLED, "id": "fc_9"}]})
    assert [item["id"] for item in response["output"]] == names


def event(name: str, number: int, **fields: Any) -> bytes:
    data = json.dumps({**fields, "sequence_number": number, "type": name}, separators=(",", ":"))
    return encode(data, type=name)


BEGUN = {**ANSWER, "status": "in_progress", "output": [], "usage": None}


def text_stream(**last: Any) -> bytes:
    item = {**MESSAGE, "id": "9391d78a", "content": [], "status": "in_progress"}
    return b"".join(
        (
            event("response.created", 0, response=BEGUN),
            event("response.in_progress", 1, response=BEGUN),
            event("response.output_item.added", 2, item=item, output_index=0),
            event("response.output_text.delta", 3, delta="Hi", item_id="9391d78a", output_index=0),
            event("response.completed", 4, response={**ANSWER, **last}),
        )
    )


def events(sent: bytes) -> list[tuple[str | None, dict[str, Any]]]:
    assert sent == b"" or sent.endswith(b"\n\n")
    return [(event.type, json.loads(event.data)) for event in Decoder().feed(sent)]


def stream(**fields: Any) -> Stream:
    return parse("responses", stream=True, **fields).translation.open_stream(SERVED)


@given(st.lists(st.integers(0, len(text_stream())), max_size=8))
def test_every_response_object_in_a_stream_is_databricks_in_any_chunking(points: list[int]) -> None:
    upstream, translated = text_stream(), stream(metadata={"a": "b"})
    edges = [0, *sorted(points), len(upstream)]
    sent = events(b"".join(translated.feed(upstream[a:b]) for a, b in pairwise(edges)) + translated.close())
    assert [name for name, _ in sent] == [data["type"] for _, data in sent]
    assert [data["sequence_number"] for _, data in sent] == [0, 1, 2, 3, 4]
    assert all(data["response"]["metadata"] == {"a": "b"} for _, data in sent if "response" in data)
    name, last = sent[-1]
    assert (name, last["response"]["status"], last["response"]["error"]) == ("response.completed", "completed", None)
    assert last["response"]["usage"]["prompt_tokens"] == 9
    assert last["response"]["output"][0]["id"] == sent[3][1]["item_id"]
    assert translated.usage == Usage(9, 3)


def test_a_stream_that_reached_its_length_ends_incomplete() -> None:
    cut = text_stream(status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    translated = stream(max_output_tokens=1)
    name, last = events(translated.feed(cut) + translated.close())[-1]
    assert (name, last["type"]) == ("response.incomplete", "response.incomplete")
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (TimedOut("late"), "server_error", "DEADLINE_EXCEEDED"),
        (Rejected("late", status=400), "invalid_prompt", "BAD_REQUEST"),
    ],
)
def test_a_stream_that_fails_ends_with_the_failed_response(error: Any, code: str, kind: str) -> None:
    translated = stream()
    begun = b"".join(part + b"\n\n" for part in text_stream().split(b"\n\n")[:4])
    name, last = events(translated.feed(begun) + translated.fail(error))[-1]
    assert (name, last["type"], last["sequence_number"]) == ("response.failed", "response.failed", 4)
    assert (last["response"]["id"], last["response"]["status"]) == ("resp_1", "failed")
    assert last["response"]["error"] == {"code": code, "message": "late", "param": None, "type": kind}


def test_a_stream_that_fails_before_its_response_object_ends_with_an_error() -> None:
    ((name, last),) = events(stream().fail(TimedOut("late")))
    assert (name, last["type"], last["message"]) == ("error", "error", "late")


@pytest.mark.parametrize(("parallel", "indices"), [(True, {0, 1, 2}), (False, {0, 1})])
def test_only_one_call_is_streamed_without_parallel_tool_calls(parallel: bool, indices: set[int]) -> None:
    items = [MESSAGE, CALLED, {**CALLED, "id": "fc_9"}]
    upstream = event("response.created", 0, response=BEGUN)
    for index, item in enumerate(items):
        upstream += event("response.output_item.added", 1, item=item, output_index=index)
        upstream += event(
            "response.function_call_arguments.delta", 2, delta='"type":"function_call"', output_index=index
        )
        upstream += event("response.output_item.done", 3, item=item, output_index=index)
    upstream += event("response.completed", 4, response={**ANSWER, "output": items})
    translated = stream(parallel_tool_calls=parallel, tools=[FLAT])
    sent = events(translated.feed(upstream) + translated.close())
    assert {data["output_index"] for _, data in sent if "output_index" in data} == indices
    assert len(sent[-1][1]["response"]["output"]) == len(indices)


@pytest.mark.parametrize("bad", [b"{", b"[]", b"5", b"{}", b'{"response":5}'])
def test_a_malformed_event_ends_the_stream_with_an_error(bad: bytes) -> None:
    translated = stream()
    sent = translated.feed(b"event: response.created\ndata: " + bad + b"\n\n") + translated.close()
    assert [name for name, _ in events(sent)] == ["error"]
