"""Imports point in one direction."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.support.processes.project import ROOT

# A module imports from its own layer and those below; packages are connected without cycles.
LAYERS = [
    {
        "app.aio",
        "app.answer_cache",
        "app.errors",
        "app.internal_api",
        "app.internal_keys",
        "app.long_json",
        "app.markdown",
        "app.misspellings",
        "app.moments",
        "app.private_files",
        "app.sse",
        "app.version",
    },
    {"app.config", "app.engine"},
    {
        "app.activity",
        "app.control_plane",
        "app.exposures",
        "app.limits",
        "app.mirror",
        "app.request_recordings",
        "app.routing",
        "app.telemetry",
        "app.upstream",
    },
    {"app.access", "app.dialects", "app.experiments"},
    {"app.exchange"},
    {"app.pages", "app.server"},
    {"deployments"},
]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for folder in ("app", "deployments") for path in sorted((ROOT / folder).rglob("*.py"))}


@cache
def imports(path: Path) -> Sequence[str]:
    return list(_imports(ast.parse(path.read_text())))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(module: str) -> set[str]:
    """The project's modules that `module` imports."""
    return {name for name in imports(MODULES[module]) if name in MODULES and name not in ("app", "deployments")}


def layer(module: str) -> int:
    return next(
        level for level, names in enumerate(LAYERS) if any(module == n or module.startswith(n + ".") for n in names)
    )


def test_imports_point_down() -> None:
    for module in MODULES.keys() - {"app"}:
        assert [name for name in own_imports(module) if layer(name) > layer(module)] == [], module


@pytest.mark.parametrize("depth", [2, 3, 9], ids=["folders", "subfolders", "modules"])
def test_there_are_no_cycles(depth: int) -> None:
    def at(module: str) -> str:
        return ".".join(module.split(".")[:depth])

    graph: dict[str, set[str]] = {}
    for module in MODULES:
        graph.setdefault(at(module), set()).update(at(name) for name in own_imports(module))
    while leaves := {name for name, needed in graph.items() if not (needed & graph.keys()) - {name}}:
        for name in leaves:
            del graph[name]
    assert graph == {}


def test_only_deployments_import_ray_and_vllm() -> None:
    for module, path in MODULES.items():
        roots = {name.partition(".")[0] for name in imports(path)}
        if module.startswith("app"):
            assert not roots & {"ray", "vllm", "deployments"}, module
        if module.startswith("app.dialects"):
            assert not roots & {"starlette", "aiohttp", "asyncio", "logging", "time", "prometheus_client"}, module


def test_only_what_runs_in_the_senders_thread_imports_opentelemetry() -> None:
    importing = {module for module, path in MODULES.items() if "from opentelemetry" in path.read_text()}
    assert importing == {"app.telemetry.otel"}
    theirs = {
        module
        for module, path in MODULES.items()
        if any(f"from {module_of_sender} " in path.read_text() for module_of_sender in importing)
    }
    assert theirs - importing == {"app.telemetry.tracing"}, "which does so in the sender's thread"


DIALECTS = {path.parent.name for path in (ROOT / "app/dialects").glob("*/dialect.py")}


@pytest.mark.parametrize("folder", sorted(DIALECTS | {"common"}))
def test_neither_dialects_nor_what_they_share_import_another_dialect(folder: str) -> None:
    others = DIALECTS - {folder}
    for module in MODULES:
        if module.startswith(f"app.dialects.{folder}."):
            assert [name for name in own_imports(module) if name.split(".")[1:3][-1] in others] == []


def test_importing_the_router_starts_nothing_and_needs_no_engine() -> None:
    imports = "import sys, app.server.standalone, deployments.cli.main, deployments.local.launcher"
    code = f"{imports}; assert not {{'ray', 'vllm', 'torch', 'opentelemetry'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_a_router_loads_nothing_of_what_the_controller_computes_with() -> None:
    code = "import sys, app.server.application; assert not {'numpy', 'scipy', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


ENTRANCES = {
    "app.experiments.analysis.analysis",
    "app.experiments.api",
    "app.experiments.audit",
    "app.experiments.contract",
    "app.experiments.controller",
    "app.experiments.export",
    "app.experiments.host",
    "app.experiments.offline",
    "app.experiments.recordings",
    "app.experiments.rendering",
    "app.experiments.replay",
    "app.experiments.runs",
    "app.experiments.storage.journal",
    "app.experiments.storage.store",
}


def test_the_rest_of_the_project_enters_the_experiments_by_their_entrances() -> None:
    for module in MODULES:
        if module.startswith("app.experiments"):
            continue
        inner = {name for name in own_imports(module) if name.startswith("app.experiments.")} - {
            "app.experiments.storage"
        }
        assert [name for name in inner if not any(name == e or name.startswith(e + ".") for e in ENTRANCES)] == [], (
            module
        )


def test_the_contract_imports_nothing_else_of_the_experiments_and_no_numpy() -> None:
    modules = [name for name in MODULES if name.startswith("app.experiments.contract.")]
    code = f"import sys, {', '.join(modules)}; print(*[m for m in sys.modules if m.startswith('app.experiments.')])"
    code += "; assert not {'numpy', 'scipy', 'pyarrow'} & set(sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60, capture_output=True, text=True
    )
    assert set(loaded.stdout.split()) - {*modules, "app.experiments.contract"} == set()
