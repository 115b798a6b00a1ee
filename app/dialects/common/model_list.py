"""OpenAI's list of models, as several dialects have it: the endpoints and the deployments."""

from collections.abc import Iterable
from typing import Any

from app.config.schema import Config


def model_names(config: Config) -> list[str]:
    """The names that `model` may have."""
    return [*config.endpoints, *config.deployments]


def description(config: Config, name: str) -> dict[str, Any]:
    """The kind of `name` (endpoint or deployment), its tasks, and a deployment's own name for its model.

    An adapter also has a `parent`, the deployment of the model that it adapts, if the caller may see that. `root` and
    `parent` are vLLM's keys.
    """
    if (endpoint := config.endpoints.get(name)) is not None:
        return {"kind": "endpoint", "tasks": endpoint.tasks}
    deployment = config.deployments[name]
    card: dict[str, Any] = {"kind": "deployment", "tasks": deployment.tasks, "root": deployment.model}
    return card if deployment.parent not in config.deployments else {**card, "parent": deployment.parent}


def model_card(config: Config, name: str, created: int) -> dict[str, Any]:
    """The model object of an endpoint or deployment. `created` is in Unix seconds."""
    card = {"id": name, "object": "model", "created": created, "owned_by": "switchyard"}
    return {**card, **description(config, name)}


def model_list(config: Config, names: Iterable[str], created: int) -> dict[str, Any]:
    """The list object of these endpoints and deployments."""
    return {"object": "list", "data": [model_card(config, name, created) for name in names]}
