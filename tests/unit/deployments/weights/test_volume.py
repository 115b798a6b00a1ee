"""A Job fills the volume, and engines wait for it. The hub runs here, and the Job is the command of the manifest."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from deployments.weights.sources import is_pinned, source_on
from deployments.weights.volume import MARKER, arrival, fetch_all, folder_of, is_complete, state
from tests.support.engine.fake_hub import OWNER, REVISION, hub
from tests.support.processes.project import ROOT
from tests.support.processes.servers import serve
from tests.support.waiting import wait_until_async

MINE = f"hf:{OWNER}/mine@{REVISION}"
FILES = {"config.json": "{}", "model.safetensors": "weights" * 100, "original/consolidated.00.pth": "twice"}
HUGE = 10**17


async def repository(request: Request) -> Response:
    """A gated one, and one that no disk has room for."""
    if request.path_params["name"] == "gated":
        return JSONResponse({"error": "gated"}, 403, headers={"x-error-code": "GatedRepo"})
    siblings = [{"rfilename": "model.safetensors", "size": HUGE}]
    return JSONResponse({"id": "other/huge", "sha": REVISION, "siblings": siblings})


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = tmp_path_factory.mktemp("models")
    for name, content in FILES.items():
        (models / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (models / "mine" / name).write_text(content)
    routes = [Route("/api/models/other/{name}/{rest:path}", repository), Mount("/", hub(models))]
    with serve(Starlette(routes=routes)) as url:
        yield url


def job(endpoint: str, volume: Path, *sources: str) -> subprocess.CompletedProcess[str]:
    """Runs the Job's command."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-m", "deployments", "weights", "--cache", str(volume), *sources],
        cwd=ROOT,
        env={**environment, "HF_HOME": str(volume / ".hub"), "HF_ENDPOINT": endpoint},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_one_models_failure_keeps_no_other_from_being_fetched(there: str, tmp_path: Path) -> None:
    sources = ["hf:other/gated@main", "package:gone", "elsewhere:x", MINE]
    done = job(there, tmp_path, *sources)
    assert done.returncode == 1
    assert done.stderr.endswith("not fetched: hf:other/gated@main, package:gone, elsewhere:x\n")
    assert done.stdout == f"{folder_of(MINE, tmp_path)}\n"
    assert "The model other/gated is gated, and HF_TOKEN is not set" in state("hf:other/gated@main", tmp_path)
    assert state("package:gone", tmp_path).startswith("failed: No recipe makes the model 'gone'")
    assert "is not a source" in done.stderr
    assert is_complete(MINE, tmp_path)


def test_a_fetched_folder_has_what_vllm_loads_and_says_where_it_is_from(there: str, tmp_path: Path) -> None:
    assert job(there, tmp_path, MINE).returncode == 0
    folder = folder_of(MINE, tmp_path)
    assert {path.name for path in folder.iterdir()} - {".cache"} == {"config.json", "model.safetensors", MARKER}
    marker = json.loads((folder / MARKER).read_text())
    assert (marker["source"], marker["commit"]) == (MINE, REVISION)
    assert marker["files"] == {name: len(FILES[name]) for name in ("config.json", "model.safetensors")}


def test_only_what_is_missing_is_fetched_again(there: str, tmp_path: Path) -> None:
    assert job(there, tmp_path, MINE).returncode == 0
    weights = folder_of(MINE, tmp_path) / "model.safetensors"
    weights.write_text("cut")
    assert not is_complete(MINE, tmp_path)
    assert job("http://127.0.0.1:9", tmp_path, MINE).returncode == 1
    assert job(there, tmp_path, MINE).returncode == 0
    assert weights.read_text() == FILES["model.safetensors"]
    assert job("http://127.0.0.1:9", tmp_path, MINE).returncode == 0, "a complete folder needs no hub"


def test_a_volume_without_room_says_so_before_the_download(there: str, tmp_path: Path) -> None:
    done = job(there, tmp_path, "hf:other/huge@main")
    assert done.returncode == 1
    assert f"{HUGE / 1e9:.1f} GB of other/huge are missing, and the volume has" in done.stderr


def test_the_progress_of_a_download_is_told(tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "slow").mkdir(parents=True)
    (models / "slow" / "model.safetensors").write_bytes(bytes(1_000_000))

    async def drip(request: Request) -> Response:
        async def parts() -> object:  # half of it, and the rest after a while
            yield bytes(500_000)
            await asyncio.sleep(1.5)
            yield bytes(500_000)

        headers = {"etag": '"x"', "x-repo-commit": REVISION, "content-length": "1000000"}
        return StreamingResponse(parts(), headers=headers) if request.method == "GET" else Response(headers=headers)  # type: ignore[arg-type]

    path = f"/{OWNER}/slow/resolve/{REVISION}/model.safetensors"
    script = (
        "import sys; from pathlib import Path; from deployments.weights.hub import download;"
        f"download('{OWNER}/slow', None, Path(sys.argv[1]), print, every_s=0.2)"
    )
    with serve(Starlette(routes=[Route(path, drip, methods=["GET", "HEAD"]), Mount("/", hub(models))])) as url:
        environment = {**os.environ, "HF_HOME": str(tmp_path / "hub"), "HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-c", script, str(tmp_path / "fetched")]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
    assert len(done.stdout.splitlines()) > 3
    assert set(done.stdout.splitlines()) <= {f"{part} MB of 1.0 MB" for part in ("0.0", "0.5", "1.0")}


async def test_an_engine_waits_and_says_what_for(tmp_path: Path) -> None:
    said: list[str] = []
    waiting = asyncio.create_task(arrival([MINE], tmp_path, said.append, every_s=0.01))

    async def until(text: str) -> None:
        await wait_until_async(lambda: any(text in line for line in said))

    await until(f"Waiting for the weights {MINE}: no Job has begun to fetch it")
    assert fetch_all(["hf:"], tmp_path, said.append) == ["hf:"]
    folder = folder_of(MINE, tmp_path)
    folder.mkdir(parents=True)
    (folder.parent / f".{folder.name}.state").write_text("3.2 GB of 16.1 GB (2026-01-01 12:00:00 UTC)")
    await until("3.2 GB of 16.1 GB")
    (folder / "model.safetensors").write_text("part")
    (folder / MARKER).write_text(json.dumps({"files": {"model.safetensors": 5}}))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    (folder / "model.safetensors").write_text("whole")
    async with asyncio.timeout(10):
        await waiting
    assert len(said) == len(set(said)), "a state is said once"
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("named", "source"),
    [
        ("package:SmolLM2-135M-Instruct", "package:SmolLM2-135M-Instruct"),
        (f"/models/{OWNER}/mine@{REVISION}", MINE),
        (f"/models/../models/{OWNER}/mine@{REVISION}/", MINE),
        ("/models/gpt2", "hf:gpt2"),
        ("/models", None),
        ("/models/../etc/mine", None),
        ("/other/mine", None),
        ("acme/mine", None),
        ("s3://bucket/mine", None),
    ],
)
def test_the_volumes_sources_are_named_by_their_folders(named: str, source: str | None) -> None:
    assert source_on(Path("/models"), named) == source
    if source is not None and not source.startswith("package:"):
        assert folder_of(source, Path("/models")) == Path(os.path.normpath(named))


def test_a_source_is_pinned_by_its_revision_or_by_the_lock() -> None:
    assert [is_pinned(source) for source in (MINE, "package:x", "hf:acme/mine")] == [True, True, False]
