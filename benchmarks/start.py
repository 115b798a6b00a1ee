"""Where the time of a start is spent: `switchyard serve` until it is ready, and each engine until its first token.
CPU-seconds come from /proc, so they are right even on a busy machine; compare only the ratios of wall times. Several
source trees take turns, each in a fresh process, to compare a change with the tree before it (`git worktree add`).

    python -m benchmarks.start                            this tree
    python -m benchmarks.start --only smollm2-blue        with one engine: a replica's start by itself
    python -m benchmarks.start ../before . --rounds 2     two trees in turns; each needs a .venv
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import yaml

from app.internal_api import INTERNAL_KEY_HEADER, INTERNAL_KEY_VARIABLE, ROUTER
from app.internal_keys import Purpose, derived
from deployments.local import processes
from deployments.local.readiness import ready_endpoints
from tests.support.processes.servers import free_port

LOOK_EVERY_S = 0.4
GIVE_UP_S = 900.0
KEY = "the key of a benchmark"

KINDS: Mapping[str, Sequence[str]] = {
    "builds of applications": ("build_serve_application",),
    "models (a process besides the engine's)": ("VLLM::Worker",),
    "engines": ("VLLM::EngineCore",),
    "engines' replicas": (":Engine",),
    "templates of replicas": ("deployments.engine --template",),
    "router and experiments": (":Router", ":Experiments"),
    "Serve's controller and proxies": ("ServeController", "ProxyActor", "PROXY_ACTOR", "HAProxyManager", "haproxy"),
}
"""The kinds of processes, by a part of one of their names; other processes are Ray's or the launcher's."""


@dataclass
class Seen:
    """One process: its start, and its names with the times when they were first seen, in seconds since the command."""

    began: float
    names: list[tuple[float, str]] = field(default_factory=list)
    cpu_s: float = 0.0
    parent: int = 0

    def named(self, part: str) -> float | None:
        """The time when it first had a name with `part`."""
        return next((at for at, name in self.names if part in name), None)

    @property
    def kind(self) -> str:
        for kind, parts in KINDS.items():
            if any(self.named(part) is not None for part in parts):
                return kind
        return "Ray and the launcher"


@dataclass
class Start:
    """One start. Times are in seconds since the command."""

    marks: dict[str, float] = field(default_factory=dict)
    first_tokens: dict[str, float] = field(default_factory=dict)
    processes: dict[int, Seen] = field(default_factory=dict)

    @property
    def cpu_s(self) -> dict[str, float]:
        """CPU-seconds by kind of process."""
        found: dict[str, float] = defaultdict(float)
        for seen in self.processes.values():
            found[seen.kind] += seen.cpu_s
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def replica(self, application: str) -> dict[str, float]:
        """The phases of the application's replica, in seconds, in order."""
        own = f"ServeReplica:{application}:"
        found = [(pid, process) for pid, process in self.processes.items() if process.named(own) is not None]
        if not found:
            return {}
        pid, replica = found[0]
        engine = next(
            (process for process in self.processes.values() if process.parent == pid and process.named("EngineCore")),
            None,
        )
        configured = replica.named("initialize_and_get_metadata")
        is_spawned = engine is not None and configured is not None and engine.began > configured
        begun = [
            ("Ray's process, imports of torch and vLLM", replica.began),
            ("configuration", configured),
            ("imports in the engine's process", engine.began if engine and is_spawned else None),
            ("weights, KV cache, first steps", engine.named("EngineCore") if engine else None),
            ("end", self.first_tokens.get(application)),
        ]
        known = [(name, at) for name, at in begun if at is not None]
        return {name: until - at for (name, at), (_, until) in pairwise(known)}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", nargs="*", type=Path, default=[Path()], metavar="TREE")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", metavar="DEPLOYMENT", help="serve this one alone")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what it has started ends with it
    for _ in range(arguments.rounds):
        for tree in arguments.trees:
            document = yaml.safe_load((tree / "serve_config.yaml").read_text())
            if arguments.only:
                document = only(document, arguments.only)
            with tempfile.TemporaryDirectory(dir="/tmp") as folder:
                show(tree, measured(tree.resolve(), document, Path(folder)))
    return 0


