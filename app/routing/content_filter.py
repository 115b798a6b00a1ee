"""An endpoint's content filter: patterns over the text of a request."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from app.config.schema import ContentFilter
from app.errors import Blocked

_FIELDS = (
    "messages",
    "prompt",
    "input",
    "instruction",
    "instructions",
    "system",
    "query",
    "queries",
    "documents",
    "resume",
)

_NO_NAMES: Mapping[str, str] = {}
_WINDOW = _LONGEST_MATCH = 64 * 1024
"""Characters. A search holds the interpreter's lock, and takes up to 20 ms for each MiB."""


def check_content(
    content_filter: ContentFilter, body: Mapping[str, Any], field_names: Mapping[str, str] = _NO_NAMES
) -> None:
    """Raises Blocked (code ``content_filter``), naming the field, if its text matches a pattern.

    `body` is vLLM's request; `field_names` are the client's, where they differ. The message names neither the pattern
    nor the text.
    """
    for name in _FIELDS:
        if any(matches(pattern, text) for text in _texts(body.get(name)) for pattern in content_filter.patterns):
            own = field_names.get(name, name)
            raise Blocked(
                f"{own}: the request was blocked by this endpoint's content filter", param=own, code="content_filter"
            )


def matches(pattern: re.Pattern[str], text: str) -> bool:
    """Whether the pattern matches somewhere in the text. In a text of more than 128 Ki characters, which is searched in
    windows that overlap, a match of more than 64 Ki may be missed.
    """
    if len(text) <= _WINDOW + _LONGEST_MATCH:
        return pattern.search(text) is not None
    return any(_begins_in(pattern, text, start) for start in range(0, len(text) + 1, _WINDOW))


def _begins_in(pattern: re.Pattern[str], text: str, start: int) -> bool:
    """Whether a match begins in the window."""
    at, end = start, start + _WINDOW + _LONGEST_MATCH
    while (match := pattern.search(text, at, end)) is not None and match.start() < start + _WINDOW:
        # At its end a window looks like the end of the text.
        if match.end() < end or pattern.match(text, match.start()) is not None:
            return True
        at = match.start() + 1
    return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
