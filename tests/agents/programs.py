"""Claude Code and Codex, as `make agents` installs them, each with its own home, environment and settings."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.processes.project import ROOT

LIMIT_S = 600
"""How long one run of a program may take."""

_MODULES = ROOT / "tests" / "agents" / "node_modules"
_CLAUDE_CODE = _MODULES / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
_CODEX = _MODULES / ".bin" / "codex"
PROGRAMS = (_CLAUDE_CODE.parent, _CODEX.parent)
"""Their directories."""


def claude_code(url: str, asked: str, home: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """The result of one run of Claude Code with the endpoint `chat` of the router at `url`."""
    settings = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "unused",
        "ANTHROPIC_MODEL": "chat",
        "ANTHROPIC_SMALL_FAST_MODEL": "chat",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        **variables,
    }
    result: dict[str, Any] = json.loads(
        _run(_CLAUDE_CODE, ["-p", asked, "--output-format", "json", *arguments], home, settings)
    )
    return result


def codex(url: str, asked: str, home: Path) -> list[dict[str, Any]]:
    """The events of one run of Codex with the endpoint `chat` of the router at `url`."""
    folder = home / ".codex"
    folder.mkdir()
    provider = f'name = "own"\nbase_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "OWN_KEY"\n'
    (folder / "config.toml").write_text(f'model = "chat"\nmodel_provider = "own"\n[model_providers.own]\n{provider}')
    # Its sandbox needs namespaces that containers seldom allow; the command prints a word.
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    printed = _run(_CODEX, ["exec", *options, asked], home, {"OWN_KEY": "unused"})
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def _run(program: Path, arguments: Sequence[str], home: Path, variables: dict[str, str]) -> str:
    """What a program prints."""
    assert program.exists(), "`make agents` installs it"
    ended = subprocess.run(
        [program, *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(home), **variables},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
