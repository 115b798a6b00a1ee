"""Friendli's list of models: the endpoints, and their deployments as `endpoint:deployment`.

Contract: the current SDK's `ModelCatalogResponseItem`. `kind`, `tasks` and `root` are additions, as in OpenAI's list.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from app.config.schema import Config, Task
from app.dialects.common.model_list import description

_MODES: tuple[tuple[Task, str], ...] = (("chat", "chat"), ("completions", "completion"), ("embeddings", "embedding"))

_FREE = {name: "0" for name in ("input", "output", "prompt", "completion")} | {
    name: None for name in ("input_cache_read", "cache_write", "audio_minute")
}


def models(config: Config, created: int) -> dict[str, Any]:
    """The list object; every `id` is a name that `model` may have.

    `created` is in Unix seconds. Numbers that the router would have to ask every deployment for are 0.
    """
    return {"object": "list", "data": [{**_card(*entry), "created": created} for entry in _entries(config)]}


def _entries(config: Config) -> Iterator[tuple[str, Sequence[Task], dict[str, Any]]]:
    """Name, tasks and additions: endpoints, their deployments, then the deployments without an endpoint."""
    for name, endpoint in config.endpoints.items():
        yield name, endpoint.tasks, description(config, name)
    behind: set[str] = set()
    for name, endpoint in config.endpoints.items():
        for deployment in endpoint.traffic:
            behind.add(deployment)
            # Below an endpoint a deployment has the endpoint's tasks only.
            yield f"{name}:{deployment}", endpoint.tasks, {**description(config, deployment), "tasks": endpoint.tasks}
    for name, it in config.deployments.items():
        if name not in behind:
            yield name, it.tasks, description(config, name)


def _card(name: str, tasks: Sequence[Task], additions: dict[str, Any]) -> dict[str, Any]:
    chats = "chat" in tasks
    functions = ("tool_call", "parallel_tool_call", "structured_output", "tool_choice", "system_messages")
    return {
        "id": name,
        "object": "model",
        "name": name,
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
        **additions,
    }
