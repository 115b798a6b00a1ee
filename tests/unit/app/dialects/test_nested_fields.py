"""Nested fields, in every dialect: read, refused by name, or listed in the docs as without effect."""

import copy
import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from anthropic.types import MessageCountTokensParams
from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming as BetaMessage
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as AnthropicMessage
from azure.ai.inference import models as azure
from friendli import models as friendli
from huggingface_hub import ChatCompletionInput, TextGenerationInput
from hypothesis import given
from hypothesis import strategies as st
from openai.types.beta.response_create_params import ResponseCreateParamsNonStreaming as BetaResponse
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as OpenAIChat
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming as OpenAIResponse
from text_generation.types import ChatRequest
from text_generation.types import Request as TextGenerationRequest
from typing_extensions import TypedDict

from app.config.schema import parse as parse_config
from app.dialects.base import Call, Dialect, ParseContext, Request, Route
from app.dialects.bodies import IDLE, REQUEST, SHAPES, field_path, request_object
from app.dialects.registry import DIALECTS
from app.dialects.tgi.fields import Parameters
from app.errors import BadRequest, ClientError
from tests.support.clients.request_types import fields_of, is_misspelt, samples
from tests.support.clients.samples import CONTEXT


class AzureChat(TypedDict):
    """The arguments of `ChatCompletionsClient.complete` that hold objects."""

    messages: list[azure.ChatRequestMessage]
    response_format: azure.JsonSchemaFormat
    tool_choice: azure.ChatCompletionsNamedToolChoice
    tools: list[azure.ChatCompletionsToolDefinition]


CLIENTS_TYPES: list[Any] = [
    AnthropicMessage,
    AzureChat,
    BetaMessage,
    BetaResponse,
    ChatCompletionInput,
    ChatRequest,
    InputTokenCountParams,
    MessageCountTokensParams,
    OpenAIChat,
    OpenAIResponse,
    TextGenerationInput,
    TextGenerationRequest,
    *(getattr(friendli, name) for name in dir(friendli) if name.endswith("ChatCompletionBody")),
]


@pytest.mark.parametrize("kind", CLIENTS_TYPES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_no_field_of_a_clients_types_is_a_misspelling(kind: Any) -> None:
    bodies = [body for body in samples(kind) if isinstance(body, dict)]
    assert {name for body in bodies for name in body} == fields_of(kind).keys()
    assert not any(map(is_misspelt, bodies))


def test_every_parameter_of_tgi_is_known() -> None:
    assert Parameters.model_fields.keys() <= SHAPES["parameters"].kinds.keys()


def places() -> Iterator[tuple[list[str], str]]:
    """A way to objects of each kind: the fields that lead to it."""
    ways = {kind: [name] for name, kind in REQUEST.items()}
    while missing := {
        inner: [*way, name]
        for kind, way in ways.items()
        for name, inner in SHAPES[kind].kinds.items()
        if inner is not None and inner not in ways
    }:
        ways |= missing
    assert ways.keys() == SHAPES.keys()
    for kind, way in ways.items():
        yield way, kind


def slips(name: str) -> Iterator[str]:
    """`name` with a letter left out, doubled, or swapped with the next."""
    for place, letter in enumerate(name):
        yield name[:place] + name[place + 1 :]
        yield name[:place] + letter + name[place:]
    for place, (one, other) in enumerate(pairwise(name)):
        yield name[:place] + other + one + name[place + 2 :]


def inside(way: Iterable[str], value: Any) -> Any:
    for name in reversed(list(way)):
        value = {name: value}
    return value


@pytest.mark.parametrize(("way", "kind"), [pytest.param(way, kind, id=kind) for way, kind in places()])
@pytest.mark.parametrize("listed", [False, True])
def test_every_slip_in_a_field_is_refused_by_name(way: list[str], kind: str, listed: bool) -> None:
    known = SHAPES[kind].kinds.keys()
    for field in known:
        for slip in {slip for slip in slips(field) if len(field) >= 4 and slip not in known}:
            value = {slip: "x"}
            with pytest.raises(BadRequest) as refused:
                request_object(json.dumps(inside(way, [0, value] if listed else value)).encode())
            place = field_path([*way, *([1] if listed else []), slip])
            assert refused.value.param == place
            assert refused.value.message.startswith(f"{place}: unknown field; did you mean ")
            assert field in SHAPES[kind].meant(slip)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tool_cals", "tool_calls"),
        ("toolCalls", "tool_calls"),
        ("tool-calls", "tool_calls"),
        ("contemt", "content"),
        ("contnet", "content"),
        ("nmae", "name"),
    ],
)
def test_what_was_meant_is_named(name: str, meant: str) -> None:
    with pytest.raises(BadRequest, match=f"messages\\[0\\].{name}: unknown field; did you mean {meant}"):
        request_object(json.dumps({"messages": [{"role": "user", name: "x"}]}).encode())


