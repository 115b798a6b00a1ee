"""The launcher starts the real application, and leaves nothing behind however it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from deployments import leftovers

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
READY_S = 240


@dataclass
class Launcher:
    """One `python -m deployments serve` with a run directory of its own."""

    process: subprocess.Popen[str]
    directory: Path
    port: int
    run_id: str

    def left(self) -> tuple[list[int], bool]:
        """Live processes with the run's marker, and whether anything listens on its port."""
        with socket.socket() as probe:
            return leftovers.marked(self.run_id), probe.connect_ex(("127.0.0.1", self.port)) == 0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def embedding_only() -> dict[str, object]:
    """The repository's own configuration, cut down to what starts fastest."""
    document = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    applications = {one["name"]: one for one in document["applications"]}
    applications["router"]["deployments"][0]["user_config"] = {
        "endpoints": {"embed": {"tasks": ["embeddings"], "traffic": {"minilm": 100}}},
        "deployments": {"minilm": {"app": "minilm", "model": "all-MiniLM-L6-v2", "tasks": ["embeddings"]}},
    }
    return {"applications": [applications["router"], applications["minilm"]]}


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, leftovers.RUN_DIRECTORY: str(directory)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "deployments", *arguments]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    config = tmp_path / "serve_config.yaml"
    config.write_text(yaml.safe_dump(embedding_only()))
    port = free_port()
    with (tmp_path / "terminal").open("w") as terminal:
        process = subprocess.Popen(
            command("serve", "--config", str(config), "--port", str(port)),
            cwd=ROOT,
            env=environment(tmp_path),
            stdout=terminal,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        wait_until_ready(process, tmp_path / "terminal")
        run_id = json.loads((tmp_path / "local.json").read_text())["run_id"]
        yield Launcher(process, tmp_path, port, run_id)
    finally:
        process.kill()
        process.wait()
        leftovers.stop(tmp_path)


def wait_until_ready(process: subprocess.Popen[str], terminal: Path) -> None:
    deadline = time.monotonic() + READY_S
    while "Switchyard is ready" not in terminal.read_text():
        assert process.poll() is None, terminal.read_text()
        assert time.monotonic() < deadline, terminal.read_text()
        time.sleep(0.2)


# SIGTERM ends the application that the other tests share: conftest.py looks at what is left then.
def test_ctrl_c_stops_everything(launcher: Launcher) -> None:
    answer = httpx.post(
        f"http://127.0.0.1:{launcher.port}/v1/embeddings", json={"model": "embed", "input": "hello"}, timeout=60
    )
    assert len(answer.json()["data"][0]["embedding"]) == 384
    assert len(leftovers.marked(launcher.run_id)) > 5
    launcher.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    launcher.process.send_signal(signal.SIGINT)  # impatience changes nothing
    assert launcher.process.wait(timeout=90) == 0
    assert launcher.left() == ([], False)
    assert not (launcher.directory / "local.json").exists()


def test_stop_cleans_up_after_a_killed_launcher(launcher: Launcher) -> None:
    refused = subprocess.run(
        command("serve", "--config", str(launcher.directory / "serve_config.yaml")),
        cwd=ROOT,
        env=environment(launcher.directory),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    assert "already runs" in refused.stderr
    launcher.process.kill()
    launcher.process.wait()
    stopped = subprocess.run(
        command("stop"), cwd=ROOT, env=environment(launcher.directory), capture_output=True, text=True, timeout=90
    )
    assert stopped.returncode == 0
    assert launcher.left() == ([], False)


def test_a_taken_port_is_refused_at_once(tmp_path: Path) -> None:
    config = tmp_path / "serve_config.yaml"
    config.write_text(yaml.safe_dump(embedding_only()))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = subprocess.run(
            command("serve", "--config", str(config), "--port", str(port)),
            cwd=ROOT,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert refused.returncode == 1
    assert f"Port {port} is taken" in refused.stderr
