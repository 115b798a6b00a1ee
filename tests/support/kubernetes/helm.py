"""Real Helm: renders and lints the chart."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.processes.project import ROOT

PYTHON = ROOT / ".helm/bin/python"
"""An environment with Helm's library alone, which is not for the packages of the project."""


class HelmFailed(Exception):
    """Helm's message."""


class Helm:
    """Helm in a process, which is asked for one thing at a time."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def render(
        self, values: Mapping[str, Any], *, name: str = "switchyard", namespace: str = "switchyard"
    ) -> dict[str, str]:
        """The chart's files by name, as `helm template`. Raises HelmFailed."""
        files: dict[str, str] = self._ask({"values": values, "name": name, "namespace": namespace})["files"]
        return {path.rpartition("/")[2]: text for path, text in files.items()}

    def lint(self, values: Mapping[str, Any]) -> Any:
        """What `helm lint` finds. Raises HelmFailed."""
        return self._ask({"lint": values})["lint"]

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise HelmFailed(answer["error"])
        return answer


@contextmanager
def helm(chart: Path) -> Iterator[Helm]:
    """Helm with a chart. `make setup` installs it."""
    command = [PYTHON, ROOT / "tests/support/kubernetes/helm_process.py", chart]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Helm(process)
        assert process.stdin
        process.stdin.close()