def test_a_field_beside_the_one_that_it_resembles_is_no_misspelling() -> None:
    body = {"messages": [{"role": "user", "content": "x", "contents": [], "toolCalls": [], "tool_calls": []}]}
    assert request_object(json.dumps(body).encode()) == body


@pytest.mark.parametrize("name", ["gist", "provider_specific_fields", "x", "", "id2", "_internal", "übung", "a" * 70])
@pytest.mark.parametrize(("way", "kind"), [pytest.param(way, kind, id=kind) for way, kind in places()])
def test_fields_that_resemble_none_pass(way: list[str], kind: str, name: str) -> None:
    body = inside(way, {name: {"contnet": 1}})
    assert request_object(json.dumps(body).encode()) == body


@given(st.sampled_from(sorted(SHAPES)), st.text(min_size=1, max_size=20))
def test_a_word_with_two_other_letters_is_no_misspelling(kind: str, word: str) -> None:
    letters = word.replace("_", "").replace("-", "").lower()
    for field in SHAPES[kind].meant(word):
        meant = field.replace("_", "")
        assert abs(len(letters) - len(meant)) <= 1
        assert sum(letter not in meant for letter in letters) <= 1


@pytest.mark.parametrize("field", ["parameters", "input_schema", "schema", "arguments", "input", "metadata"])
def test_fields_with_the_callers_own_names_are_not_searched(field: str) -> None:
    own = {field: {"contnet": 1, "nmae": {"tpye": "x"}}}
    body = {
        "messages": [{"content": [own], "tool_calls": [{"function": own}]}],
        "tools": [{"function": own}, own],
        "response_format": {"json_schema": own},
        "metadata": own,
    }
    request_object(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"reasoning": {"max_tokens": 100}}, "reasoning.max_tokens"),
        (
            {"messages": [{"content": [{"type": "text", "text": "x", "image_url": {"url": "y"}}]}]},
            "messages[0].content[0].image_url",
        ),
        (
            {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "y"}, "text": "x"}]}]},
            "messages[0].content[0].text",
        ),
    ],
)
def test_what_the_caller_relies_on_and_nobody_would_read_is_refused(body: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequest) as refused:
        request_object(json.dumps(body).encode())
    assert refused.value.param == path
    assert refused.value.message.startswith(f"{path}: ")


def test_an_empty_field_of_another_type_passes() -> None:
    body = {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "y"}, "text": ""}]}]}
    assert request_object(json.dumps(body).encode()) == body


def test_a_body_of_unknown_fields_is_not_compared_without_end() -> None:
    objects = [{f"tool_ca{number:05}": 0 for number in range(5000)} for _ in range(3)]
    body = json.dumps({"messages": [*objects, {"tool_cals": 0}]}).encode()
    assert request_object(body)["messages"][3] == {"tool_cals": 0}


