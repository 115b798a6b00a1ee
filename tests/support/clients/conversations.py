"""Requests for the tests of several dialects: a question whose answer is known, and a tool."""

from typing import Any

QUESTION = "Name three primary colors."
MESSAGES: Any = [{"role": "user", "content": QUESTION}]


def answers(text: str) -> bool:
    """Whether `text` answers the question. The wording may depend on the other requests in an engine's batch."""
    return all(color in text for color in ("Red", "Blue", "Yellow"))


STRUCTURED: dict[str, Any] = {"max_tokens": 200, "frequency_penalty": 2, "temperature": 0}
"""For JSON answers. JSON may have any white space between its tokens: without the penalty, or with tokens drawn by
chance, a small model may fill its answer with that."""

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
