"""The functions that a model may call, in every API: their names and parameters."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.dialects.anthropic.dialect import Anthropic
from app.dialects.azure.dialect import Azure
from app.dialects.base import Dialect, ParseContext, Request, ServingContext
from app.dialects.databricks.dialect import Databricks
from app.dialects.friendli.dialect import Friendli
from app.dialects.openai.dialect import OpenAI
from app.dialects.tgi.dialect import TGI
from app.errors import ClientError
from tests.support.clients.dialect_calls import outcome
from tests.support.clients.samples import CONFIG, CONTEXT, MODEL, SERVED

SERVING = ServingContext(SERVED.deployment, SERVED.settings, MODEL)
ASKS: Mapping[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
INPUT: Mapping[str, Any] = {"model": "chat", "input": "hi"}
APIS: Mapping[str, tuple[Dialect, str, Mapping[str, Any], str]] = {
    "openai": (OpenAI(), "chat", ASKS, "tools[0].function"),
    "openai functions": (OpenAI(), "chat", ASKS, "functions[0]"),
    "openai responses": (OpenAI(), "responses", INPUT, "tools[0]"),
    "anthropic": (Anthropic(), "messages", {**ASKS, "max_tokens": 5}, "tools[0]"),
    "azure": (Azure(), "chat", ASKS, "tools[0].function"),
    "databricks": (Databricks(), "invocations", ASKS, "tools[0].function"),
    "databricks responses": (Databricks(), "responses", INPUT, "tools[0]"),
    "tgi": (TGI(), "chat", ASKS, "tools[0].function"),
    "friendli": (Friendli(), "chat", ASKS, "tools[0].function"),
}
"""The dialect, its operation, a body without tools, and the place of a function in a body with one."""


def offer(api: str, name: str, parameters: Mapping[str, Any]) -> None:
    """Offers a function, up to the request to the engine."""
    dialect, operation, body, place = APIS[api]
    field = "input_schema" if api == "anthropic" else "parameters"
    function: Mapping[str, Any] = {"name": name, field: parameters}
    tool = {"type": "function", **({"function": function} if place.endswith("function") else function)}
    if api == "anthropic":
        tool = {**function}
    tools = {"functions": [function]} if place.startswith("functions") else {"tools": [tool]}
    content = json.dumps({**body, **tools}).encode()
    query = {"api-version": "2024-05-01-preview"}  # Azure's
    request = Request("POST", "/x", content, params={"name": "chat"}, query=query)
    outcome(dialect.parse(operation, request, ParseContext(CONFIG, CONTEXT.random)), SERVING)


each = pytest.mark.parametrize("api", APIS)


@each
@pytest.mark.parametrize(
    ("name", "parameters", "place"),
    [
        ("a b", {"type": "object"}, "name"),
        ("", {"type": "object"}, "name"),
        ("f", {"type": "banana"}, "type"),
        ("f", {"type": ["string", "null"]}, "type"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_by_its_place(
    api: str, name: str, parameters: Mapping[str, Any], place: str
) -> None:
    with pytest.raises(ClientError) as raised:
        offer(api, name, parameters)
    field = "input_schema" if api == "anthropic" else "parameters"
    assert raised.value.param == APIS[api][3] + (".name" if place == "name" else f".{field}.type")


@each
@pytest.mark.parametrize("parameters", [{}, {"type": "object"}, {"$ref": "#/$defs/a", "$defs": {"a": {}}}])
def test_names_of_agents_tools_and_schemas_of_objects_pass(api: str, parameters: Mapping[str, Any]) -> None:
    offer(api, "mcp__some-server__Read_file2", parameters)


@pytest.mark.parametrize("api", ["openai", "openai responses", "anthropic", "friendli"])
@pytest.mark.parametrize("name", ["files.read", "mcp:server/tool", "größe", "a" * 128])
def test_names_of_mcps_tools_pass_where_the_vendor_has_no_rule_of_its_own(api: str, name: str) -> None:
    offer(api, name, {"type": "object"})
