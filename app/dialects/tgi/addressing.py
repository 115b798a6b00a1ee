"""Which endpoint or deployment a request names. TGI itself serves one model, and its adapters."""

from collections.abc import Sequence

from app.dialects.base import ParseContext, Request
from app.dialects.mounts import is_own_url
from app.errors import Unprocessable

_NO_MODEL = (None, "tgi", "dummy")


def names_no_model(name: object, request: Request) -> bool:
    """Whether this `model` means the server's only model. Hugging Face's clients send "tgi", "dummy" or their URL."""
    return name in _NO_MODEL or is_own_url(name, request.path)


def named_model(name: str | None, request: Request, context: ParseContext) -> tuple[str | None, str | None]:
    """The model and the deployment (`Call`) that the body's `model` chooses.

    TGI ignores the name, so an unknown one is an error only at the root, where OpenAI's clients call too.
    """
    if not request.path.startswith("/tgi"):
        return (None if names_no_model(name, request) else name), None
    return None, (name if name in _deployments(request, context) else None)


def adapter_deployment(name: str | None, request: Request, context: ParseContext) -> str | None:
    """The deployment for an `adapter_id`: vLLM serves each adapter under a model name of its own.

    Raises Unprocessable if the endpoint has no such deployment.
    """
    if name is None or name in _deployments(request, context):
        return name
    raise Unprocessable(f"`adapter_id` {name} is not available", param="parameters.adapter_id", value=name)


def _deployments(request: Request, context: ParseContext) -> Sequence[str]:
    """The deployments of the path's endpoint, or of the default one."""
    name = request.params.get("endpoint") or context.config.defaults.get("completions")
    endpoint = context.config.endpoints.get(name or "")
    return list(endpoint.traffic) if endpoint else []
