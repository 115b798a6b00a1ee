"""Models of a hub, on a hub that runs here. Each case is its own process: huggingface_hub reads its settings once."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from tests.support.engine.fake_hub import OWNER, hub
from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port, serve

SCRIPT = """
import json, sys
from deployments.weights import hub
from deployments.weights.errors import WeightsError
function, *arguments = json.loads(sys.argv[1])
try:
    found = getattr(hub, function)(*arguments)
    print(json.dumps(sorted(file.name for file in found.iterdir()) if found is not None else None))
except WeightsError as error:
    print(error)
"""

FILES = ("config.json", "model.safetensors", "pytorch_model.bin", "model.onnx", "consolidated.safetensors", "t.model")


async def refusal(request: Request) -> Response:
    """Repositories that are gated, absent, or on a hub that fails."""
    name = request.path_params["name"]
    codes = {"gated": (403, "GatedRepo"), "absent": (401, "RepoNotFound"), "broken": (500, "")}
    status, code = codes[name]
    return JSONResponse({"error": code}, status, headers={"x-error-code": code} if code else {})


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = tmp_path_factory.mktemp("models")
    (models / "mine").mkdir()
    for file in FILES:
        (models / "mine" / file).write_text("{}")
    refused = [Route("/api/models/other/{name}/{rest:path}", refusal), Route("/other/{name}/{rest:path}", refusal)]
    with serve(Starlette(routes=[*refused, Mount("/", hub(models))])) as url:
        yield url


def ask(home: Path, endpoint: str, function: str, *arguments: Any, **environment: str) -> Any:
    """What a function of the module returns (the names in the folder), or its error."""
    variables = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([function, *arguments])],
        cwd=ROOT,
        env={**{name: value for name, value in os.environ.items() if not name.startswith("HF_")}, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        return done.stdout.strip()


def test_what_vllm_loads_is_fetched_and_then_found_without_a_hub(there: str, tmp_path: Path) -> None:
    mine = f"{OWNER}/mine"
    assert ask(tmp_path, there, "cached_config_folder", mine) is None
    assert ask(tmp_path, there, "config_folder", mine) == ["config.json"]
    assert ask(tmp_path, there, "cached_config_folder", mine) == ["config.json"]
    assert ask(tmp_path, there, "config_folder", mine, "adapter_config.json") is None
    loaded = ["config.json", "model.safetensors", "t.model"]
    assert ask(tmp_path, there, "fetch", mine, {}) == loaded
    assert ask(tmp_path, there, "fetch", mine, {"load_format": "dummy"}) is None
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert ask(tmp_path, nowhere, "fetch", mine, {}) == loaded
    assert ask(tmp_path, there, "fetch", mine, {}, HF_HUB_OFFLINE="1") == loaded


@pytest.mark.parametrize(
    ("source", "environment", "said"),
    [
        ("other/gated", {}, "The model other/gated is gated, and HF_TOKEN is not set. Accept its conditions at http*"),
        ("other/gated", {"HF_TOKEN": "hf_x"}, "The model other/gated is gated, and HF_TOKEN is of an account without*"),
        ("other/absent", {}, "The hub has no model other/absent, or it is private. Correct its name; *HF_TOKEN*"),
        ("other/broken", {}, "The hub http* answers 500 for other/broken. Try again later"),
        ("a/b/c", {}, "'a/b/c' is neither a folder nor a hub's id. Name a folder, a hub's id (`owner/name`), or *"),
        (
            "other/gated",
            {"HF_HUB_OFFLINE": "1"},
            "The model other/gated is not in the cache *, and HF_HUB_OFFLINE is set. Unset it; or copy the model *",
        ),
        (
            "other/gated",
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            "The model other/gated is not in the cache *, and the hub http://127.0.0.1:9 cannot be reached (*). *",
        ),
    ],
)
@pytest.mark.parametrize(("function", "more"), [("config_folder", []), ("fetch", [{}])])
def test_an_error_says_what_to_do(
    function: str, more: list[Any], source: str, environment: dict[str, str], said: str, there: str, tmp_path: Path
) -> None:
    printed = ask(tmp_path, there, function, source, *more, **environment)
    parts = said.split("*")
    assert printed.startswith(parts[0])
    assert all(part in printed for part in parts)
