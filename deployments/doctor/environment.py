"""Checks the configuration, and the environment variables that Ray, Serve and HAProxy read when they start."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from app.internal_api import ENGINE_KEY_VARIABLE, INTERNAL_KEY_VARIABLE, UNIT_SECRET_VARIABLE
from deployments import draining, haproxy
from deployments.doctor.finding import Finding, ok, problem, warning
from deployments.doctor.installation import DEPLOYED, Installation
from deployments.invocation import DEFAULT_FILE, argument, command
from deployments.kubernetes.environment import DRAIN, WORKER_DRAIN_S
from deployments.local.environment import REQUIRED

_REQUIRED: Mapping[str, str] = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
}
"""The switches without which requests pass through Serve's Python proxy, and replicas cannot be reached directly."""

_ADVISED: Mapping[str, str] = {**haproxy.SETTINGS, **draining.SETTINGS}


def configuration(it: Installation) -> Iterator[Finding]:
    """Checks the configuration: the file's, else that of the running application."""
    if not it.source:
        message = f"{DEFAULT_FILE} is missing and no running Serve answers: keys, limits, weights, memory are unchecked"
        yield problem("configuration", message, f"name the file: {command('doctor FILE')}")
        return
    for line in it.problems:
        yield problem("configuration", f"{it.source}: {line.removeprefix(f'{it.source}: ')}", _fix(it.source))
    if not it.problems:
        yield ok("configuration", f"{it.source} is valid")


def _fix(source: str) -> str:
    if source == DEPLOYED:
        return "correct and deploy it again"
    if not Path(source).exists():
        return f"name the file: {command('doctor FILE')}"
    return f"correct it; `{command(f'check {argument(Path(source))}')}` checks it"


def switches(it: Installation) -> Iterator[Finding]:
    """Checks the switches: on a node of a cluster they must be set; elsewhere `serve` sets those that the shell does
    not override.
    """
    wrong = 0
    required = _REQUIRED if it.on_cluster else {**_REQUIRED, **{name: value for name, (value, _) in REQUIRED.items()}}
    for name, wanted in {**_ADVISED, **required}.items():
        found = it.environment.get(name)
        if found == wanted or (found is None and not it.on_cluster):
            continue
        wrong += 1
        message = f"{name} is {found!r}, not {wanted!r}" if found is not None else f"{name} is not set"
        fix = f"set {name}={wanted} for every pod" if it.on_cluster else f"run: unset {name}"
        yield (problem if name in required else warning)("environment", message, fix)
    if it.on_cluster and haproxy.METRICS_HOST_VARIABLE not in it.environment:
        wrong += 1
        name = haproxy.METRICS_HOST_VARIABLE
        message = f"{name} is not set: routers cannot read the metrics of the nodes' HAProxies"
        yield warning("environment", message, f"set {name}='{haproxy.EVERY_INTERFACE}' for every pod")
    if it.on_cluster and DRAIN not in it.environment:
        wrong += 1
        fix = f"set {DRAIN}={WORKER_DRAIN_S} for every pod, and a longer terminationGracePeriodSeconds"
        yield warning("environment", f"{DRAIN} is not set: a pod that is deleted cuts its streams after 30 s", fix)
    if it.on_cluster:
        for finding in _secrets(it.environment):
            wrong += 1
            yield finding
    if not wrong:
        yield ok("environment", "the settings of Ray, Serve and HAProxy are correct")


def _secrets(environment: Mapping[str, str]) -> Iterator[Finding]:
    """A node of engines needs their key alone; every other one the master, and routers the units' secret."""
    if environment.get(INTERNAL_KEY_VARIABLE):
        if not environment.get(UNIT_SECRET_VARIABLE):
            fix = f"set it to the present {INTERNAL_KEY_VARIABLE}, which it stays when that key changes"
            yield warning("environment", f"{UNIT_SECRET_VARIABLE} is not set: the ledger's units hang on the key", fix)
    elif not environment.get(ENGINE_KEY_VARIABLE):
        fix = f"set it on nodes of routers, and {ENGINE_KEY_VARIABLE} on nodes of engines: without them no one may call"
        yield problem("environment", f"{INTERNAL_KEY_VARIABLE} is not set", fix)
