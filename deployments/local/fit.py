"""What a valid configuration asks for that this machine does not have, known before anything starts."""

from collections.abc import Iterator, Mapping
from typing import Any

from app.access.keys import KeyFile
from app.config.base import ConfigError, nearest
from app.config.schema import Config
from app.internal_api import PACKAGE_PREFIX
from deployments.kubernetes.demands import demands
from deployments.weights.recipes import RECIPES
from deployments.weights.sources import model_sources

LOGICAL_CPUS = 16
"""Ray's bookkeeping, not cores: replicas that wait for tokens share the machine."""

_KNOWN = ", ".join(RECIPES)


def unknown_packages(document: Mapping[str, Any]) -> Iterator[str]:
    """Models of `package:` that no recipe makes, here or elsewhere. `document`: a valid configuration."""
    for application in document.get("applications") or []:
        for source in model_sources([application]):
            name = source.removeprefix(PACKAGE_PREFIX)
            if name != source and name not in RECIPES:
                where = f"applications.{application['name']}.args.llm_config.model_loading_config.model_source"
                yield f"{where}: no package has the model '{name}'{nearest(name, RECIPES) or f'; known: {_KNOWN}'}"


def misfits(document: Mapping[str, Any], config: Config) -> Iterator[str]:
    """Reasons why `document`, whose router has `config`, cannot run on this machine as it is."""
    if (file := config.access.keys_file) is not None:
        try:
            KeyFile(file)
        except ConfigError as error:
            yield f"access.keys_file: {error.problems[0]}"
    if "applications" not in document:  # a router without Ray
        return
    wanted = {
        demand.name: demand.min_replicas * sum(part.get("CPU", 0) for part in demand.bundles)
        for demand in demands(document)
    }
    if sum(wanted.values()) > LOGICAL_CPUS:
        largest = max(wanted, key=lambda name: wanted[name])
        yield (
            f"num_cpus: the applications reserve {sum(wanted.values()):g} CPUs, {largest} {wanted[largest]:g} of them, "
            f"and a local run has {LOGICAL_CPUS}, which are no cores but Ray's bookkeeping; lower them"
        )
