from typing import Any

from app.config.schema import Config, Task

_MODES: tuple[tuple[Task, str], ...] = (("chat", "chat"), ("completions", "completion"), ("embeddings", "embedding"))

_FREE = {name: "0" for name in ("input", "output", "prompt", "completion")} | {
    name: None for name in ("input_cache_read", "cache_write", "audio_minute")
}


def models(config: Config) -> dict[str, Any]:
    """The endpoints in the format of the SDK's model list.

    It requires numbers that the router would have to ask every deployment for: these are 0.
    """
    return {"object": "list", "data": [_card(name, endpoint.tasks) for name, endpoint in config.endpoints.items()]}


def _card(name: str, tasks: tuple[Task, ...]) -> dict[str, Any]:
    chats = "chat" in tasks
    functions = ("tool_call", "parallel_tool_call", "structured_output", "tool_choice", "system_messages")
    return {
        "id": name,
        "object": "model",
        "name": name,
        "created": 0,
        "owned_by": "switchyard",
        "context_length": 0,
        "max_completion_tokens": 0,
        "pricing": _FREE,
        "functionality": dict.fromkeys(functions, chats),
        "description": f"serves {', '.join(tasks)}",
        "deprecation_date": None,
        "reasoning": False,
        "reasoning_options": None,
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "interleaved": False,
        "base_model": None,
        "mode": next((mode for task, mode in _MODES if task in tasks), "chat"),
        "default_params": None,
    }
