"""Requests that no route serves: the dialect that words the error, and what a vendor has that this server does not.

The groups are those of the vendors' clients, by the part of the path behind the API's base;
`docs/reference/clients.md` lists every method of those clients.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from app.dialects.base import Dialect, Request, Route
from app.dialects.registry import DIALECTS
from app.errors import MethodNotAllowed, NotFound, SwitchyardError, UnsupportedRoute, taken


class _Missing(NamedTuple):
    what: str
    instead: str


_OWN_AGENTS = _Missing("agents of its own", "a client that runs the agent, with functions as tools")
_ADMINISTRATION = _Missing("administration by API", "the configuration's `access`, and `GET /api/callers`")
_OTHER_MEDIA = "another server: this one has chat, completions, embeddings and reranking"
_FILES = _Missing("files", "the content itself in the request: text, or images as data: URLs")
_CLASSIFICATION = _Missing(
    "such route here",
    "`POST /classify`, with a classification model, or a chat whose `structured_outputs` has a `choice`",
)

_OPENAI: Mapping[str, _Missing] = {
    "agents|vaults|chatkit": _OWN_AGENTS,
    "api/(?:blobs|chat|copy|create|delete|embed|embeddings|generate|ps|pull|push|show|tags|version)": _Missing(
        "API of Ollama", "`POST /v1/chat/completions`, `/v1/completions` or `/v1/embeddings`, and `GET /v1/models`"
    ),
    "assistants|threads": _Missing("assistants", "`POST /v1/responses`"),
    "audio": _Missing("audio", _OTHER_MEDIA),
    "batches|chat/completions/batch": _Missing("batches", "one request for each: engines batch them anyway"),
    "(?:chat/completions|completions|messages)/(?:render|derender)": _Missing(
        "rendering of prompts", "`POST /tokenize` with `prompt` or `messages`"
    ),
    "chat/completions": _Missing("stored chat completions", "the answer when it comes: `store` changes nothing"),
    r"(?:(?:cohere/)?v\d/)?chat(?!/)": _Missing("chats in Cohere's form", "`POST /v1/chat/completions`"),
    "classify|predict": _CLASSIFICATION,
    "containers": _Missing("containers", "functions, which the client runs"),
    "conversations": _Missing("conversations", "`input`, with all items of the conversation"),
    "decisions|safety|content_provenance_checks": _Missing("records of safety", "`content_filter` of an endpoint"),
    "deployments": _Missing("list of this form", "`GET /openai/models`"),
    "decode|detokenize": _Missing("such route here", "`POST /detokenize`"),
    "embed|embed_all|pooling|feature-extraction": _Missing(
        "such route here",
        "`POST /v1/embeddings`, `POST /pooling`, `POST /embed`, `POST /embed_all` or `POST /v2/embed`",
    ),
    "embed_sparse": _Missing("sparse vectors: vLLM makes none", "`POST /embed`, or `POST /rerank` to rank texts"),
    "fim/completions": _Missing(
        "completion of text before a suffix",
        "`POST /v1/completions` with the model's own tokens for it",
    ),
    "evals": _Missing("evaluations", "experiments (`GET /api/experiments`)"),
    "files|uploads": _FILES,
    "fine_tuning|fine-tunes": _Missing("fine-tuning", "a tuned model, or its LoRA adapter, as a deployment"),
    "sleep|wake_up|is_sleeping|pause|resume|is_paused|reset_(?:prefix|mm|encoder)_cache|(?:start|stop)_profile|collective_rpc"
    "|scale_elastic_ep|is_scaling_elastic_ep|abort_requests": _Missing(
        "control of its engines by API", "the engine's own port, where its operators have enabled that"
    ),
    "generative_scoring|inference/v1/generate": _Missing("such route here", "`POST /v1/completions` with `logprobs`"),
    "images": _Missing("images", _OTHER_MEDIA),
    "load": _Missing("such route here", "`GET /load`"),
    "load_lora_adapter|unload_lora_adapter": _Missing(
        "loading of adapters", "the configuration, with a deployment for each adapter"
    ),
    "models": _Missing("changes of models by API", "the configuration, which lists the deployments"),
    "moderations": _Missing("moderations", "`content_filter` of an endpoint"),
    "organization|projects|team": _ADMINISTRATION,
    "realtime|live": _Missing("realtime sessions", "`stream` in `POST /v1/responses` or `POST /v1/chat/completions`"),
    "responses/compact": _Missing("compaction", "an `input` with fewer items"),
    "responses": _Missing("stored responses", "`input`, with all items of the conversation"),
    "server_info": _Missing("settings of its engines by API", "the configuration, `GET /version` and `GET /v1/models`"),
    "similarity": _Missing("such route here", "`POST /similarity`"),
    "skills": _Missing("skills", "`instructions`, or a system message"),
    "tokenizer_info|version": _Missing("such route here", "`GET /tokenizer_info` or `GET /version`"),
    "vector_stores": _Missing("vector stores", "`POST /v1/embeddings`, `POST /v1/rerank` and a store of your own"),
    "videos": _Missing("videos", _OTHER_MEDIA),
    "webhooks|webhook_endpoints|webhook_event_types": _Missing("webhooks", "the answers of the requests"),
}
"""What OpenAI's, vLLM's, TEI's, Cohere's and Ollama's servers have: each key is an expression for the beginning of the
path behind the base. Other dialects have the same paths for the same things."""

_ANTHROPIC: Mapping[str, _Missing] = {
    "agents|deployments|deployment_runs|dreams|environments|memory_stores|sessions|tunnels|user_profiles|vaults": (
        _OWN_AGENTS
    ),
    "complete": _Missing("text completions", "`POST /v1/messages`"),
    "files": _FILES,
    "messages/batches": _Missing("message batches", "`POST /v1/messages` for each: engines batch them anyway"),
    "organizations": _ADMINISTRATION,
    "skills": _Missing("skills", "`system`"),
}

_DATABRICKS: Mapping[str, _Missing] = {
    "anthropic|openai|gemini|cohere": _Missing(
        "path for this vendor's API", "`/ai-gateway/mlflow/v1`, or the vendor's own paths, as `/v1/messages`"
    ),
    r"api/[\d.]+": _Missing("such API of Databricks", "`/api/2.0/serving-endpoints`"),
    "external-function": _Missing("external functions", "functions, which the client runs"),
    "mlflow/v1/models|models": _Missing("list of models here", "`GET /api/2.0/serving-endpoints` or `GET /v1/models`"),
}

_AZURE: Mapping[str, _Missing] = {
    "score|swagger.json": _Missing("scoring route here", "`POST /endpoints/{endpoint}/score`"),
}

_FRIENDLI: Mapping[str, _Missing] = {
    "dataset|datasets|file|endpoint|endpoints|model": _Missing("such resources", "the configuration"),
    "tools": _Missing("tools that it runs itself", "functions, which the client runs"),
}

_OWN: Mapping[str, Mapping[str, _Missing]] = {
    "anthropic": _ANTHROPIC,
    "azure": _AZURE,
    "databricks": _DATABRICKS,
    "friendli": _FRIENDLI,
}
"""What only the clients of one dialect ask for; it comes before OpenAI's."""

