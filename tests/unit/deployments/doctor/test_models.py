"""Adapters that are missing, damaged, or too large for their engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.doctor.finding import Finding, Level
from deployments.doctor.service_checks import weights
from tests.support.processes.installations import default, engine, installation


def adapter(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, **config}))
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


def finding(path: Path | str, environment: dict[str, str] | None = None, **kwargs: Any) -> Finding:
    """The finding for an engine's only adapter."""
    document = default()
    modules = [{"name": "french", "path": str(path)}]
    engine(document)["engine_kwargs"].update(lora_modules=modules, **kwargs)
    found = weights(installation(document, environment=environment or {}))
    (about,) = [it for it in found if str(path) in it.message]
    return about


def test_an_adapter_that_exists_passes(tmp_path: Path) -> None:
    assert finding(adapter(tmp_path / "french")).level is Level.OK
    assert finding(adapter(tmp_path / "large", r=32), max_lora_rank=64).level is Level.OK


@pytest.mark.parametrize(
    ("damage", "said", "fix"),
    [
        (lambda it: (it / "adapter_config.json").unlink(), "has no adapter_config.json", "mount the volume"),
        (lambda it: (it / "adapter_config.json").write_text("{}"), "with a rank", "mount the volume"),
        (lambda it: (it / "adapter_model.safetensors").unlink(), "has no adapter_model", "download the adapter again"),
        (
            lambda it: (it / "adapter_config.json").write_text('{"r": 24}'),
            "has rank 24; the engine accepts up to 16",
            "set `max_lora_rank: 32`",
        ),
    ],
)
def test_a_damaged_adapter_is_a_problem_with_its_fix(tmp_path: Path, damage: Any, said: str, fix: str) -> None:
    damage(adapter(tmp_path / "french"))
    found = finding(tmp_path / "french")
    assert (found.level, said in found.message, fix in found.fix) == (Level.PROBLEM, True, True), found


def test_an_adapter_of_a_hub_needs_the_hub() -> None:
    offline = finding("acme/french", {"HF_HUB_OFFLINE": "1"})
    assert (offline.level, "model hub" in offline.message) == (Level.PROBLEM, True)
