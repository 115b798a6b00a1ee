"""Requests for the tests of several dialects: a question whose answer is known, and a tool."""

from typing import Any

# Both variants, bfloat16 and float32, answer it the same: its greedy tokens have no close rivals.
QUESTION = "Name three primary colors."
ANSWER = "Red, Blue, and Yellow"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
