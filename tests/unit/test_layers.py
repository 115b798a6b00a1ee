"""Imports point one way."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A module may import from layers below its own, and from its own. Dialects share few modules, named below.
LAYERS = [
    {"app.config_base"},
    {"app.config_access", "app.config_file"},
    {"app.breaker", "app.config", "app.errors", "app.retries", "app.sse"},
    {
        "app.access",
        "app.admission",
        "app.content_filter",
        "app.control",
        "app.engine",
        "app.fold",
        "app.limits",
        "app.model",
        "app.targets",
        "app.traffic",
    },
    {"app.dialects", "app.model_cards", "app.upstream"},
    {
        "app.answer",
        "app.board",
        "app.deadlines",
        "app.exchange",
        "app.intake",
        "app.openapi",
        "app.pulse",
        "app.telemetry",
        "app.tgi_metrics",
    },
    {"app.server", "app.management"},
    {"app.__main__", "app.field_table", "deployments"},
]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = [(name_of(path), path) for folder in ("app", "deployments") for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(module: str) -> int | None:
    return next(
        (i for i, names in enumerate(LAYERS) if any(module == n or module.startswith(n + ".") for n in names)), None
    )


@pytest.mark.parametrize(("module", "path"), MODULES, ids=lambda value: value if isinstance(value, str) else "")
def test_imports_point_down(module: str, path: Path) -> None:
    if module == "app":
        assert list(imports(path)) == []
        return
    own = layer(module)
    assert own is not None, f"{module} has no layer"
    for imported in imports(path):
        below = layer(imported)
        assert below is None or below <= own, f"{module} imports {imported}"


@pytest.mark.parametrize(("module", "path"), MODULES, ids=lambda value: value if isinstance(value, str) else "")
def test_only_deployments_know_ray_and_vllm(module: str, path: Path) -> None:
    roots = {name.partition(".")[0] for name in imports(path)}
    if module.startswith("app"):
        assert not roots & {"ray", "vllm", "deployments"}
    if module.startswith("app.dialects"):
        assert not roots & {"starlette", "aiohttp", "asyncio", "logging", "time", "prometheus_client"}


def provider(module: str) -> str:
    """`azure` of `azure_fields`."""
    return module.partition("_")[0]


def test_dialects_do_not_import_one_another_nor_shared_modules_them() -> None:
    shared = set(
        "base best_of common_fields ending friendli_mounts honoured last_usage limits one_call plans relay sampling "
        "schemas token_events tokens".split()
    )
    dialects = {path.stem for path in (ROOT / "app/dialects").glob("*.py")} - shared - {"__init__"}
    for name in dialects | shared:
        for imported in imports(ROOT / f"app/dialects/{name}.py"):
            other = imported.removeprefix("app.dialects.").partition(".")[0]
            assert other not in dialects or provider(other) == provider(name), f"{name} imports {other}"


def test_importing_the_router_starts_nothing_and_needs_no_engine() -> None:
    code = "import sys, app.server, app.__main__; assert not {'ray', 'vllm', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
