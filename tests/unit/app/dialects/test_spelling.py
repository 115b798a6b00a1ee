"""Misspelt nested fields are refused by name, in every dialect; what clients may send besides passes."""

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
from app.dialects.base import Dialect, ParseContext, Request, Route
from app.dialects.bodies import field_path
from app.dialects.registry import DIALECTS
from app.dialects.spelling import REQUEST, SHAPES, request_object
from app.dialects.tgi.fields import Parameters
from app.errors import BadRequest, ClientError
from tests.support.clients.request_types import fields_of, samples
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
    for body in bodies:
        request_object(json.dumps(body).encode())


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


def chats() -> Iterator[Any]:
    """Every route of every dialect whose body has messages or an input of items."""
    for dialect in DIALECTS:
        for route in dialect.routes:
            fields = {name for body in dialect.bodies.get(route.operation, ()) for name in body.model.model_fields}
            if "messages" in fields:
                yield pytest.param(dialect, route, "messages", id=f"{dialect.name} {route.path}")
            elif route.operation in ("responses", "input_tokens"):
                yield pytest.param(dialect, route, "input", id=f"{dialect.name} {route.path}")


@pytest.mark.parametrize(("dialect", "route", "field"), list(chats()))
def test_every_dialect_names_a_misspelt_field_in_its_own_form(dialect: Dialect, route: Route, field: str) -> None:
    body = {"model": "chat", "max_tokens": 5, field: [{"role": "user", "content": "hi", "tool_cals": []}]}
    params = {name: "chat" for name in ("name", "endpoint", "deployment") if f"{{{name}" in route.path}
    query = {"api-version": "2024-05-01-preview"}
    request = Request(route.method, route.path, json.dumps(body).encode(), params, query)
    with pytest.raises(ClientError) as refused:
        dialect.parse(route.operation, request, ParseContext(CONFIG, CONTEXT.random))
    reply = dialect.render_error(refused.value, route.operation, request)
    assert 400 <= reply.status < 500
    assert f"{field}[0].tool_cals: unknown field; did you mean tool_calls?" in reply.body.decode()
