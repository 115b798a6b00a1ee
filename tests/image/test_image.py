"""The images as they are built and run: read-only, without root, capabilities and installers.

`make image` runs it as root, with docker, or with buildah, podman and runc. Where the base image cannot be pulled,
mmdebstrap makes one of Debian's packages. It takes 10 GB of disk and 10 to 30 minutes.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.support.processes.project import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

IMAGES = ("router", "weights", "cpu")
STORAGE = ("--storage-driver", "overlay")
BASE = "localhost/switchyard-base"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PACKAGES = "python3.11,python-is-python3,python3-pip,python3-venv,ca-certificates"
BLUE = "smollm2-blue"


def run(*command: str, check: bool = True, timeout_s: float = 1800) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done


@cache
def runtime() -> Sequence[str]:
    """The beginning of the runtime's commands."""
    if shutil.which("docker") is not None and run("docker", "info", check=False).returncode == 0:
        return ("docker",)
    return ("podman", *STORAGE, "--runtime", "runc")


def base(directory: Path) -> str | None:
    """The base image to use instead of the Dockerfile's, which cannot be pulled; None if it can."""
    (pulled,) = [line for line in (ROOT / "k8s/Dockerfile").read_text().splitlines() if line.startswith("ARG BASE=")]
    name = f"docker.io/library/{pulled.removeprefix('ARG BASE=')}"
    if run(*runtime(), "pull", name, check=False, timeout_s=300).returncode == 0:
        return None
    if run(*runtime(), "image", "inspect", BASE, check=False).returncode != 0:
        archive = directory / "base.tar"
        run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(archive))
        settings = ("PIP_BREAK_SYSTEM_PACKAGES=1", f"SSL_CERT_FILE={CERTIFICATES}")
        changes = [word for setting in settings for word in ("--change", f"ENV {setting}")]
        run(*runtime(), "import", *changes, str(archive), BASE)
        archive.unlink()
    return BASE


def build(image: str, instead: str | None) -> str:
    """Builds it, with this machine's package sources, and returns its name."""
    name = f"switchyard:test-{image}"
    arguments = ["--target", image, "-f", "k8s/Dockerfile", "-t", name]
    wheels = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    if instead is not None:
        arguments += ["--build-arg", f"BASE={instead}"]
    if runtime()[0] == "docker":
        run("docker", "build", *arguments, ".")
        return name
    mounted = [CERTIFICATES, *(path for path in ("/etc/pip.conf",) if Path(path).exists())]
    if wheels is not None and Path(wheels).is_dir():
        mounted.append(wheels)
        arguments += ["--build-arg", f"UV_FIND_LINKS={wheels}"]
    volumes = [word for path in mounted for word in ("-v", f"{path}:{path}:ro")]
    options = ("--isolation", "chroot", "--layers", "--network", "host", "--ignorefile", "k8s/Dockerfile.dockerignore")
    run("buildah", *STORAGE, "bud", *options, *volumes, *arguments, ".")
    return name


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    instead = base(tmp_path_factory.mktemp("base"))
    return {image: build(image, instead) for image in IMAGES}


def contained(image: str, memory: str, *options: str) -> list[str]:
    """The beginning of a command that runs in a container as restricted as the manifests' pods."""
    restrictions = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "1000:1000")
    limits = ("--memory", memory, "--ulimit", "nofile=16384:16384", "--ulimit", "nproc=4096:4096")
    writable = ("--tmpfs", "/tmp:rw,exec,mode=1777", "-e", "HOME=/tmp", "-w", "/tmp")
    return [*runtime(), "run", "--rm", "--network", "host", *restrictions, *limits, *writable, *options, image]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_without_root_and_has_no_installer(image: str, images: dict[str, str]) -> None:
    script = """
        id -u; for it in pip pip3 apt apt-get uv gcc cc; do command -v $it; done
        python -m pip --version || python -m ensurepip --version || touch /app/changed || switchyard --version
    """
    done = run(*contained(images[image], "1g"), "sh", "-c", script)
    assert done.stdout.split() == ["1000", "0.1.0"]


def test_routers_and_the_head_need_neither_vllm_nor_torch(images: dict[str, str]) -> None:
    """The head builds the engines' applications."""
    application = next(
        application
        for application in yaml.safe_load((ROOT / "serve_config.yaml").read_text())["applications"]
        if application["name"] == BLUE
    )
    script = (
        "import importlib.util, json, sys; from deployments.llm import build;"
        "import deployments.router, deployments.experiments, typing;"
        "build(typing.get_type_hints(build)['args'](**json.loads(sys.argv[1])));"
        "print([importlib.util.find_spec(it) for it in ('vllm', 'torch', 'transformers')])"
    )
    done = run(*contained(images["router"], "2g"), "python", "-c", script, json.dumps(application["args"]))
    assert done.stdout.splitlines()[-1] == "[None, None, None]"
    sizes = {
        variant: int(run(*runtime(), "image", "inspect", "--format", "{{.Size}}", name).stdout)
        for variant, name in images.items()
    }
    assert sizes["router"] < sizes["cpu"] / 2, sizes