def only(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The configuration with one endpoint, whose only deployment this is."""
    router = next(application for application in document["applications"] if application["name"] == ROUTER)
    config = router["deployments"][0]["user_config"]
    deployment = config["deployments"][name]
    tasks = deployment.get("tasks") or ["chat", "completions", "responses"]
    router["deployments"][0]["user_config"] = {
        "endpoints": {"only": {"tasks": tasks, "traffic": {name: 100}}},
        "deployments": {name: deployment},
    }
    engine = next(application for application in document["applications"] if application["name"] == deployment["app"])
    return {**document, "applications": [router, engine]}


def measured(tree: Path, document: Mapping[str, Any], folder: Path) -> Start:
    """Starts `document` with the code in `tree`, measures the start, and stops it."""
    config, port, start, ready = folder / "serve_config.yaml", free_port(), Start(), threading.Event()
    config.write_text(yaml.safe_dump(document))
    with serving(tree, config, port, folder, start, ready) as (process, calls):
        engines = [
            application["name"]
            for application in document["applications"]
            if "llm_config" in (application.get("args") or {})
        ]
        threads = [
            threading.Thread(target=_wait_for_token, args=(name, document, port, start, calls), daemon=True)
            for name in engines
        ]
        for thread in threads:
            thread.start()
        while not (ready.is_set() and all(name in start.first_tokens for name in engines)):
            if process.poll() is not None or time.time() - calls > GIVE_UP_S:
                raise SystemExit(f"{tree} did not start: {start.marks}")
            _look(process.pid, folder, start, calls)
            if "an endpoint answers" not in start.marks and ready_endpoints(port):
                start.marks["an endpoint answers"] = time.time() - calls
            time.sleep(LOOK_EVERY_S)
    return start


@contextmanager
def serving(
    tree: Path, config: Path, port: int, folder: Path, start: Start, ready: threading.Event
) -> Iterator[tuple[subprocess.Popen[str], float]]:
    """Runs `switchyard serve` of `tree`; its output lines become marks."""
    variables = {processes.RUN_DIRECTORY: str(folder), INTERNAL_KEY_VARIABLE: KEY, "PYTHONPATH": str(tree)}
    command = [str(tree / ".venv/bin/python"), "-m", "deployments", "serve", str(config), "--port", str(port)]
    calls = time.time()
    process = subprocess.Popen(
        command,
        cwd=tree,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    threading.Thread(target=_read, args=(process, start, calls, ready), daemon=True).start()
    try:
        yield process, calls
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(processes.LAUNCHER_S)
        processes.stop(folder)


def _read(process: subprocess.Popen[str], start: Start, calls: float, ready: threading.Event) -> None:
    marks = {"Waiting for": "Ray and Serve run", "Switchyard is ready": "everything is ready"}
    for line in process.stdout or ():
        for begin, mark in marks.items():
            if line.startswith(begin):
                start.marks.setdefault(mark, time.time() - calls)
        if line.startswith("Switchyard is ready"):
            ready.set()


def _look(launcher: int, folder: Path, start: Start, calls: float) -> None:
    """Records the CPU time of the launcher, and of the processes that carry its run's marker."""
    run = processes.record(folder)
    for pid in [launcher, *(processes.processes_of(run.run_id) if run else ())]:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            process = psutil.Process(pid)
            seen = start.processes.setdefault(pid, Seen(process.create_time() - calls, parent=process.ppid()))
            name, times = " ".join(process.cmdline())[:200], process.cpu_times()
            if name and (not seen.names or seen.names[-1][1] != name):
                seen.names.append((time.time() - calls, name))
            seen.cpu_s = times.user + times.system


def _wait_for_token(name: str, document: Mapping[str, Any], port: int, start: Start, calls: float) -> None:
    """Requests one token from the application's own address until it returns one."""
    engine = next(application for application in document["applications"] if application["name"] == name)
    model = engine["args"]["llm_config"]["model_loading_config"]["model_id"]
    path, body = "completions", {"model": model, "prompt": "a", "max_tokens": 1}
    if engine["import_path"].startswith("deployments.embedding"):
        path, body = "embeddings", {"model": model, "input": "a"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{engine['route_prefix']}/v1/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json", INTERNAL_KEY_HEADER: derived(KEY, Purpose.ENGINE)},
    )
    while name not in start.first_tokens:
        with suppress(OSError, urllib.error.HTTPError), urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            start.first_tokens[name] = time.time() - calls
        time.sleep(LOOK_EVERY_S)


def show(tree: Path, start: Start) -> None:
    """Prints it."""
    total = sum(start.cpu_s.values())
    print(f"\n{tree}: {total:.0f} CPU-seconds; since asked: ", end="")
    print(", ".join(f"{mark} {at:.1f} s" for mark, at in sorted(start.marks.items(), key=lambda pair: pair[1])))
    for kind, cpu_s in start.cpu_s.items():
        number = sum(process.kind == kind for process in start.processes.values())
        print(f"  {cpu_s:6.1f} CPU-s {cpu_s / total:5.0%}  {kind} ({number} processes)")
    for name in start.first_tokens:
        phases = start.replica(name)
        whole = sum(phases.values())
        print(f"  {name}: {whole:.1f} s from Serve's request to its first token")
        for phase, seconds in phases.items():
            print(f"    {seconds:6.1f} s {seconds / whole:5.0%}  {phase}")


if __name__ == "__main__":
    sys.exit(main())
