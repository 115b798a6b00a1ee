"""Routes that only a vendor's server has are refused in the dialect's form, and name what to use."""

import json
import re
from itertools import product
from typing import Any

import pytest

from app.dialects.base import Request
from app.dialects.unserved import no_websockets, refusal
from app.errors import UnsupportedRoute

OPENAI = [
    "files",
    "files/f/content",
    "uploads/u/parts",
    "batches/b/cancel",
    "images/generations",
    "moderations",
    "vector_stores/v/search",
    "conversations/c/items",
    "fine_tuning/jobs",
    "assistants",
    "threads/runs",
    "realtime/client_secrets",
    "responses/compact",
    "responses/r/input_items",
    "chat/completions",
    "chat/completions/c/messages",
    "audio/speech",
    "containers",
    "evals/e/runs",
    "videos",
    "skills",
    "organization/users",
    "webhook_endpoints",
    "classify",
    "embed",
    "decode",
]
BASES = {
    "openai": ["/v1", "/openai/v1", "/openai", "/openai/deployments/chat"],
    "azure": ["/azure", "/models", "/endpoints/chat"],
    "databricks": ["/serving-endpoints", "/ai-gateway/mlflow/v1"],
    "friendli": ["/serverless/v1", "/dedicated/v1"],
    "tgi": ["/tgi/v1", "/tgi/chat/v1"],
}
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    *(
        ("anthropic", f"{base}/v1/{path}", {"headers": {"anthropic-version": "2023-06-01"}})
        for base in ("", "/anthropic", "/serverless")
        for path in ("messages/batches", "messages/batches/b/results", "files", "skills/s", "agents", "complete")
    ),
    ("anthropic", "/v1/messages/batches", {}),
    ("anthropic", "/anthropic/v1/organizations/users", {}),
    ("databricks", "/serving-endpoints/anthropic/v1/messages", {}),
    ("databricks", "/ai-gateway/gemini/v1beta/models", {}),
    ("databricks", "/ai-gateway/mlflow/v1/models", {}),
    ("databricks", "/api/2.1/clusters/list", {}),
    ("azure", "/azure/score", {}),
    ("azure", "/images/generations", {"query": {"api-version": "2024-05-01-preview"}}),
    ("openai", "/openai/deployments", {"query": {"api-version": "2024-10-21"}}),
    ("openai", "/models/files", {"headers": {"x-stainless-lang": "python"}}),
    ("openai", "/v2/classify", {}),
    *(("openai", path, {}) for path in ("/v1/chat", "/v2/chat", "/cohere/v2/chat")),
    *(("openai", f"/api/{path}", {}) for path in ("chat", "generate", "tags", "show", "embed", "version", "blobs/b")),
    *(("openai", f"/{path}", {}) for path in ("sleep", "wake_up", "is_sleeping", "reset_prefix_cache", "stop_profile")),
    ("openai", "/v1/completions/render", {}),
    ("anthropic", "/v1/messages/render", {}),
    ("openai", "/inference/v1/generate", {}),
    ("openai", "/embed_sparse", {}),
    ("openai", "/server_info", {}),
    ("openai", "/v1/similarity", {}),
    ("openai", "/v1/fim/completions", {}),
    ("openai", "/v1/v1/chat/completions", {}),
    ("openai", "/openai/v1/v1/models", {}),
    ("anthropic", "/anthropic/v1/v1/messages", {}),
    ("friendli", "/serverless/v1/v1/chat/completions", {}),
    ("openai", "/v1/tokenizer_info", {}),
    ("friendli", "/serverless/tools/v1/chat/completions", {}),
    ("friendli", "/dedicated/beta/endpoint", {}),
]
QUERIES: dict[str, Any] = {"azure": {"query": {"api-version": "2024-05-01-preview"}}}
ROUTES = [
    (dialect, f"{base}/{path}", QUERIES.get(dialect, {}))
    for dialect, bases in BASES.items()
    for base in bases
    for path in OPENAI
    if (dialect, path) != ("friendli", "responses/compact")  # Friendli's responses are OpenAI's
]


@pytest.mark.parametrize(("name", "path", "fields"), [*ROUTES, *OTHERS])
def test_a_vendors_route_is_refused_in_its_form_with_what_to_use(name: str, path: str, fields: dict[str, Any]) -> None:
    for method, allowed in product(["GET", "POST", "DELETE"], [[], ["PATCH"]]):
        request = Request(method, path, id="r-1", **fields)
        dialect, error = refusal(request, allowed)
        assert isinstance(error, UnsupportedRoute), error.message
        assert dialect.name == name
        first = f"{path} takes PATCH, not {method}. " if allowed else ""
        assert re.fullmatch(re.escape(first) + r"This server has no .*; use .*", error.message)
        reply = dialect.render_error(error, "none", request)
        body = json.loads(reply.body)
        assert reply.status == 404
        told = body["error"] if name in ("openai", "anthropic", "friendli") else body
        assert error.message in told.values()
        if name not in ("anthropic", "tgi"):  # whose errors have no code
            assert told.get("code", told.get("error_code")) in ("unsupported_route", "FEATURE_DISABLED")


@pytest.mark.parametrize(
    ("method", "path", "name", "status"),
    [
        ("GET", "/nothing", "openai", 404),
        ("GET", "/v1/nothing", "openai", 404),
        ("GET", "/v1/embeddings", "openai", 405),
        ("GET", "/anthropic/v1/messages", "anthropic", 405),
        ("GET", "/v1/messages", "anthropic", 405),
        ("GET", "/generate", "tgi", 405),
        ("GET", "/tgi/chat/generate", "tgi", 405),
        ("GET", "/azure/embeddings", "azure", 405),
        ("GET", "/serving-endpoints/chat/invocations", "databricks", 405),
        ("GET", "/serverless/v1/tokenize", "friendli", 405),
        ("GET", "/filesystem", "openai", 404),
        ("GET", "/v1/chat/nothing", "openai", 404),
        ("GET", "/api/nothing", "openai", 404),
    ],
)
def test_other_paths_and_methods_are_no_vendors_features(method: str, path: str, name: str, status: int) -> None:
    dialect, error = refusal(Request(method, path), ["POST"] if status == 405 else [])
    assert (dialect.name, error.status, error.code) == (name, status, None)
    assert path in error.message


def test_the_text_for_websockets_fits_into_a_close_frame() -> None:
    assert len(no_websockets().message.encode()) <= 123
