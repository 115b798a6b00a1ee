"""The real Claude Code and Codex against the real router and a scripted engine: one tool loop each, to its end.

`make agents` installs the programs, which are large, and runs this.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.agents.scripted_engine import COMMAND, PRINTED, SAID, scripted
from tests.support.engine.fake_engine import FakeEngine
from tests.support.processes.servers import serve

PROGRAMS = Path(__file__).parent / "node_modules"
CLAUDE_CODE = PROGRAMS / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
CODEX = PROGRAMS / ".bin" / "codex"
ASKS = "Run the command, and say what it printed."
LIMIT_S = 300

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


class Site(NamedTuple):
    """A router at `url`, the engine behind it, and the statuses of its answers."""

    url: str
    engine: FakeEngine
    answers: list[tuple[str, int]]


@pytest.fixture
def site() -> Iterator[Site]:
    engine, answers = FakeEngine(), list[tuple[str, int]]()
    engine.answer = scripted(engine)
    router = Router(RuntimeEnvironment())

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            if message["type"] == "http.response.start":
                answers.append((scope["path"], message["status"]))
            await send(message)

        await router.app(scope, receive, note)

    with serve(engine.app) as engine_url, serve(noted) as url:
        router.reconfigure(
            {
                "endpoints": {"chat": {"tasks": ["chat", "responses"], "traffic": {"blue": 100}}},
                "deployments": {"blue": {"url": engine_url, "model": "m"}},
            }
        )
        yield Site(url, engine, answers)


def run(program: Path, *arguments: str, home: Path, **environment: str) -> str:
    """What a program prints, in a directory and an environment of its own."""
    assert program.exists(), "`make agents` installs it"
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), **environment}
    ended = subprocess.run(
        [program, *arguments],
        env=variables,
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def check_loop(site: Site, path: str) -> None:
    """The call went out, its result came back, and nothing was refused."""
    assert {status for _, status in site.answers} == {200}, site.answers
    turns = [body for body, at in zip(site.engine.requests, site.engine.paths, strict=True) if at == path]
    last = json.dumps(turns[-1].get("messages") or turns[-1]["input"])
    assert COMMAND in last
    assert PRINTED in last


def test_claude_code_runs_a_tool_loop_to_its_end(site: Site, tmp_path: Path) -> None:
    settings = {
        "ANTHROPIC_BASE_URL": site.url,
        "ANTHROPIC_AUTH_TOKEN": "unused",
        "ANTHROPIC_MODEL": "chat",
        "ANTHROPIC_SMALL_FAST_MODEL": "chat",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    arguments = ("-p", ASKS, "--allowedTools", "Bash", "--output-format", "json")
    result: Mapping[str, Any] = json.loads(run(CLAUDE_CODE, *arguments, home=tmp_path, **settings))
    assert (result["result"], result["is_error"], result["num_turns"]) == (SAID, False, 2)
    check_loop(site, "/v1/messages")


def test_codex_runs_a_tool_loop_to_its_end(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / ".codex"
    folder.mkdir()
    provider = f'name = "own"\nbase_url = "{site.url}/v1"\nwire_api = "responses"\nenv_key = "OWN_KEY"\n'
    (folder / "config.toml").write_text(f'model = "chat"\nmodel_provider = "own"\n[model_providers.own]\n{provider}')
    # Its sandbox needs namespaces that containers seldom allow; the command prints a word.
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
    printed = run(CODEX, "exec", *options, ASKS, home=tmp_path, OWN_KEY="unused")
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (command,) = [item for item in items if item["type"] == "command_execution"]
    assert (command["aggregated_output"], command["exit_code"]) == (PRINTED, 0)
    assert [item["text"] for item in items if item["type"] == "agent_message"] == [SAID]
    assert events[-1]["type"] == "turn.completed"
    check_loop(site, "/v1/responses")
