"""HAProxy that does not start, and a port that is taken."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.doctor.finding import Level
from deployments.doctor.host_checks import haproxy_check, port
from deployments.haproxy import write_script
from deployments.local.processes import Phase, Run
from tests.support.processes.installations import default, installation, levels, the_problem, the_warning
from tests.support.processes.servers import free_port

_VARIABLE = "RAY_SERVE_HAPROXY_BINARY_PATH"


def with_script(path: Path) -> dict[str, str]:
    return {_VARIABLE: str(path)}


def test_the_installed_haproxy_and_our_script_pass(tmp_path: Path) -> None:
    assert levels(haproxy_check(installation())) == [Level.OK]
    assert levels(haproxy_check(installation(environment=with_script(write_script(tmp_path))))) == [Level.OK]


def test_a_cluster_without_the_script_is_found() -> None:
    assert the_problem(haproxy_check(installation(on_cluster=True))).startswith(f"{_VARIABLE} is not set")


def test_a_script_that_is_missing_not_executable_or_broken_is_found(tmp_path: Path) -> None:
    script = write_script(tmp_path)
    environment = with_script(script)
    text = script.read_text()
    script.write_text(text.replace("exec ", "exec /nowhere"))
    assert "exits with 1" in the_problem(haproxy_check(installation(environment=environment)))
    script.chmod(0o644)
    assert the_problem(haproxy_check(installation(environment=environment))).endswith("is not an executable file")
    script.unlink()
    assert the_problem(haproxy_check(installation(environment=environment))).endswith("is not an executable file")


def test_another_script_is_a_warning(tmp_path: Path) -> None:
    script = write_script(tmp_path)
    script.write_text(script.read_text().replace(" -dS", ""))
    assert "is not the script" in the_warning(haproxy_check(installation(environment=with_script(script))))


def test_a_taken_port_is_found() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        document = {**default(), "http_options": {"port": taken}}
        assert the_problem(port(installation(document))) == f"{taken} is taken by another program"
        gone = Run(pid=1, run_id="of-no-process", port=taken, dashboard="", directory="")
        assert "no process of the recorded run is left" in the_problem(port(installation(run=gone)))


def test_a_recorded_run_that_does_not_listen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    assert levels(port(installation({**default(), "http_options": {"port": free}}))) == [Level.OK]
    node = installation({**default(), "http_options": {"port": free}}, on_cluster=True)
    assert the_warning(port(node)) == f"nothing listens on {free} on this node"
    dead = Run(pid=os.getpid(), run_id="x", port=free, dashboard="", directory="")
    assert the_problem(port(installation(run=dead))) == f"nothing listens on {free}, though a run is recorded"
    assert levels(port(installation(run=replace(dead, phase=Phase.STARTING)))) == [Level.OK]
