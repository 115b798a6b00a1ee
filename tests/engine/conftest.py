"""One real vLLM for these tests: a tiny model and two LoRA adapters, without Ray.

One adapter comes from a directory, the other from a model hub. Like our image, the engine has no C++ compiler.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from deployments.weights.cache import prepare_tiny
from tests.support.engine.fake_hub import OWNER, hub
from tests.support.engine.lora_adapters import write_adapter
from tests.support.engine.model_application import KEY, model_application
from tests.support.processes.project import ROOT
from tests.support.processes.servers import serve

ADAPTERS = ("french", "german")
CONTEXT = 512
"""The number of tokens of a prompt and its answer."""


def llm_config(folder: Path) -> dict[str, Any]:
    model = prepare_tiny(ROOT / ".models")
    for name in ADAPTERS:
        write_adapter(folder / name, model, seed=ord(name[0]))
    modules = [
        {"name": "french-lora", "path": str(folder / "french")},
        {"name": "german-lora", "path": f"{OWNER}/german"},
    ]
    return {
        "model_loading_config": {"model_id": "tiny", "model_source": f"package:{model.name}"},
        "accelerator_config": {"kind": "cpu"},
        "engine_kwargs": {
            "dtype": "float32",
            "max_model_len": CONTEXT,
            "max_num_seqs": 8,
            "enforce_eager": True,
            "max_lora_rank": 8,
            "lora_modules": modules,
        },
    }


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of its model application, which is named `tiny`."""
    folder = tmp_path_factory.mktemp("engine")
    models = folder / "models"
    args = {"llm_config": llm_config(models)}
    with serve(hub(models)) as there:
        hub_here = {"HF_ENDPOINT": there, "HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "0"}
        environment = {**hub_here, "CXX": "no-compiler", "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}
        with model_application("tiny", args, folder / "log", environment) as url:
            yield url


@contextmanager
def routed(engine: str, config: Mapping[str, Any]) -> Iterator[httpx.Client]:
    """A client of a router with this configuration, whose applications are at the URL `engine`."""
    router = Router(RuntimeEnvironment(serve_url=engine, internal_key=KEY))
    router.reconfigure(config)
    with serve(router.app) as url, httpx.Client(base_url=url, timeout=300) as client:
        yield client


@pytest.fixture(scope="session")
def text(engine: str) -> Iterator[httpx.Client]:
    """A client of a router with the engine behind `text`, the default for completions."""
    config = {
        "endpoints": {"text": {"tasks": ["completions"], "traffic": {"base": 100}}},
        "deployments": {"base": {"app": "tiny", "model": "tiny"}},
        "defaults": {"completions": "text"},
    }
    with routed(engine, config) as client:
        yield client
