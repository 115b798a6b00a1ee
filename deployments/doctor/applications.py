"""Checks the running system: applications, missing replicas and the reason, the last errors in their logs."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deployments.doctor.finding import Finding, ok, problem, warning
from deployments.doctor.installation import Installation
from deployments.invocation import command
from deployments.local import dashboard
from deployments.local.errors import LaunchError
from deployments.local.processes import Phase

_LAST = 3
_TAIL_BYTES = 256 * 1024
_REPLICA = re.compile(r"^:actor_name:ServeReplica:([^:\s]+):", re.MULTILINE)
_BUILD = re.compile(r"controller_build_(.+)_\d+\.log$")
_ERROR_LINE = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b")
_EXCEPTION = re.compile(r"^(?:\(\S+ pid=\d+\) )?((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b.*)")
_LONGEST = 300


def applications(it: Installation) -> Iterator[Finding]:
    """Checks that every application of the run is RUNNING, with all its replicas."""
    if it.run is None:
        yield ok("applications", "nothing runs")
        return
    try:
        instance = dashboard.read(it.run)
    except LaunchError as error:
        if it.run.phase == Phase.STARTING and not it.on_cluster:
            yield warning("applications", "the run is starting", "wait: its terminal says when it is ready")
            return
        fix = "check the head's pod" if it.on_cluster else f"run: {command('stop')}, then {command('serve')}"
        yield problem("applications", str(error), fix)
        return
    yield from states(list(instance.applications.values()))


def states(found: Sequence[dashboard.Application]) -> Iterator[Finding]:
    """Findings for applications as Serve reports them."""
    for application in found:
        why = "; ".join(line.strip() for line in application.messages if line.strip())
        missing = application.wanted - application.running
        if application.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            fix = "its log is below; correct the configuration and deploy it again"
            yield problem("applications", f"{application.name} is {application.status}: {why or 'no message'}", fix)
        elif missing > 0:
            has = f"{application.name} has {application.running} of {application.wanted} replicas"
            yield warning("applications", f"{has}: {why or application.status}", _advice(why))
    if found and all(it.status == "RUNNING" and it.running >= it.wanted for it in found):
        yield ok("applications", f"{len(found)} run with all their replicas")


def _advice(why: str) -> str:
    if "scheduled" in why or "resources" in why.lower():
        lacking = "no node has the resources that it requests (GPU, accelerator_type, CPUs)"
        return f"{lacking}: look at pending pods and the groups' maxReplicas"
    return "it is starting: loading weights takes minutes; if it takes longer, its log is below"


def last_errors(it: Installation) -> Iterator[Finding]:
    """The last errors in each application's log."""
    if it.logs is None or not it.logs.exists():
        return
    errors = errors_by_application(it.logs)
    for name, lines in sorted(errors.items()):
        for line in lines[-_LAST:]:
            yield warning("log", f"{name}: {line}", f"read the log: {it.logs}")
    if not errors:
        yield ok("log", "no errors")


def errors_by_application(logs: Path) -> Mapping[str, list[str]]:
    """Maps each application to its errors, in the order of the log files, without repetitions."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for file in sorted(logs.glob("worker-*.err"), key=lambda path: path.stat().st_mtime):
        text = _tail(file)
        if (match := _REPLICA.search(_head(file))) is not None:
            found[match[1]].update(dict.fromkeys(errors_in(text)))
    for file in sorted((logs / "serve").glob("controller_build_*.log"), key=lambda path: path.stat().st_mtime):
        if (match := _BUILD.search(file.name)) is not None:
            found[match[1]].update(dict.fromkeys(errors_in(_tail(file))))
    return {name: list(lines) for name, lines in found.items() if lines}


def errors_in(text: str) -> Iterator[str]:
    """Yields the errors of a log: JSON lines of level error or above, lines with ERROR, and the ends of tracebacks."""
    for line in text.splitlines():
        if line.startswith("{") and (error := _json_error(line)):
            yield error[:_LONGEST]
        elif (match := _EXCEPTION.match(line)) is not None:
            yield match[1][:_LONGEST]
        elif not line.startswith("{") and _ERROR_LINE.search(line):
            yield line.strip()[:_LONGEST]


def _json_error(line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    if not isinstance(entry, dict) or entry.get("level") not in ("error", "critical"):
        return ""
    about = ", ".join(f"{name}={entry[name]}" for name in ("error", "deployment", "endpoint") if entry.get(name))
    about = about or "; ".join(entry.get("problems") or ())
    return f"{entry.get('event')}{': ' + about if about else ''}"


def _head(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(4096).decode(errors="replace")


def _tail(file: Path) -> str:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        return opened.read().decode(errors="replace")