CONFIG = parse_config(
    {
        "endpoints": {"chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"blue": 100}}},
        "deployments": {"blue": {"url": "http://blue", "model": "m"}},
        "defaults": {"completions": "chat", "chat": "chat"},
    }
)


def chats() -> Iterator[tuple[Dialect, Route, str]]:
    """Every route of every dialect whose body has messages or an input of items."""
    for dialect in DIALECTS:
        for route in dialect.routes:
            fields = {name for body in dialect.bodies.get(route.operation, ()) for name in body.model.model_fields}
            if "messages" in fields:
                yield dialect, route, "messages"
            elif route.operation in ("responses", "input_tokens"):
                yield dialect, route, "input"


def routes(*fields: str) -> list[Any]:
    """The `chats` with one of these fields, as parameters."""
    return [pytest.param(*chat, id=f"{chat[0].name} {chat[1].path}") for chat in chats() if chat[2] in fields]


def sent(route: Route, body: dict[str, Any]) -> Request:
    params = {name: "chat" for name in ("name", "endpoint", "deployment") if f"{{{name}" in route.path}
    query = {"api-version": "2024-05-01-preview"}
    return Request(route.method, route.path, json.dumps(body).encode(), params, query)


def parsed(dialect: Dialect, route: Route, body: dict[str, Any]) -> Call:
    return dialect.parse(route.operation, sent(route, body), ParseContext(CONFIG, CONTEXT.random))


def least(route: Route, field: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    """A request with what its route requires."""
    limit = {"max_tokens": 5} if route.operation in ("messages", "chat") else {}
    return {"model": "chat", **limit, field: items}


@pytest.mark.parametrize(("dialect", "route", "field"), routes("messages", "input"))
def test_every_dialect_names_a_misspelt_field_in_its_own_form(dialect: Dialect, route: Route, field: str) -> None:
    body = least(route, field, [{"role": "user", "content": "hi", "tool_cals": []}])
    with pytest.raises(ClientError) as refused:
        parsed(dialect, route, body)
    reply = dialect.render_error(refused.value, route.operation, sent(route, body))
    assert 400 <= reply.status < 500
    assert f"{field}[0].tool_cals: unknown field; did you mean tool_calls?" in reply.body.decode()


USER: dict[str, Any] = {"role": "user", "content": "hi"}
ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "The"}


@pytest.mark.parametrize(("dialect", "route", "field"), routes("messages"))
def test_an_answer_continues_the_last_message_or_its_prefix_is_refused(
    dialect: Dialect, route: Route, field: str
) -> None:
    body = least(route, field, [USER, {**ASSISTANT, "prefix": True}])
    if dialect.name in ("anthropic", "databricks") or route.operation in ("classify", "embeddings", "pooling"):
        with pytest.raises(ClientError, match=r"messages\[1\]"):
            parsed(dialect, route, body)
    else:
        engine_body = parsed(dialect, route, body).body
        assert engine_body["continue_final_message"] is True
        assert engine_body["add_generation_prompt"] is False
        assert engine_body["messages"] == [USER, ASSISTANT]
    for messages in ([{**ASSISTANT, "prefix": True}, USER], [{**USER, "prefix": True}], [{**USER, "prefix": "yes"}]):
        with pytest.raises(ClientError, match=r"messages\[0\]\.prefix"):
            parsed(dialect, route, least(route, field, messages))


@pytest.mark.parametrize(("dialect", "route", "field"), routes("messages"))
@pytest.mark.parametrize("content", ["The", [{"type": "text", "text": "The"}]])
def test_only_tgi_continues_the_models_last_message_unasked(
    dialect: Dialect, route: Route, field: str, content: Any
) -> None:
    if dialect.name == "anthropic" and route.operation == "messages":
        return  # refused
    body = parsed(dialect, route, least(route, field, [USER, {**ASSISTANT, "content": content}])).body
    continues = dialect.name == "tgi"
    assert (body.get("continue_final_message", False), body.get("add_generation_prompt", True)) == (
        continues,
        not continues,
    )
    for last in (USER, {"role": "assistant", "content": ""}):
        assert "continue_final_message" not in parsed(dialect, route, least(route, field, [ASSISTANT, last])).body


TAKES_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
PROPERTIES: dict[str, Any] = {"properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(("dialect", "route", "field"), routes("messages", "input"))
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, TAKES_NOTHING),
        ({}, TAKES_NOTHING),
        (PROPERTIES, {"type": "object", **PROPERTIES}),
        ({"type": "object"}, {"type": "object"}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, {"$ref": "#/$defs/a", "$defs": {"a": {}}}),
    ],
)
def test_the_arguments_of_every_function_are_an_object(
    dialect: Dialect, route: Route, field: str, given: Any, expected: Any
) -> None:
    if not any("tools" in body.model.model_fields for body in dialect.bodies[route.operation]):
        return
    name = "input_schema" if dialect.name == "anthropic" else "parameters"
    function = {"name": "f", name: {} if given is None and dialect.name == "anthropic" else given}
    is_flat = dialect.name == "anthropic" or field == "input"
    tool = {"type": "custom" if dialect.name == "anthropic" else "function"}
    tools = [{**tool, **function} if is_flat else {**tool, "function": function}]
    (engine_tool,) = parsed(dialect, route, {**least(route, field, [USER]), "tools": tools}).body["tools"]
    assert (engine_tool if is_flat else engine_tool["function"])[name] == expected


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"id": None}, "[0].id"),
        ({"type": None}, "[0].type"),
        ({"type": "custom"}, "[0].type"),
        ({"function": None}, "[0].function"),
        ({"function": {"arguments": "{}"}}, "[0].function.name"),
        ({"function": {"name": "f", "arguments": 5}}, "[0].function.arguments"),
        (..., ""),
    ],
)
@pytest.mark.parametrize(("dialect", "route", "field"), routes("messages"))
def test_a_wrong_call_of_a_tool_is_refused_by_its_place(
    dialect: Dialect, route: Route, field: str, wrong: Any, place: str
) -> None:
    if dialect.name == "anthropic" or route.operation in ("classify", "embeddings", "pooling"):
        return  # they have none
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calls = 5 if wrong is ... else [{**call, **wrong}]
    with pytest.raises(ClientError) as raised:
        parsed(dialect, route, least(route, field, [USER, {"role": "assistant", "content": "", "tool_calls": calls}]))
    assert str(raised.value.param).startswith(f"messages[1].tool_calls{place}")


