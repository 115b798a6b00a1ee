import re

import msgspec

_USAGE = re.compile(rb'"usage": ?\{')
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens": ?(\d{1,18})(?!\d)')
_COMPLETION = re.compile(rb'"(?:completion|output)_tokens": ?(\d{1,18})(?!\d)')


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the engine reports them."""

    prompt_tokens: int
    completion_tokens: int


def find_usage(payload: bytes) -> Usage | None:
    """The highest counts in the usage objects of a piece of JSON, found without parsing the surrounding JSON.

    Counts only grow along a stream, so the highest are the last. The keys cannot be mistaken for text: inside a JSON
    string their quotes would be escaped.
    """
    if (found := _USAGE.search(payload)) is None:
        return None
    prompt = max(map(int, _PROMPT.findall(payload, found.start())), default=0)
    completion = max(map(int, _COMPLETION.findall(payload, found.start())), default=0)
    return Usage(prompt, completion)


def usage_of_answer(answer: bytes) -> Usage | None:
    """The counts of a whole answer: those of its last usage object, which is nearly always close to its end."""
    at = answer.rfind(b'"usage":')
    return (find_usage(answer[at:]) or find_usage(answer)) if at >= 0 else None
