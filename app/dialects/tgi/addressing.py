"""The endpoint or deployment that a request names. TGI itself serves one model, and its adapters."""

from collections.abc import Sequence

from app.config.schema import Task
from app.dialects.base import ParseContext, Request
from app.dialects.mounts import is_own_url
from app.errors import Unprocessable

_TASKS: Sequence[Task] = ("completions", "chat", "embeddings", "rerank", "classify", "responses")
_NO_MODEL = (None, "tgi", "dummy")


def task_asked_about(request: Request, context: ParseContext) -> Task:
    """The task by which a question about a server (`/info`, `/health`) finds its deployment: the first that the path's
    endpoint or deployment has, or that has a default endpoint. TGI's servers have one task, TEI's another.
    """
    config, name = context.config, request.params.get("endpoint")
    named = config.endpoints.get(name or "") or config.deployments.get(name or "")
    tasks = config.defaults if name is None else named.tasks if named is not None else ()
    return next((task for task in _TASKS if task in tasks), "completions")


def names_no_model(name: object, request: Request) -> bool:
    """Whether this `model` means the server's only model. Hugging Face's clients send "tgi", "dummy" or their URL."""
    return name in _NO_MODEL or is_own_url(name, request.path)


def named_model(name: str | None, request: Request, context: ParseContext) -> tuple[str | None, str | None]:
    """The model and the deployment (`Call`) that the body's `model` chooses.

    TGI takes the name for an adapter's, and the base model for an unknown one: that is an error only at the root, where
    OpenAI's clients call too.
    """
    if not request.path.startswith("/tgi"):
        return (None if names_no_model(name, request) else name), None
    return None, (name if name is not None and _is_served(name, request, context) else None)


def adapter_deployment(name: str | None, request: Request, context: ParseContext) -> str | None:
    """The deployment for an `adapter_id`: its own name, or what the engine calls the adapter, if one alone has that.

    Raises Unprocessable if the endpoint has no such deployment.
    """
    if name is None or _is_served(name, request, context):
        return name
    raise Unprocessable(f"`adapter_id` {name} is not available", param="parameters.adapter_id", value=name)


def _is_served(name: str, request: Request, context: ParseContext) -> bool:
    """Whether it is a deployment of the path's endpoint, or of the default one, or the model of exactly one."""
    config = context.config
    endpoint = config.endpoints.get(request.params.get("endpoint") or config.defaults.get("completions") or "")
    if endpoint is None:
        return False
    return name in endpoint.traffic or [config.deployments[it].model for it in endpoint.traffic].count(name) == 1
