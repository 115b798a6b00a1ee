"""One turn each of the real Claude Code and Codex on the real application: Ray Serve, vLLM, the default model.

The model is too small to call tools, and its chat template shows it none, which leaves room for the programs' prompts
in its context of 8,192 tokens. A turn is a question and an answer; whether that is right is not checked.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.agents.programs import LIMIT_S, claude_code, codex
from tests.support.processes.launcher import READY_WITHIN_S, launched
from tests.support.processes.project import ROOT

ASKS = "What is the capital of France? Answer in one word."
ANSWERED = re.compile(r'^switchyard_requests_total\{.*dialect="(\w+)".*status="(\d+)"', re.MULTILINE)

pytestmark = [pytest.mark.real, pytest.mark.timeout(READY_WITHIN_S + 2 * LIMIT_S)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with launched(ROOT / "serve_config.yaml", tmp_path_factory.mktemp("run"), {}) as launcher:
        yield launcher.url


def statuses(url: str, dialect: str) -> set[str]:
    """The statuses of the answers so far in a dialect."""
    metrics = httpx.get(f"{url}/metrics", timeout=30).raise_for_status().text
    return {status for name, status in ANSWERED.findall(metrics) if name == dialect}


def test_claude_code_has_a_turn_with_the_default_model(url: str, tmp_path: Path) -> None:
    # Else it allows answers of 32,000 tokens, more than the model's context.
    result = claude_code(url, ASKS, tmp_path, CLAUDE_CODE_MAX_OUTPUT_TOKENS="2048")
    assert (result["is_error"], result["stop_reason"], result["num_turns"]) == (False, "end_turn", 1)
    assert result["result"]
    assert result["usage"]["output_tokens"] > 0
    assert statuses(url, "anthropic") == {"200"}


def test_codex_has_a_turn_with_the_default_model(url: str, tmp_path: Path) -> None:
    events = codex(url, ASKS, tmp_path)
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (text,) = [item["text"] for item in items if item["type"] == "agent_message"]
    assert text
    assert events[-1]["type"] == "turn.completed"
    assert events[-1]["usage"]["output_tokens"] > 0
    assert statuses(url, "openai") == {"200"}
