"""A Ray cluster with Ray's own defaults, next to ours: `ray start --head`, then `serve run`, with no RAY_SERVE_*
variable set.

The differences from these two commands on a laptop do not affect a token's path: every port is a free one on loopback,
Ray requires a token (as `ray.init` does by itself), nothing is reported or downloaded, vLLM's threads are not pinned
(all engines would share a core), and Ray counts enough logical CPUs to place its two ingress replicas.
"""

import os
import secrets
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks import programs
from deployments.local import processes
from deployments.local.environment import DEFAULTS, TOKEN
from deployments.local.fit import LOGICAL_CPUS
from deployments.local.processes import HOST


@contextmanager
def cluster(application: Mapping[str, Any], model: str, directory: Path) -> Iterator[processes.Run]:
    """Serves `application`, which answers chats for `model`; yields the run once it does.

    `directory` keeps the run's record. All its processes end with the block; those that a killed run left behind are
    ended by the next one.
    """
    with processes.exclusive(directory):
        processes.clean(directory)
        port, gcs, dashboard, *others = programs.free_ports(6)
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
        hello = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        try:
            _launch(head, environment, files, lambda: programs.listens(gcs))
            _launch(serve, environment, files, lambda: programs.answers(port, "/v1/chat/completions", hello))
            yield run
        finally:
            processes.clean(directory)


def _launch(command: list[str], environment: Mapping[str, str], files: Path, is_up: Callable[[], bool]) -> None:
    """Runs a program of the virtual environment until the cluster is cleaned up; returns once `is_up`."""
    program = str(Path(sys.executable).with_name(command[0]))
    programs.launch([program, *command[1:]], files / f"{command[0]}.log", is_up, environment=environment, cwd=files)


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
