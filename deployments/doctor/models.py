"""Checks the weights that the configuration names."""

import json
from collections.abc import Iterator
from pathlib import Path

from app.config.adapters import adapters_of
from app.internal_api import MODELS_VARIABLE, PACKAGE_PREFIX
from deployments.doctor.finding import Finding, ok, problem, warning
from deployments.doctor.installation import Installation
from deployments.invocation import command
from deployments.kubernetes.generated import MODELS
from deployments.local.directories import models_directory
from deployments.weights.cache import is_prepared, source_of
from deployments.weights.errors import WeightsError
from deployments.weights.sources import model_sources

MAX_LORA_RANK = 16
"""vLLM's default of `max_lora_rank`."""

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM accepts for it."""


def weights(it: Installation) -> Iterator[Finding]:
    """Checks that each model is present, or can be prepared. On a cluster only the engines' pods mount the weights."""
    cache = Path(it.environment.get(MODELS_VARIABLE) or models_directory())
    sources = list(dict.fromkeys(model_sources(it.applications)))
    if it.on_cluster and not cache.exists() and any(_on_volume(source, cache) for source in sources):
        fix = "run the command in a pod with engines, too"
        yield warning("weights", f"{cache} is not mounted on this node: the weights in it are not checked", fix)
        sources = [source for source in sources if not _on_volume(source, cache)]
    for source in sources:
        if source.startswith(PACKAGE_PREFIX):
            yield _packaged(source.removeprefix(PACKAGE_PREFIX), cache, it)
        elif _is_path(source):
            yield _local(Path(source))
        elif "://" not in source:
            yield from _from_hub(source, it)
    yield from _adapters(it, cache)


def _adapters(it: Installation, cache: Path) -> Iterator[Finding]:
    for application in it.applications:
        config = (application.get("args") or {}).get("llm_config") or {}
        rank = (config.get("engine_kwargs") or {}).get("max_lora_rank") or MAX_LORA_RANK
        for adapter in adapters_of(config):
            if it.on_cluster and not cache.exists() and _on_volume(adapter.path, cache):
                continue
            if _is_path(adapter.path):
                yield _adapter(adapter.name, Path(adapter.path), rank)
            else:
                yield from _from_hub(adapter.path, it)


def _on_volume(source: str, cache: Path) -> bool:
    return source.startswith(PACKAGE_PREFIX) or Path(source).is_relative_to(cache)


def _is_path(source: str) -> bool:
    return source.startswith(("/", "./", "../"))


def _from_hub(source: str, it: Installation) -> Iterator[Finding]:
    if it.environment.get("HF_HUB_OFFLINE") == "1":
        fix = f"name {MODELS}/{source}, which a Job fetches" if it.on_cluster else "unset it, or name a local path"
        yield problem("weights", f"{source} comes from a model hub, and HF_HUB_OFFLINE is 1", fix)


def _packaged(name: str, cache: Path, it: Installation) -> Finding:
    try:
        if is_prepared(name, cache):
            return ok("weights", f"{name} is prepared in {cache}")
        if it.on_cluster:
            fix = "read the log of the Job that fetches it: kubectl logs job/switchyard-weights"
            return problem("weights", f"{name} is not prepared in {cache}", fix)
        source_of(name)
    except WeightsError as error:
        message, _, fix = str(error).partition(". Run: ")
        return problem("weights", message, f"run: {fix}" if fix else "correct `model_source`")
    fix = f"`{command('serve')}` prepares it, or now: {command('weights')}"
    if (cache / name).exists():
        return warning("weights", f"{name} in {cache} is damaged, or of another version", fix)
    return warning("weights", f"{name} is not prepared yet", fix)


def _local(path: Path) -> Finding:
    if not (path / "config.json").is_file():
        fix = "mount the volume with the weights, or correct `model_source`"
        return problem("weights", f"{path} has no config.json: it is not a model", fix)
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
        return problem("weights", f"{path} has no weights (*.safetensors)", "download the model again")
    return ok("weights", f"{path} exists")


def _adapter(name: str, path: Path, largest: int) -> Finding:
    about = f"the adapter {name} in {path}"
    try:
        rank = json.loads((path / "adapter_config.json").read_text())["r"]
    except (OSError, ValueError, KeyError, TypeError):
        fix = "mount the volume with the adapters, or correct `lora_modules`"
        return problem("weights", f"{about} has no adapter_config.json with a rank", fix)
    if not any((path / f"adapter_model.{kind}").is_file() for kind in ("safetensors", "bin")):
        return problem("weights", f"{about} has no adapter_model.safetensors", "download the adapter again")
    if isinstance(rank, int) and rank > largest:
        enough = next((it for it in MAX_LORA_RANKS if it >= rank), MAX_LORA_RANKS[-1])
        fix = f"set `max_lora_rank: {enough}` in engine_kwargs"
        return problem("weights", f"{about} has rank {rank}; the engine accepts up to {largest}", fix)
    return ok("weights", f"{about} exists")
