"""Paths that several dialects serve, whose client a request there is, and how those below Friendli's paths name a model
and a user.

Besides its own API, Friendli has OpenAI's Responses and Anthropic's Messages there, which those dialects serve.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec.structs import replace

from app.dialects.base import Call, Request, Route

AZURE_MOUNTS = ("", "/azure", "/models", "/endpoints/{endpoint}")
"""The base paths of Azure's clients. Newer ones are the OpenAI SDK, so OpenAI's dialect has these paths too."""

INFO_PATHS = ("/info", "/endpoints/{endpoint}/info")
"""The base paths of Azure and TGI. The first is the default endpoint's."""

MOUNTS = ("/serverless/v1", "/dedicated/v1")
"""Friendli's base paths for serverless and dedicated endpoints."""

_OPENAI_SDKS = ("OpenAI/", "AsyncOpenAI/", "DatabricksOpenAI/")

_BELOW = tuple(f"{mount}/" for mount in MOUNTS)


def openai_routes(prefix: str) -> tuple[Route, ...]:
    """OpenAI's chat, completions and embeddings below a base path."""
    return (
        Route("POST", f"{prefix}/chat/completions", "chat"),
        Route("POST", f"{prefix}/completions", "completions"),
        Route("POST", f"{prefix}/embeddings", "embeddings"),
    )


def is_below(request: Request) -> bool:
    """Whether a request is below one of Friendli's base paths."""
    return request.path.startswith(_BELOW)


def addressed(call: Call, request: Request) -> Call:
    """The call with Friendli's naming: the model ``endpoint:adapter`` is the endpoint's deployment of that name.

    The team header replaces an absent user.
    """
    call = replace(call, user=call.user or request.headers.get("x-friendli-team"))
    if call.model is None or ":" not in call.model:
        return call
    endpoint, _, adapter = call.model.partition(":")
    return replace(call, model=endpoint, deployment=adapter)


def is_openais_sdk(headers: Mapping[str, str]) -> bool:
    """Whether the client is the OpenAI SDK, or is built on it."""
    return "x-stainless-lang" in headers or headers.get("user-agent", "").startswith(_OPENAI_SDKS)


def is_own_url(model: object, path: str) -> bool:
    """Whether `model` is the base URL of a request to `path`, under any host: `path` begins with the URL's.

    Hugging Face's JavaScript client sends it where it knows no model's name.
    """
    if not isinstance(model, str) or not model.startswith(("http://", "https://")):
        return False
    try:
        base = urlsplit(model).path.rstrip("/")
    except ValueError:
        return False
    return f"{path}/".startswith(f"{base}/")