VENDORS: dict[str, list[Any]] = {
    "anthropic": [BetaMessage],
    "azure": [AzureChat],
    "databricks": [],  # unknown fields are refused at any depth
    "friendli": [friendli.DedicatedChatCompletionBody],
    "openai": [OpenAIChat, OpenAIResponse],
    "tgi": [ChatCompletionInput],
}
"""The types of each vendor's own clients."""


def vendors_fields(dialect: Dialect) -> dict[str, set[str]]:
    """The fields of each kind of object in the vendor's types."""
    fields: dict[str, set[str]] = {}
    pending = [
        (value, REQUEST[name])
        for kind in VENDORS[dialect.name]
        for body in samples(kind)
        if isinstance(body, dict)
        for name, value in body.items()
        if name in REQUEST
    ]
    while pending:
        value, kind = pending.pop()
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                fields.setdefault(kind, set()).update(item)
                pending += [(inner, k) for name, inner in item.items() if (k := SHAPES[kind].kinds.get(name))]
    return fields


FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"name": "s", "schema": {"type": "object", "properties": {"x": {}}}}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "messages": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "5"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    },
    "blocks": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "5"}]},
        ],
        "tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}],
        "tool_choice": {"type": "auto"},
    },
    "input": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "5"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
        "text": {"format": {"type": "json_schema", **SCHEMA}},
        "reasoning": {"effort": "low"},
    },
}
"""Conversations with an object of each kind."""


def objects(value: Any, kind: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects in a value, each with its kind."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            yield item, kind
            for name, inner in item.items():
                if inner_kind := SHAPES[kind].kinds.get(name):
                    yield from objects(inner, inner_kind)


def without_effect(dialect: Dialect, route: Route, body: dict[str, Any], place: dict[str, Any], name: str) -> bool:
    """Whether a field in an object of a request neither reaches the engine nor is refused by its name."""
    before = parsed(dialect, route, body).body
    for value in ("x", True, {"type": "x"}, [{"type": "x"}]):
        place[name] = value
        try:
            after = parsed(dialect, route, body).body
        except ClientError as refused:
            if name in refused.message:
                return False
        else:
            if after != before:
                return False
        finally:
            del place[name]
    return True


@pytest.mark.parametrize(("dialect", "route", "field"), routes("messages", "input"))
def test_every_field_of_a_vendors_types_is_read_refused_or_listed(dialect: Dialect, route: Route, field: str) -> None:
    if route.operation not in ("chat", "messages", "responses"):
        return  # they read a part of the same body
    known = vendors_fields(dialect)
    parts = CONVERSATIONS["blocks" if dialect.name == "anthropic" else field]
    fields = {name for body in dialect.bodies[route.operation] for name in body.model.model_fields}
    for left_out in ({"response_format"}, {"tools", "tool_choice"}):  # Friendli has either
        own = {name: value for name, value in parts.items() if name in fields - left_out}
        body = copy.deepcopy({**least(route, field, []), **own})
        places = [place for name in own if name in REQUEST for place in objects(body[name], REQUEST[name])]
        lost = {
            f"{kind}.{name}"
            for place, kind in places
            for name in known.get(kind, set()) - place.keys() - set(IDLE.get(kind, ()))
            if without_effect(dialect, route, body, place, name)
        }
        assert not lost