_BASES: Sequence[tuple[str, str]] = (
    (r"(?:/serverless|/dedicated)?/v1(?=/messages/)", "anthropic"),
    (r"/openai/deployments/[^/]+(?=/)", "openai"),
    (r"/openai(?:/v1)?", "openai"),
    (r"/anthropic(?:/v1)?", "anthropic"),
    (r"/serving-endpoints", "databricks"),
    (r"/ai-gateway(?:/mlflow/v1(?=/(?!models)))?", "databricks"),
    (r"(?=/api/[12]\.\d)", "databricks"),
    (r"/(?:serverless|dedicated|container)(?:/(?:v\d|beta))?", "friendli"),
    (r"/tgi(?:/v1|/[^/]+(?:/v1)?(?=/))?", "tgi"),
    (r"/azure|/models|/endpoints/[^/]+", "azure"),
    (r"(?=/v2/chat)", "openai"),  # Cohere's; its other routes are served
    (r"(?:/v\d)?", "openai"),
)
"""Expressions for the bases of the APIs' paths, the first that matches counts, and whose dialect has them."""

_BY_NAME: Mapping[str, Dialect] = {dialect.name: dialect for dialect in DIALECTS}


def no_websockets() -> UnsupportedRoute:
    """The error for a WebSocket's handshake; its text fits into the frame that closes a connection."""
    return UnsupportedRoute("WebSockets", "HTTP, with `stream` for answers in parts")


