"""The output of a response, taken from its stream."""

from typing import Any

import pytest

from app.dialects.common.streams import StreamedItems

MESSAGE = {"type": "message", "id": "m_2", "content": []}
CALL = {"type": "function_call", "id": "fc_2", "call_id": "c_2", "name": "add", "arguments": "{}"}


def items(*done: dict[str, Any]) -> StreamedItems:
    streamed = StreamedItems()
    for index, item in enumerate(done):
        begun = {**item, "id": f"streamed_{index}"}
        streamed.note({"type": "response.output_item.added", "output_index": index, "item": begun})
        streamed.note({"type": "response.output_item.done", "output_index": index, "item": begun})
    return streamed


def test_a_cut_call_that_the_engine_shows_as_text_stays_the_call_of_the_stream() -> None:
    cut = {**CALL, "arguments": '{"a": 1'}
    output = items(cut).output({"status": "incomplete", "output": [MESSAGE]})
    assert output == [{**cut, "id": "streamed_0"}]


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_items_of_the_same_kind_keep_the_ids_of_the_stream(status: str) -> None:
    output = items(MESSAGE, {**CALL, "call_id": "c_1"}).output({"status": status, "output": [MESSAGE, CALL]})
    assert output == [{**MESSAGE, "id": "streamed_0"}, {**CALL, "id": "streamed_1", "call_id": "c_1"}]


def test_a_complete_response_keeps_the_kinds_that_the_engine_parsed() -> None:
    assert items(MESSAGE).output({"status": "completed", "output": [CALL]}) == [CALL]


def test_a_call_that_was_cut_before_its_name_is_not_shown() -> None:
    assert StreamedItems().output({"status": "incomplete", "output": [MESSAGE]}) == []


def test_an_item_without_an_end_leaves_the_output_as_it_is() -> None:
    streamed = items(CALL)
    streamed.note({"type": "response.output_item.added", "output_index": 1, "item": MESSAGE})
    assert streamed.output({"status": "incomplete", "output": [MESSAGE]}) == [MESSAGE]
