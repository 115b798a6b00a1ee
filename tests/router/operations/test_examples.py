"""Every example of the OpenAPI document is a valid request, at every path that has it, and names what is there."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse

from app.access.keys import append, create
from tests.router.conftest import Rig

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
            named = {"endpoint": "chat", "name": "chat", "deployment": "blue"}
            if example.get("model") == "embed" or path.endswith("/embeddings"):
                named = {"endpoint": "embed", "name": "embed", "deployment": "mini"}
            answer = httpx.request(method, url + path.format(**named), params=queries, json=example, timeout=20)
            if answer.status_code >= 400 and answer.status_code not in ENGINES:
                failed.append((path, answer.status_code, answer.text[:200]))
    assert failed == [], "\n".join(map(str, failed))
    assert sent > 40


def named(url: str, key: str = "") -> set[str]:
    """What the examples have as a model."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    paths = httpx.get(f"{url}/openapi.json", headers=headers).raise_for_status().json()["paths"]
    bodies = [operation.get("requestBody", {}) for methods in paths.values() for operation in methods.values()]
    examples = [body.get("content", {}).get("application/json", {}).get("example", {}) for body in bodies]
    return {example["model"] for example in examples if "model" in example}


def test_examples_name_the_endpoints_that_the_reader_may_use_and_no_other(rig: Rig, url: str, tmp_path: Path) -> None:
    assert named(url) == {"chat", "embed", "ranks"}
    key, record = create("team", endpoints=("embed",))
    append(tmp_path / "keys.yaml", record.line)
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml")})
    open_ = {f"<an endpoint for {task}>" for task in ("chat", "embeddings", "rerank")}
    assert named(url) == named(url, "sk-nonsense") == open_
    assert named(url, key) == open_ - {"<an endpoint for embeddings>"} | {"embed"}
