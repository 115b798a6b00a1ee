"""The output items of one stream of Responses events.

vLLM parses the answer again for the stream's last event: items get new ids there, and a forced call that
`max_output_tokens` cut short becomes text in the model's markup. The items as they were streamed are right.
Contract: vLLM 0.29, `entrypoints/openai/responses`.
"""

from collections.abc import Mapping
from typing import Any


class StreamedItems:
    """The items in `response.output_item.added` and `response.output_item.done`, by output index."""

    def __init__(self) -> None:
        self._added: dict[int, Mapping[str, Any]] = {}
        self._done: dict[int, Mapping[str, Any]] = {}

    def note(self, event: Mapping[str, Any]) -> None:
        """Takes one of the two events."""
        items = self._added if event["type"] == "response.output_item.added" else self._done
        items[event["output_index"]] = event["item"]

    def output(self, response: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The output of a response object, with the ids and, if it was cut short, the kinds of the streamed items."""
        output: list[dict[str, Any]] = response["output"]
        if response["status"] == "incomplete" and self._added.keys() == self._done.keys():
            done = [dict(self._done[index]) for index in sorted(self._done)]
            if _kinds(done) != _kinds(output):
                return done
        return [self._with_ids(index, item) for index, item in enumerate(output)]

    def _with_ids(self, index: int, item: dict[str, Any]) -> dict[str, Any]:
        streamed = self._added.get(index)
        if streamed is None or streamed["type"] != item["type"]:
            return item
        return {**item, **{key: streamed[key] for key in ("id", "call_id") if key in streamed}}


def _kinds(items: list[dict[str, Any]]) -> list[str]:
    return [item["type"] for item in items]
