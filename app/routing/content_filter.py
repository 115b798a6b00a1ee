"""An endpoint's content filter: patterns over the text of a request."""

from collections.abc import Iterator, Mapping
from typing import Any

from app.config.schema import ContentFilter
from app.errors import BadRequest

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
)


def check_content(content_filter: ContentFilter, body: Mapping[str, Any]) -> None:
    """Raises BadRequest (code ``content_filter``), naming the field, if its text matches a pattern.

    `body` is vLLM's request. The message names neither the pattern nor the text.
    """
    for name in _FIELDS:
        if any(pattern.search(text) for text in _texts(body.get(name)) for pattern in content_filter.patterns):
            raise BadRequest(
                f"{name}: the request was blocked by this endpoint's content filter", param=name, code="content_filter"
            )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
