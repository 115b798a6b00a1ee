"""The programs of docs/use-with/programs.md that cannot run in a test, by requests of the form that each sends."""

from typing import Any

import httpx
import pytest
import yaml

from tests.router.conftest import Rig
from tests.support.clients.documents import blocks
from tests.support.engine.other_answers import every_route
from tests.support.processes.project import ROOT

PAGE = ROOT / "docs" / "use-with" / "programs.md"
HI: list[dict[str, Any]] = [{"role": "user", "content": "Say hello."}]
SYSTEM = [{"role": "system", "content": "You are brief."}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CHAT: dict[str, Any] = {"model": "chat", "messages": HI}

PROGRAMS: dict[str, list[tuple[str, dict[str, Any] | None]]] = {
    "Open WebUI": [
        ("/v1/models", None),
        ("/v1/chat/completions", {**CHAT, **USAGE, "messages": [*SYSTEM, *HI]}),
        ("/v1/chat/completions", {**CHAT, "stream": False, "max_completion_tokens": 1000}),
        ("/v1/embeddings", {"model": "embed", "input": ["a", "b"]}),
    ],
    "LibreChat": [
        ("/v1/models", None),
        ("/v1/chat/completions", {**CHAT, **USAGE, "user": "65f0", "temperature": 1, "top_p": 1}),
        (
            "/v1/chat/completions",
            {**CHAT, "stream": False, "temperature": 0.2, "max_tokens": 16},
        ),
    ],
    "Cline": [
        ("/v1/chat/completions", {**CHAT, **USAGE, "messages": [*SYSTEM, *PARTS], "temperature": 0}),
        (
            "/v1/chat/completions",
            {**CHAT, **USAGE, "tools": [TOOL], "tool_choice": "auto"},
        ),
    ],
    "Continue": [
        ("/v1/chat/completions", {**CHAT, "messages": [*SYSTEM, *PARTS], "max_tokens": 4096, "stream": True}),
        ("/v1/chat/completions", {**CHAT, **USAGE, "tools": [TOOL], "parallel_tool_calls": False, "stop": ["\n\n"]}),
        ("/v1/embeddings", {"model": "embed", "input": ["a"]}),
    ],
    "promptfoo": [
        ("/v1/chat/completions", {**CHAT, "max_tokens": 1024, "temperature": 0, "top_p": 1, "presence_penalty": 0}),
    ],
    "guidellm": [
        ("/health", None),
        (
            "/v1/chat/completions",
            {**CHAT, "messages": PARTS, "max_completion_tokens": 64, "stream": True}
            | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
        (
            "/v1/completions",
            {"model": "chat", "prompt": "Say hello.", "ignore_eos": True, "max_tokens": 9}
            | {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
    ],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_request_of_a_program_is_answered(rig: Rig, program: str) -> None:
    for engine in (rig.blue, rig.green, rig.mini):
        engine.answer = every_route(engine)
    for path, body in PROGRAMS[program]:
        headers = {"authorization": "Bearer unused"}
        url = rig.url + path
        answer = httpx.get(url, headers=headers) if body is None else httpx.post(url, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        if body is not None and body.get("stream"):
            assert "error" not in answer.text
            assert answer.text.endswith("data: [DONE]\n\n")
            assert ('"total_tokens"' in answer.text) == ("stream_options" in body)


def test_the_page_names_every_program_and_its_settings_are_yaml() -> None:
    text = PAGE.read_text()
    assert [program for program in PROGRAMS if f"\n### {program}\n" not in text] == []
    settings = [yaml.safe_load(block.code) for block in blocks(PAGE) if block.language == "yaml clients"]
    assert len(settings) == 4
    assert str(settings).count(":8000/v1") == 5
