"""The real Claude Code and Codex against the real router and a scripted engine: one tool loop each, to its end.

`make agents` installs the programs, which are large, and runs this.
"""

import json
from pathlib import Path

import pytest

from tests.agents.conftest import Site
from tests.agents.programs import LIMIT_S, claude_code, codex
from tests.agents.scripted_engine import COMMAND, PRINTED, SAID, scripted

ASKS = "Run the command, and say what it printed."

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


def check_loop(site: Site, path: str) -> None:
    """The call went out, its result came back, and nothing was refused."""
    assert {status for _, status in site.answers} == {200}, site.answers
    turns = [body for body, at in zip(site.engine.requests, site.engine.paths, strict=True) if at == path]
    last = json.dumps(turns[-1].get("messages") or turns[-1]["input"])
    assert COMMAND in last
    assert PRINTED in last


def test_claude_code_runs_a_tool_loop_to_its_end(site: Site, tmp_path: Path) -> None:
    site.engine.answer = scripted(site.engine)
    result = claude_code(site.url, ASKS, tmp_path, "--allowedTools", "Bash")
    assert (result["result"], result["is_error"], result["num_turns"]) == (SAID, False, 2)
    check_loop(site, "/v1/messages")


def test_codex_runs_a_tool_loop_to_its_end(site: Site, tmp_path: Path) -> None:
    site.engine.answer = scripted(site.engine)
    events = codex(site.url, ASKS, tmp_path)
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (command,) = [item for item in items if item["type"] == "command_execution"]
    assert (command["aggregated_output"], command["exit_code"]) == (PRINTED, 0)
    assert [item["text"] for item in items if item["type"] == "agent_message"] == [SAID]
    assert events[-1]["type"] == "turn.completed"
    check_loop(site, "/v1/responses")
