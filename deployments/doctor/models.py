"""The weights that the configuration names."""

from collections.abc import Iterator
from pathlib import Path

from app.internal_api import MODELS_VARIABLE, PACKAGE_PREFIX
from deployments.doctor.finding import Finding, ok, problem, warning
from deployments.doctor.installation import Installation
from deployments.local.directories import models_directory
from deployments.weights.cache import is_prepared, source_of
from deployments.weights.errors import WeightsError
from deployments.weights.sources import model_sources


def weights(it: Installation) -> Iterator[Finding]:
    """Each is there, or can be prepared."""
    cache = Path(it.environment.get(MODELS_VARIABLE) or models_directory())
    for source in dict.fromkeys(model_sources(it.applications)):
        if source.startswith(PACKAGE_PREFIX):
            yield _packaged(source.removeprefix(PACKAGE_PREFIX), cache)
        elif source.startswith(("/", "./", "../")):
            yield _local(Path(source))
        elif it.environment.get("HF_HUB_OFFLINE") == "1" and "://" not in source:
            fix = "unset HF_HUB_OFFLINE, or name a local path"
            yield problem("weights", f"{source} comes from a model hub, and HF_HUB_OFFLINE is 1", fix)


def _packaged(name: str, cache: Path) -> Finding:
    try:
        if is_prepared(name, cache):
            return ok("weights", f"{name} is prepared in {cache}")
        source_of(name)
    except WeightsError as error:
        message, _, fix = str(error).partition(". Run: ")
        return problem("weights", message, f"run: {fix}" if fix else "correct `model_source`")
    fix = "`switchyard serve` prepares it, or now: switchyard weights"
    if (cache / name).exists():
        return warning("weights", f"{name} in {cache} is damaged, or of another version", fix)
    return warning("weights", f"{name} is not prepared yet", fix)


def _local(path: Path) -> Finding:
    if not (path / "config.json").is_file():
        fix = "mount the volume with the weights, or correct `model_source`"
        return problem("weights", f"{path} has no config.json: it is no model", fix)
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
        return problem("weights", f"{path} has no weights (*.safetensors)", "download the model again")
    return ok("weights", f"{path} is there")
