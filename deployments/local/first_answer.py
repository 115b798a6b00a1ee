"""Announces the first endpoint that can answer, while others still load."""

import http.client
import json
import shlex
from collections.abc import Mapping
from typing import Any

from app.config.schema import Config, Task
from deployments.local.ports import HOST

_REQUESTS: Mapping[Task, tuple[str, Mapping[str, object]]] = {
    "chat": ("chat/completions", {"messages": [{"role": "user", "content": "Name the capital of France."}]}),
    "completions": ("completions", {"prompt": "The capital of France is", "max_tokens": 20}),
    "responses": ("responses", {"input": "Name the capital of France."}),
    "embeddings": ("embeddings", {"input": "a first sentence"}),
    "rerank": ("rerank", {"query": "a color", "documents": ["blue", "seven"]}),
    "classify": ("classify", {"input": "a first sentence"}),
}
"""Task to its path below /v1 and a body without the model."""


def readiness(port: int) -> Mapping[str, Any]:
    """What the router on `port` answers at `/ready`; empty while it does not answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/ready")
        found = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return found if isinstance(found, dict) else {}


def ready_endpoints(port: int) -> list[str]:
    """The endpoints that the router on `port` reports as ready; empty while the router does not answer."""
    found = readiness(port).get("endpoints")
    return [name for name, ready in found.items() if ready] if isinstance(found, dict) else []


def announcement(endpoint: str, config: Config, port: int) -> str:
    """The announcement of an endpoint: its URL, and a request to paste."""
    path, body = _REQUESTS[config.endpoints[endpoint].tasks[0]]
    url = f"http://{HOST}:{port}/v1"
    asks_for_key = config.access.knows_callers and not config.access.allow_anonymous
    key = ' -H "Authorization: Bearer $KEY"' if asks_for_key else ""
    text = shlex.quote(json.dumps({"model": endpoint, **body}))
    request = f"curl {url}/{path}{key} -H 'content-type: application/json' -d {text}"
    return f"The endpoint '{endpoint}' answers already, at {url}:\n  {request}"
