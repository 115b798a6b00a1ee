"""The texts of a request that its engine tokenizes, and how long they may be.

An engine tokenizes one text after another, a million characters in a second or two. Other requests wait for a long
text, even if it does not fit into the context or is cut in the end: so it must not reach the engine. Contract: vLLM
0.29, `renderers`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from app.engine.pieces import MOST_CHARACTERS, WINDOW
from app.long_json import written

_CHARACTERS_PER_TOKEN = 8
"""Twice what texts have: one with more characters for each of a context's tokens does not fit into it."""

REPEATING = frozenset({"/v1/embeddings", "/v1/rerank", "/score"})
"""Paths whose texts may be longer together than the client's body: an instruction precedes each input, or a query is
read with each document."""


class Text(NamedTuple):
    """What an engine tokenizes at once: the length in characters. `field` has most of it, `own` characters."""

    field: str
    own: int
    length: int


def fitting(context: int) -> int:
    """The most characters of a text that fits into a context of so many tokens, or takes hardly longer to be cut."""
    return max(WINDOW, _CHARACTERS_PER_TOKEN * context)


def most_characters(context: int) -> int:
    """The most characters that are tokenized for a model with this context."""
    return max(MOST_CHARACTERS, fitting(context))


def texts_of(path: str, body: Mapping[str, Any]) -> list[Text]:
    """The texts in the body of a vLLM request. Token ids, images and other media are none."""
    found = [_conversation(body)] if "messages" in body or path == "/v1/responses" else [*_apart(body)]
    if isinstance(words := body.get("bad_words"), list):
        length = 2 * _characters(words)  # each word once more with a space before it
        found.append(Text("bad_words", length, length))
    return found


def too_long(texts: Sequence[Text], context: int) -> tuple[str, str] | None:
    """A field with more than is tokenized for a model with this context, and why it is refused.

    A batch may have any number of texts that fit, or are cut at once. The others together have as many characters as
    one alone.
    """
    fits, most = fitting(context), most_characters(context)
    longer = [text for text in texts if text.length > fits]
    if (total := sum(text.length for text in longer)) <= most:
        return None
    longest = max(longer, key=lambda text: text.length)
    if len(longer) > 1:
        what = f"its {len(longer)} texts of more than {fits} characters have {total} together"
    else:
        what = f"has {longest.own} characters"
        if longest.own < longest.length:
            what += f", {longest.length} with the rest of the prompt"
    return longest.field, f"{what}; {most} are tokenized at most"


_MESSAGES = ("messages", "input", "system", "instructions", "chat_template")
_WRITTEN = ("tools", "documents", "chat_template_kwargs")
"""What a chat template puts into the prompt as JSON."""


def _conversation(body: Mapping[str, Any]) -> Text:
    lengths = {name: _characters(body[name]) for name in _MESSAGES if name in body}
    lengths |= {name: len(written(body[name])) for name in _WRITTEN if name in body}
    field = max(lengths, key=lambda name: lengths[name], default="messages")
    return Text(field, lengths.get(field, 0), sum(lengths.values()))


def _apart(body: Mapping[str, Any]) -> Iterator[Text]:
    for name in ("prompt", "input"):
        yield from (Text(name, length, length) for length in _lengths(body.get(name)))
    documents = _lengths(body.get("documents"))
    for name in ("query", "queries"):
        for query, document in zip(cycle(_lengths(body.get(name))), documents, strict=False):
            field, own = (name, query) if query > document else ("documents", document)
            yield Text(field, own, query + document)


def _lengths(value: Any) -> list[int]:
    """Of a text, or of each text in a list."""
    if _is_of_numbers(value):
        return []
    return [_characters(item) for item in value] if isinstance(value, list) else [_characters(value)]


def _is_of_numbers(value: Any) -> bool:
    """Whether a list holds token ids, perhaps half a million of them."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], int)


_MEDIA = frozenset({"image_url", "audio_url", "video_url", "input_audio", "image_embeds", "audio_embeds"})


def _characters(value: Any) -> int:
    """Of all texts in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return 0 if _is_of_numbers(value) else sum(map(_characters, value))
    if isinstance(value, dict) and value.get("type") != "base64":
        return sum(_characters(part) for name, part in value.items() if name not in _MEDIA)
    return 0
