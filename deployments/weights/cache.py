"""The default models, built from packages: a new machine needs a package index, not a model hub.

    prepare(name, cache)     a folder that vLLM and transformers load; built on the first call
    prepare_tiny(cache)      a tiny model, to measure the serving path alone

A model is a recipe: a file or folder in an installed package, and a function from it to a model folder.
The packages are never imported: their own dependencies are not installed.
A finished folder carries a marker with the recipe's version and the size of every file, written last.
"""

import fcntl
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from app.internal_api import MODELS_VARIABLE
from deployments.invocation import make
from deployments.weights.errors import WeightsError
from deployments.weights.recipes import RECIPES, TINY, Recipe

MARKER = ".recipe.json"


def default_cache() -> Path:
    """The directory of prepared models: $SWITCHYARD_MODELS, or `.models` in the current directory."""
    return Path(os.environ.get(MODELS_VARIABLE) or ".models").absolute()


def _print(message: str) -> None:
    sys.stderr.write(f"{message}\n")


def prepare(
    name: str, cache: Path, recipes: Mapping[str, Recipe] = RECIPES, say: Callable[[str], None] = _print
) -> Path:
    """The folder of model `name` in `cache`, built if it is missing, damaged, or of another version. `say` is told
    before it is built.

    Safe to call from several threads and processes: one builds the folder, the others wait for it.
    Raises WeightsError for an unknown name or a missing package, OSError if the cache cannot be written.
    """
    recipe, folder = _recipe(name, recipes), cache / name
    # Before the lock, so that a prepared cache may be read-only.
    if _is_complete(folder, recipe.version):
        return folder
    source = _find(name, recipe)
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f".{name}.lock"):
        if not _is_complete(folder, recipe.version):
            say(f"Preparing {name}, only this time")
            _build(recipe, source, folder)
    return folder


def is_prepared(name: str, cache: Path, recipes: Mapping[str, Recipe] = RECIPES) -> bool:
    """Whether the model is in `cache`, whole and of the present version. Raises WeightsError for an unknown name."""
    return _is_complete(cache / name, _recipe(name, recipes).version)


def source_of(name: str, recipes: Mapping[str, Recipe] = RECIPES) -> Path:
    """The source from which it is built. Raises WeightsError for an unknown name or a missing package."""
    return _find(name, _recipe(name, recipes))


def prepare_tiny(cache: Path) -> Path:
    """The folder of the benchmarks' model: SmolLM2's tokenizer and 8,192 positions, one random layer."""
    return prepare(TINY, cache)


def _recipe(name: str, recipes: Mapping[str, Recipe]) -> Recipe:
    if name not in recipes:
        raise WeightsError(f"No recipe makes the model {name!r}; known models: {', '.join(recipes)}")
    return recipes[name]


def _find(name: str, recipe: Recipe) -> Path:
    package = recipe.package.replace("_", "-")
    spec = importlib.util.find_spec(recipe.package)
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(
            f"The model {name} comes from the package {package}, which is not installed. Run: {make('setup')}"
        )
    source = Path(next(iter(spec.submodule_search_locations))) / recipe.source
    if not source.exists():
        raise WeightsError(f"The installed package {package} lacks {recipe.source}. Run: {make('setup')}")
    return source


def _build(recipe: Recipe, source: Path, folder: Path) -> None:
    """Builds the folder. Called under the lock: no other process uses the leftovers or is between the two renames."""
    partial, stale = (folder.with_name(f".{folder.name}.{kind}") for kind in ("partial", "stale"))
    for leftover in (partial, stale):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    try:
        recipe.build(source, partial)
        marker = {"version": recipe.version, "files": _sizes(partial)}
        (partial / MARKER).write_text(json.dumps(marker, indent=2) + "\n")
        if folder.exists():
            folder.rename(stale)  # an engine with open files keeps them
        partial.rename(folder)
    finally:
        for leftover in (partial, stale):
            shutil.rmtree(leftover, ignore_errors=True)


def _is_complete(folder: Path, version: int) -> bool:
    try:
        marker = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return bool(marker == {"version": version, "files": _sizes(folder)})


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MARKER)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(files)}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock of one thread; the kernel releases it if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