def refusal(request: Request, allowed: Sequence[str] = ()) -> tuple[Dialect, SwitchyardError]:
    """The error for a request that no route serves, and the dialect to word it. `allowed`: the methods that are served
    at its path, which every error about a known path begins with."""
    base, name = _base(request)
    dialect = _of_route(request) or _BY_NAME[name]
    rest = request.path[len(base) :].strip("/")
    methods = taken(request.path, allowed, request.method) if allowed else ""
    if base.endswith("/v1") and re.match(r"v1(?:/|$)", rest):
        return dialect, UnsupportedRoute(
            "path with two versions", "a base URL without `/v1`: the client adds it", methods
        )
    for expression, missing in _expressions(dialect.name):
        if expression.match(rest):
            return dialect, UnsupportedRoute(missing.what, missing.instead, methods)
    if allowed:
        return dialect, MethodNotAllowed(methods, allowed=allowed)
    return dialect, NotFound(f"No route for {request.method} {request.path}")


def of_other_methods(error: SwitchyardError, request: Request) -> MethodNotAllowed | None:
    """The error for a request that names what there is not, if its path is that of a route with another method: to
    `GET /tgi/{endpoint}`, the path `/tgi/generate` names an endpoint."""
    if not isinstance(error, NotFound):
        return None
    paths = {route.path for _, route, pattern in _patterns() if pattern.match(request.path)}
    closest = min(paths, key=lambda path: path.count("{"), default="")
    allowed = sorted({route.method for _, route, _ in _patterns() if route.path == closest})
    if not allowed or request.method in allowed:
        return None
    return MethodNotAllowed(taken(request.path, allowed, request.method), allowed=allowed)


@cache
def _expressions(name: str) -> Sequence[tuple[re.Pattern[str], _Missing]]:
    groups = (*_OWN.get(name, {}).items(), *_OPENAI.items())
    return [(re.compile(f"(?:{start})(?:/|$)"), missing) for start, missing in groups]


def _base(request: Request) -> tuple[str, str]:
    """The base of the request's path, and the name of the dialect that words its errors."""
    matches = ((re.match(f"(?:{expression})(?=/|$)", request.path), name) for expression, name in _BASES)
    base, name = next(((match[0], name) for match, name in matches if match), ("", "openai"))  # none: `OPTIONS *`
    if name in ("openai", "friendli") and "anthropic-version" in request.headers:
        return base, "anthropic"
    is_openais_sdk = "x-stainless-lang" in request.headers
    if name == "azure" and is_openais_sdk:
        return base, "openai"
    if name == "openai" and not base and "api-version" in request.query and not is_openais_sdk:
        return base, "azure"
    return base, name


def _of_route(request: Request) -> Dialect | None:
    """The dialect that serves other methods at the path."""
    for dialect, route, pattern in _patterns():
        if pattern.match(request.path) and dialect.claims(route, request):
            return dialect
    return None


@cache
def _patterns() -> Sequence[tuple[Dialect, Route, re.Pattern[str]]]:
    routes = ((dialect, route) for dialect in DIALECTS for route in dialect.routes)
    return [(dialect, route, re.compile(f"{path_pattern(route.path)}$")) for dialect, route in routes]


def path_pattern(path: str) -> str:
    """The expression for a route's path, in which a parameter is one part, or the rest (``{name:path}``)."""
    parts = (
        ".+" if part.endswith(":path}") else "[^/]+" if part[:1] == "{" else re.escape(part)
        for part in _PARTS.split(path)
    )
    return "".join(parts)


_PARTS = re.compile(r"(\{[^}]+\})")
