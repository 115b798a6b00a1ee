"""A Ray cluster as Ray ships it, beside ours: `ray start --head`, then `serve run`, with no RAY_SERVE_* variable set.

What differs from those two commands on a laptop changes no path that a token takes: every port is a free one and on
loopback, Ray asks for a token (as `ray.init` does by itself), nothing is reported or downloaded, vLLM's threads are not
pinned (all engines would share a core), and Ray counts enough logical CPUs to place its two ingress replicas.
"""

import http.client
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from deployments.local import processes
from deployments.local.environment import DEFAULTS, HOST, TOKEN
from deployments.local.launcher import LOGICAL_CPUS

READY_S = 600.0
"""How long the cluster may take until it answers."""


@contextmanager
def cluster(application: Mapping[str, Any], model: str, directory: Path) -> Iterator[processes.Run]:
    """Serves `application`, which answers chats for `model`; yields the run once it does.

    `directory` keeps the run's record. Every process of it ends with the block; what a killed one left, the next ends.
    """
    with processes.exclusive(directory):
        processes.clean(directory)
        port, gcs, dashboard, *others = _free_ports(6)
        files = Path(tempfile.mkdtemp(prefix="switchyard-", dir="/tmp"))
        run = processes.Run(os.getpid(), str(uuid.uuid4()), port, f"http://{HOST}:{dashboard}", str(files))
        processes.write_record(directory, run)
        environment = _environment(run)
        config = files / "serve.yaml"
        options = {"host": HOST, "port": port}
        config.write_text(yaml.safe_dump({"http_options": options, "applications": [dict(application)]}))
        head = [
            *("ray", "start", "--head", "--block", "--disable-usage-stats", f"--num-cpus={LOGICAL_CPUS}"),
            *(f"--node-ip-address={HOST}", f"--port={gcs}", f"--dashboard-port={dashboard}"),
            *(f"--dashboard-agent-listen-port={others[0]}", f"--dashboard-agent-grpc-port={others[1]}"),
            *(f"--ray-client-server-port={others[2]}", f"--temp-dir={files}/ray"),
        ]
        serve = ["serve", "run", "--address", f"{HOST}:{gcs}", str(config)]
        try:
            _launch(head, environment, files, lambda: _listens(gcs))
            _launch(serve, environment, files, lambda: _answers(port, model))
            yield run
        finally:
            processes.clean(directory)


def _launch(command: list[str], environment: Mapping[str, str], files: Path, is_up: Callable[[], bool]) -> None:
    """Runs a program of the virtual environment until the cluster is cleaned up; returns once `is_up`."""
    log = files / f"{command[0]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name(command[0])), *command[1:]],
            cwd=files,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends this
        )
    deadline = time.monotonic() + READY_S
    while not is_up():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"`{' '.join(command)}` did not come up:\n{log.read_text()[-4000:]}")
        time.sleep(0.5)


def _environment(run: processes.Run) -> dict[str, str]:
    token = Path(run.directory) / TOKEN
    token.write_text(secrets.token_hex(32))
    left_out = "RAY_"
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(left_out)},
        **{name: value for name, value in DEFAULTS.items() if not name.startswith("RAY_SERVE_")},
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "NO_PROXY": HOST,
        processes.MARKER: run.run_id,
        "SPT_NOENV": "1",  # a process that sets its title would overwrite the marker
    }


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _answers(port: int, model: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1})
    try:
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_ports(number: int) -> list[int]:
    with ExitStack() as sockets:
        bound = [sockets.enter_context(socket.socket()) for _ in range(number)]
        for one in bound:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in bound]
