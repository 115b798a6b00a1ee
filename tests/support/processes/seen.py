"""What a client has of a stream, in any dialect: its texts joined, and the last value of everything else."""

import json
import re
from collections.abc import Iterator
from typing import Any

Seen = dict[str, Any]

_TEXTS = frozenset(
    {"content", "text", "delta", "arguments", "partial_json", "reasoning_content", "reasoning", "thinking"}
)
"""Members whose values are pieces of a text."""

_OWN = frozenset(
    "id created created_at completed_at item_id call_id request_id sequence_number obfuscation seed logprob "
    "system_fingerprint tool_call_id cached_tokens cache_read_input_tokens".split()
)
"""Members that differ between two requests for the same, and numbers that are rounded."""

_DATA = re.compile(rb"^data: ?(\{.*\})\r?$", re.MULTILINE)


def seen(stream: bytes) -> Seen:
    """The parts of a stream by their paths. How it is cut into events makes no difference."""
    parts: Seen = {}
    for data in _DATA.findall(stream):
        event = json.loads(data)
        kind = event.get("type", event.get("event", ""))
        is_whole = kind.endswith((".done", ".completed", ".added"))
        for path, value in _leaves(event, kind if isinstance(kind, str) else ""):
            if isinstance(value, str) and path.rpartition(".")[2] in _TEXTS and not is_whole:
                parts[path] = parts.get(path, "") + value
            elif value is not None:
                parts[path] = value
    return {path: value for path, value in parts.items() if value != ""}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, member in value.items():
            if name not in _OWN:
                yield from _leaves(member, f"{path}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}.{number}")
    else:
        yield path, value
