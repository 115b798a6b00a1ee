"""Requests for the tests of several dialects: a question whose answer is known, and a tool."""

from typing import Any

QUESTION = "Name three primary colors."
MESSAGES: Any = [{"role": "user", "content": QUESTION}]


def answers(text: str) -> bool:
    """Whether `text` answers the question. The wording may depend on the other requests in an engine's batch."""
    return all(color in text for color in ("Red", "Blue", "Yellow"))


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
