"""Mistakes that the launcher refuses before a start, and a closed terminal. Other ends of runs are tested in
test_live_traffic and tests/real/conftest.py."""

import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.local import processes
from tests.support.processes.launcher import launched, run
from tests.support.processes.project import ROOT

pytestmark = pytest.mark.real


def embedding_only() -> dict[str, Any]:
    """The repository's own configuration, cut down to one model."""
    document = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    applications = {one["name"]: one for one in document["applications"]}
    applications["router"]["deployments"][0]["user_config"] = {
        "endpoints": {"embed": {"tasks": ["embeddings"], "traffic": {"minilm": 100}}},
        "deployments": {"minilm": {"app": "minilm", "model": "all-MiniLM-L6-v2", "tasks": ["embeddings"]}},
    }
    return {"applications": [applications["router"], applications["minilm"]]}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "serve_config.yaml"
    path.write_text(yaml.safe_dump(embedding_only()))
    return path


def launch(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return run(*arguments, directory=directory, timeout_s=120)


def test_a_taken_port_is_refused_at_once(config: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = launch("serve", str(config), "--port", str(port), directory=tmp_path)
    assert refused.returncode == 1
    assert f"Port {port} is taken" in refused.stderr


def test_a_wrong_configuration_is_refused_at_once(config: Path, tmp_path: Path) -> None:
    document = embedding_only()
    document["applications"][0]["deployments"][0]["user_config"]["endpoints"]["embed"]["traffic"] = {"minilm": 99}
    config.write_text(yaml.safe_dump(document))
    refused = launch("serve", str(config), directory=tmp_path)
    assert refused.returncode == 1
    assert "traffic sums to 99 (minilm 99), it must be 100: add 1" in refused.stderr


def test_a_closed_terminal_leaves_nothing_behind(tmp_path: Path) -> None:
    document = embedding_only()
    (router, _) = document["applications"]
    deployments = router["deployments"][0]["user_config"]["deployments"]
    deployments["minilm"] = {"url": "http://127.0.0.1:9", "model": "minilm", "tasks": ["embeddings"]}
    config = tmp_path / "serve_config.yaml"
    config.write_text(yaml.safe_dump({"applications": [router]}))
    with launched(config, tmp_path, {}) as launcher:
        assert len(processes.processes_of(launcher.run_id)) > 5
        os.killpg(launcher.process.pid, signal.SIGHUP)
        while launcher.process.poll() is None:
            said = launch("status", directory=tmp_path).stderr
            assert re.match(r"$|The application is stopping\. |Nothing is running\. ", said), said
        assert launcher.process.wait(60) == 0, (tmp_path / "terminal").read_text()
        launcher.assert_nothing_is_left()
        assert not (tmp_path / "local.json").exists()
