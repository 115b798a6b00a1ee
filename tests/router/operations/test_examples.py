"""Every example of the OpenAPI document is a valid request, at every path that has it."""

from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse

from tests.router.conftest import Rig

ENDPOINTS = {"chat": "chat", "embeddings": "embed", "rerank": "ranks"}
"""The endpoint that the page puts in place of a task."""

ENGINES = (424, 500, 502)
"""The fake engine answers chats only, and these say that an engine's answer was no completion."""


@pytest.fixture
def url(rig: Rig) -> str:
    ranker = {**rig.config["deployments"]["green"], "tasks": ["rerank"]}
    rig.change(
        deployments={"ranker": ranker},
        endpoints={"ranks": {"tasks": ["rerank"], "traffic": {"ranker": 100}}},
        defaults={"chat": "chat", "completions": "chat"},
    )
    rig.green.answer = lambda body: JSONResponse(
        {
            "id": "r",
            "model": "m",
            "usage": {"prompt_tokens": 4, "total_tokens": 4},
            "results": [
                {"index": index, "document": {"text": text}, "relevance_score": 0.5}
                for index, text in enumerate(body["documents"])
            ],
        }
    )
    return rig.url


def test_no_example_is_refused(rig: Rig, url: str) -> None:
    paths: dict[str, dict[str, Any]] = httpx.get(f"{url}/openapi.json").json()["paths"]
    failed, sent = [], 0
    for path, methods in paths.items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if (example := content.get("example")) is None:
                continue
            sent += 1
            parameters = [one for one in operation["parameters"] if one.get("in") == "query" and "example" in one]
            queries = {one["name"]: one["example"] for one in parameters}
            if "model" in example:
                example = {**example, "model": ENDPOINTS[example["model"]]}
            named = {"endpoint": "chat", "name": "chat", "deployment": "blue"}
            if example.get("model") == "embed" or path.endswith("/embeddings"):
                named = {"endpoint": "embed", "name": "embed", "deployment": "mini"}
            answer = httpx.request(method, url + path.format(**named), params=queries, json=example, timeout=20)
            if answer.status_code >= 400 and answer.status_code not in ENGINES:
                failed.append((path, answer.status_code, answer.text[:200]))
    assert failed == [], "\n".join(map(str, failed))
    assert sent > 40
