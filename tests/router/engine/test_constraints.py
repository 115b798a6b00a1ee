"""Schemas, regular expressions and grammars that no text satisfies or that cost too much, in every dialect's fields."""

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from app.engine.constraints import constrained_field
from app.engine.errors import TOO_COSTLY
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import CARD, refuse

VERSION = "?api-version=2024-05-01-preview"
CHAT: Mapping[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
CLAUDE = {**CHAT, "max_tokens": 5}
NOTHING = {"$ref": "#"}
IN_PROPERTY = {"properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]}
PATTERN = {"type": "string", "pattern": r"[^\s\S]"}
REGEX = r"[^\s\S]"
NO_GRAMMAR = "root ::= root"
PASSED = {"extra-parameters": "pass-through"}


def openais(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def tgi_chat(kind: str, value: Any) -> dict[str, Any]:
    return {**CHAT, "response_format": {"type": kind, "value": value}}


def generation(kind: str, value: Any) -> dict[str, Any]:
    return {"inputs": "x", "parameters": {"grammar": {"type": kind, "value": value}}}


def forced(tool: dict[str, Any], choice: Any) -> dict[str, Any]:
    return {**CHAT, "tools": [tool], "tool_choice": choice}


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": NOTHING}}
CLAUDES = {"name": "f", "input_schema": {"type": "object", **IN_PROPERTY}}
FRIENDLI = {"x-friendli-team": "t"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, str], int, str]] = {
    "tgi regex": ("/generate", generation("regex", REGEX), {}, 422, "parameters.grammar"),
    "tgi json": ("/tgi/chat/generate", generation("json", IN_PROPERTY), {}, 422, "parameters.grammar"),
    "tgi root": ("/tgi/chat", generation("regex", REGEX), {}, 422, "parameters.grammar"),
    "tgi chat regex": ("/tgi/chat/v1/chat/completions", tgi_chat("regex", REGEX), {}, 422, "response_format"),
    "tgi chat json": ("/v1/chat/completions", tgi_chat("json", IN_PROPERTY), {}, 422, "response_format"),
    "tgi chat schema": ("/tgi/v1/chat/completions", {**CHAT, **openais(NOTHING)}, {}, 422, "response_format"),
    "vertex": (
        "/vertex",
        {"instances": [{"inputs": "x"}, generation("regex", REGEX)]},
        {},
        422,
        "instances[1]: parameters.grammar",
    ),
    "vertex, too long": (
        "/vertex",
        {"instances": [generation("regex", "a" * 8193)]},
        {},
        422,
        "instances[0]: parameters.grammar",
    ),
    "vertex, too repetitive": (
        "/vertex",
        {"instances": [generation("regex", "a{60000}b{60000}")]},
        {},
        422,
        "instances[0]: parameters.grammar",
    ),
    "vertex chat": ("/vertex", {"instances": [tgi_chat("regex", REGEX)]}, {}, 422, "instances[0]: response_format"),
    "friendli schema": ("/serverless/v1/chat/completions", {**CHAT, **openais(NOTHING)}, {}, 400, "response_format"),
    "friendli regex": (
        "/dedicated/v1/chat/completions",
        {**CHAT, "response_format": {"type": "regex", "schema": REGEX}},
        {},
        400,
        "response_format",
    ),
    "friendli completion": (
        "/serverless/v1/completions",
        {"model": "chat", "prompt": "x", "response_format": {"type": "regex", "schema": REGEX}},
        {},
        400,
        "response_format",
    ),
    "friendli tool": ("/serverless/v1/chat/completions", forced(FUNCTION, "required"), {}, 400, "tools"),
    "anthropic": (
        "/v1/messages",
        {**CLAUDE, "output_config": {"format": {"type": "json_schema", "schema": NOTHING}}},
        {},
        400,
        "output_config",
    ),
    "anthropic tool": (
        "/v1/messages",
        {**CLAUDE, "tools": [CLAUDES], "tool_choice": {"type": "any"}},
        {},
        400,
        "tools",
    ),
    "databricks": ("/serving-endpoints/chat/invocations", {**CHAT, **openais(NOTHING)}, {}, 400, "response_format"),
    "databricks pattern": (
        "/serving-endpoints/chat/completions",
        {**CHAT, **openais(PATTERN)},
        {},
        400,
        "response_format",
    ),
    "databricks responses": (
        "/serving-endpoints/responses",
        {"model": "chat", "input": "x", "text": {"format": openais(NOTHING)["response_format"]}},
        {},
        400,
        "text",
    ),
    "databricks tool": ("/serving-endpoints/chat/invocations", forced(FUNCTION, "required"), {}, 400, "tools"),
    "azure": (f"/chat/completions{VERSION}", {**CHAT, **openais(NOTHING)}, {}, 400, "response_format"),
    "azure regex": (
        f"/models/chat/completions{VERSION}",
        {**CHAT, "structured_outputs": {"regex": REGEX}},
        PASSED,
        400,
        "structured_outputs",
    ),
    "azure grammar": (
        f"/azure/completions{VERSION}",
        {"model": "chat", "prompt": "x", "max_tokens": 5, "structured_outputs": {"grammar": NO_GRAMMAR}},
        PASSED,
        400,
        "structured_outputs",
    ),
    "openai responses": (
        "/v1/responses",
        {"model": "chat", "input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": NOTHING}}},
        {},
        400,
        "text",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_names_the_clients_field_and_no_engine_is_called(rig: Rig, case: str) -> None:
    rig.change(defaults={"chat": "chat", "completions": "chat"})
    rig.chat_endpoint(fallback=["green"])
    rig.blue.card = rig.green.card = CARD
    path, body, headers, status, field = CASES[case]
    answer = httpx.post(rig.url + path, json=body, headers=headers)
    assert (answer.status_code, rig.blue.requests, rig.green.requests) == (status, [], [])
    assert f"{field}: " in answer.text
    assert "structured_outputs" not in answer.text or field == "structured_outputs"


def satisfiable(body: Mapping[str, Any]) -> Any:
    text = json.dumps(body)
    for nothing, something in (
        (json.dumps(NOTHING), '{"type": "object"}'),
        ('"$ref": "#/properties/a"', '"type": "string"'),
        (json.dumps(REGEX), '"a+"'),
        (json.dumps(NO_GRAMMAR), json.dumps('root ::= "a"')),
    ):
        text = text.replace(nothing, something)
    return json.loads(text)


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("vertex")])  # these name no instance
def test_what_is_too_costly_for_one_deployment_is_the_clients_field_and_tried_nowhere_else(rig: Rig, case: str) -> None:
    rig.change(defaults={"chat": "chat", "completions": "chat"})
    rig.chat_endpoint(fallback=["green"])
    rig.blue.card = rig.green.card = CARD
    rig.blue.answer = refuse(400, f"{TOO_COSTLY}: it takes more than 1 s to be read")
    path, body, headers, status, field = CASES[case]
    answer = httpx.post(rig.url + path, json=satisfiable(body), headers=headers)
    if case.startswith("azure"):
        status = 422  # Azure's for a parameter that the model refuses
    assert (answer.status_code, len(rig.blue.requests), rig.green.requests) == (status, 1, []), answer.text
    assert constrained_field(rig.blue.requests[0]) is not None
    assert f"{field}: {TOO_COSTLY}" in answer.text


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("regex", REGEX),
        ("regex", "a" * 8193),
        ("regex", "a{60000}b{60000}"),
        ("json", {"properties": {}, "description": "a" * 1024**2}),
        ("json", IN_PROPERTY),
    ],
    ids=["satisfied by nothing", "too long", "too repetitive", "too large", "a schema that nothing satisfies"],
)
def test_an_instance_of_vertex_is_refused_for_the_reason_that_refuses_it_alone(rig: Rig, type: str, value: Any) -> None:
    rig.change(defaults={"completions": "chat"})
    alone = httpx.post(f"{rig.url}/generate", json=generation(type, value)).json()["error"]
    among = httpx.post(f"{rig.url}/vertex", json={"instances": [{"inputs": "x"}, generation(type, value)]})
    named = alone.replace("parameters.grammar: ", "instances[1]: parameters.grammar: ")
    assert (among.status_code, among.json()["error"]) == (422, named != alone and named)
    assert rig.blue.requests == rig.green.requests == []
