"""Every field of every dialect's bodies with absurd values: accepted, or rejected as the client's error."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from app.config.schema import parse as parse_config
from app.dialects.base import Dialect, ParseContext, Request, Route, ServingContext
from app.dialects.bodies import CONTENT
from app.dialects.openai.fields import (
    ENGINE_CHAT,
    ENGINE_COMPLETIONS,
    ENGINE_EMBEDDINGS,
    ENGINE_RESPONSES,
    ENGINE_SCORE,
)
from app.dialects.registry import DIALECTS
from app.dialects.tgi.fields import Parameters
from app.errors import BadRequest, Broken, ClientError, NotFound, Rejected, SwitchyardError, Unprocessable
from app.exchange.request import check_numbers
from app.exchange.response import said
from tests.conftest import NIGHTLY
from tests.support.clients.dialect_calls import engine_body
from tests.support.clients.samples import CONTEXT, MODEL

CONFIG = parse_config(
    {
        "endpoints": {
            "chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"blue": 100}},
            "embed": {"tasks": ["embeddings"], "traffic": {"mini": 100}},
        },
        "deployments": {
            "blue": {"url": "http://blue", "model": "m"},
            "mini": {"url": "http://mini", "model": "m", "tasks": ["embeddings"]},
        },
        "defaults": {"completions": "chat"},
    }
)

VALUES: list[Any] = [
    *(0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, -(10**400)),
    *(1e308, -1e308, 5e-324, -0.0, 0.5, True, False),
    *("", "\0", "é", "😀", "NaN", "{}", "[DONE]", "a" * 70_000, "{0.__class__}", "%s%n", "(a+)+$", "chat:x:y"),
    *([], {}, [[]], [{}], [0], [10**400], [""], [None], {"": {}}, {"type": "text"}, {"type": []}, {"a": 10**400}),
    {"type": "regex", "value": "(" * 500},
    {"type": "json", "value": 10**400},
    {"type": "function", "function": {"name": "f"}},
]

LEAST: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
    "inputs": "hi",
    "tokens": [1],
    "instances": [{"inputs": "hi"}],
    "max_tokens": 5,
    "model": "chat",
}
"""Values for the required fields of any body."""


PASSED = ENGINE_CHAT | ENGINE_COMPLETIONS | ENGINE_EMBEDDINGS | ENGINE_SCORE | ENGINE_RESPONSES
"""vLLM's fields, which some APIs pass on."""


def operations() -> Iterator[Any]:
    for dialect in DIALECTS:
        for operation, bodies in dialect.bodies.items():
            route = next(route for route in dialect.routes if route.operation == operation)
            for body in bodies:
                yield pytest.param(dialect, route, body.model, id=f"{dialect.name}-{operation}-{body.model.__name__}")


def least_body(model: Any) -> dict[str, Any]:
    """A body with only the required fields."""
    return {
        name: LEAST[name] for name, field in model.model_fields.items() if name in LEAST and field.is_required()
    } | ({"prompt": "hi"} if "prompt" in model.model_fields else {})


def request_with(route: Route, body: dict[str, Any]) -> Request:
    return Request(
        route.method,
        route.path,
        json.dumps(body).encode(),
        {name: "chat" for name in ("name", "endpoint", "deployment") if f"{{{name}" in route.path},
        {"api-version": "2024-05-01-preview"},
    )


def handle(dialect: Dialect, route: Route, body: dict[str, Any]) -> None:
    """Runs the steps before a deployment is called: parsing, the engine's request, and the error's rendering."""
    request = request_with(route, body)
    try:
        call = dialect.parse(route.operation, request, ParseContext(CONFIG, CONTEXT.random))
        engine_body(call, ServingContext("blue", CONFIG.deployments["blue"], MODEL))
    except ClientError as error:
        reply = dialect.render_error(error, route.operation, request)
        assert reply.status < 500
        if reply.body and reply.media_type == "application/json":
            json.loads(reply.body)


@pytest.mark.parametrize(("dialect", "route", "model"), list(operations()))
def test_no_value_of_a_field_is_an_internal_error(dialect: Dialect, route: Route, model: Any) -> None:
    least = least_body(model)
    names = [*model.model_fields, "messages", "x"]
    for number, (name, value) in enumerate(itertools.product(names, VALUES)):
        handle(dialect, route, {**least, name: value})
        if NIGHTLY or number % 4 == 0:
            handle(dialect, route, {**least, "stream": True, "n": 2, name: value})


@pytest.mark.parametrize("operation", ["root", "generate", "generate_stream", "tokenize"])
def test_no_value_of_a_tgi_parameter_is_an_internal_error(operation: str) -> None:
    tgi = next(dialect for dialect in DIALECTS if dialect.name == "tgi")
    route = next(route for route in tgi.routes if route.operation == operation)
    for name in Parameters.model_fields:
        for value in VALUES:
            handle(tgi, route, {"inputs": "hi", "parameters": {name: value}})


LARGE_NUMBERS = ("1" + "0" * 30, "-1" + "0" * 30, "1e400", "-1.5E+0400", "1" * 400 + ".5")
"""As they are written: of more than 64 bits, or infinite once they are read."""

CALLERS_OWN = frozenset({"chat_template_kwargs", "client_metadata", "documents", "functions", "metadata", "tools"})

KINDS = frozenset({"input_data", "messages"})
"""Fields that make a request one of another kind on some routes."""

ALTERNATIVES: list[dict[str, Any]] = [
    {},
    {"input": "hi"},
    {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    {"texts": ["a"]},
    {"query": "a", "documents": ["b"]},
    {"query": "a", "texts": ["b"]},
    {"queries": "a", "documents": "b"},
]
"""Fields of which a body has to have some."""


def refusal_of(dialect: Dialect, route: Route, body: dict[str, Any], number: str = "1") -> str:
    """The answer to a body in which `number` stands for the text "number"; "" if it passes to a deployment."""
    request = request_with(route, body)
    request = replace(request, body=request.body.replace(b'"number"', number.encode()))
    try:
        call = dialect.parse(route.operation, request, ParseContext(CONFIG, CONTEXT.random))
        check_numbers(call, request.body)
    except ClientError as error:
        reply = dialect.render_error(error, route.operation, request)
        assert 400 <= reply.status < 500
        return reply.body.decode()
    return ""


@pytest.mark.parametrize(("dialect", "route", "model"), list(operations()))
def test_no_engine_gets_a_number_of_more_than_64_bits_and_the_refusal_names_its_field(
    dialect: Dialect, route: Route, model: Any
) -> None:
    bodies = [{**least_body(model), **others} for others in ALTERNATIVES]
    valid = next(body for body in bodies if not refusal_of(dialect, route, body))
    names = {field.alias or name for name, field in model.model_fields.items()} | PASSED
    cases = itertools.product(sorted(names - CALLERS_OWN - KINDS), ("number", [[1, "number"]]))
    wrong = []
    for (name, value), number in zip(cases, itertools.cycle(LARGE_NUMBERS), strict=False):
        answer = refusal_of(dialect, route, {**valid, name: value}, number)
        if name not in answer and "did you mean" not in answer:
            wrong.append((name, number, value, answer))
    assert wrong == []


SCHEMA = {"type": "object", "properties": {"a": {"default": "number"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
STRICT = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}]
AS_TEXT = json.dumps({"type": "object", "properties": {"a": {"default": 10**30}}, "required": ["a"]})
TOOLS_OF_ANTHROPIC = [{"name": "f", "input_schema": SCHEMA}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
ASKED = [{"role": "user", "content": "hi"}]
USED = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"a": "number"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "b"}]},
]


def answer_to(to: str, fields: dict[str, Any], number: str) -> str:
    name, operation = to.split()
    dialect = next(dialect for dialect in DIALECTS if dialect.name == name)
    route = next(route for route in dialect.routes if route.operation == operation)
    least = {"inputs": "hi"} if operation == "generate" else {"model": "chat", "messages": ASKED}
    return refusal_of(dialect, route, {**least, **fields}, number)


@pytest.mark.parametrize("number", LARGE_NUMBERS)
@pytest.mark.parametrize(
    ("to", "fields", "name"),
    [
        ("openai chat", {"logit_bias": {"5": "number"}}, "logit_bias.5"),
        ("openai chat", {"vllm_xargs": {"a": [1, "number"]}}, "vllm_xargs.a[1]"),
        *(
            ("openai chat", {"vllm_xargs": {own: "number"}}, f"vllm_xargs.{own}")
            for own in ("arguments", "documents", "input", "metadata", "tools")
        ),
        ("openai chat", {"tools": STRICT}, "tools[0].function.parameters.properties.a.default"),
        ("friendli chat", {"response_format": {"type": "json_object", "schema": AS_TEXT}}, "schema.properties.a"),
        ("tgi generate", {"parameters": {"grammar": {"type": "json", "value": AS_TEXT}}}, "grammar"),
        (
            "openai chat",
            {"response_format": FORMAT},
            "response_format.json_schema.schema.properties.a.default",
        ),
        (
            "openai chat",
            {"tools": TOOLS, "tool_choice": "required"},
            "tools[0].function.parameters.properties.a.default",
        ),
        (
            "anthropic messages",
            {"max_tokens": 5, "tools": TOOLS_OF_ANTHROPIC, "tool_choice": {"type": "any"}},
            "tools[0].input_schema.properties.a.default",
        ),
        ("tgi generate", {"parameters": {"x": "number"}}, "parameters.x"),
        ("tgi generate", {"parameters": {"grammar": {"type": "json", "value": SCHEMA}}}, "parameters.grammar.value"),
        ("databricks invocations", {"extra_params": {"stop": "[[number]]"}}, "extra_params.stop[0][0]"),
    ],
)
def test_the_place_of_a_number_of_more_than_64_bits_is_told(
    to: str, fields: dict[str, Any], name: str, number: str
) -> None:
    assert name in answer_to(to, json.loads(json.dumps(fields).replace("[[number]]", f"[[{number}]]")), number)


@pytest.mark.parametrize(
    ("to", "fields"),
    [
        ("openai chat", {"tools": TOOLS}),
        ("openai chat", {"tools": TOOLS, "tool_choice": "auto"}),
        ("openai chat", {"metadata": {"a": "number"}, "documents": [{"id": "number"}]}),
        (
            "openai chat",
            {"seed": 2**63 - 1, "user": "1" * 30, "messages": [*ASKED, {**ASKED[0], "name": "1e400"}]},
        ),
        ("anthropic messages", {"max_tokens": 5, "tools": TOOLS_OF_ANTHROPIC, "tool_choice": {"type": "auto"}}),
        ("anthropic messages", {"max_tokens": 5, "messages": [*ASKED, *USED]}),
        ("tgi generate", {"parameters": {"seed": 2**64 - 1}}),
    ],
)
def test_what_is_the_callers_own_has_numbers_of_any_size(to: str, fields: dict[str, Any]) -> None:
    assert answer_to(to, fields, "1" + "0" * 30) == ""


@pytest.mark.parametrize("role", ["system", "user"])
@pytest.mark.parametrize("to", ["azure chat", "databricks invocations", "friendli chat", "openai chat", "tgi chat"])
def test_a_message_without_the_content_that_its_role_needs_is_refused_by_name(to: str, role: str) -> None:
    for message in ({"role": role}, {"role": role, "content": None}):
        answer = answer_to(to, {"max_tokens": 5, "messages": [*ASKED, message]}, "")
        assert "content" in answer
        assert "messages[1]" in answer


@pytest.mark.parametrize("to", ["azure chat", "databricks invocations", "friendli chat", "openai chat", "tgi chat"])
def test_an_assistant_that_calls_a_tool_needs_no_content(to: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert answer_to(to, {"messages": messages}, "") == ""


@pytest.mark.parametrize(
    ("name", "operation", "field", "least"),
    [
        ("openai", "chat", "n", {}),
        ("openai", "completions", "n", {}),
        ("openai", "completions", "best_of", {}),
        ("databricks", "chat", "n", {"model": "chat"}),
        ("databricks", "completions", "n", {"model": "chat"}),
        ("databricks", "completions", "best_of", {"model": "chat"}),
        ("friendli", "completions", "n", {}),
        ("friendli", "completions", "num_beams", {}),
        ("friendli", "chat", "n", {}),
        ("tgi", "chat", "n", {}),
    ],
)
def test_work_that_a_field_multiplies_is_bounded(name: str, operation: str, field: str, least: dict[str, Any]) -> None:
    dialect = next(dialect for dialect in DIALECTS if dialect.name == name)
    text = {"messages": LEAST["messages"]} if operation == "chat" else {"prompt": "hi"}
    body = {**least, **text, field: 1_000_000}
    with pytest.raises(ClientError, match=field):
        dialect.parse(operation, Request("POST", "/", json.dumps(body).encode()), CONTEXT)


PROMPT = "Zanzibar is lovely"
TALK: list[Any] = [
    PROMPT,
    [PROMPT],
    [[PROMPT]],
    {"x": PROMPT},
    [{"role": "user", "content": PROMPT}],
    [{"content": PROMPT}],
    [{"role": "user", "content": [PROMPT]}],
    [{"role": "user", "content": {"x": PROMPT}}],
    [{"role": "user", "content": [{"type": "text", "text": PROMPT}, {"type": "text", "text": [PROMPT]}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PROMPT}}]}],
    [{"role": "tool", "content": PROMPT, "tool_call_id": [PROMPT], "tool_calls": [{"x": PROMPT}]}],
    [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": 5, "x": PROMPT}]}],
    [{"inputs": PROMPT, "messages": [{"role": "user", "content": PROMPT}]}, {"inputs": [PROMPT]}],
]


@pytest.mark.parametrize(("dialect", "route", "model"), list(operations()))
def test_no_error_quotes_the_prompt(dialect: Dialect, route: Route, model: Any) -> None:
    """Whatever is wrong with a request: its error is shown to operators, who may not read prompts."""
    least = least_body(model)
    texts = [name for name in model.model_fields if name in CONTENT]
    wrong = [
        {**least, **dict.fromkeys(texts, value), name: bad} for value in TALK for name in least for bad in VALUES[:1]
    ]
    wrong += [{**least, name: value} for name in texts for value in TALK]
    wrong += [
        {**least, **dict.fromkeys(texts, value), name: bad}
        for name in model.model_fields
        if name not in texts
        for value in TALK[4:5]
        for bad in VALUES
    ]
    bodies = [json.dumps(body).encode() for body in wrong]
    bodies += [body[:-end] for body in bodies[: len(TALK)] for end in range(1, len(body) // 2, 7)]
    bodies += [body.replace(b"Zanzibar", b"Zanzibar\x01") for body in bodies[:5]]
    told = []
    for body in bodies:
        request = replace(request_with(route, {}), body=body)
        try:
            call = dialect.parse(route.operation, request, ParseContext(CONFIG, CONTEXT.random))
            engine_body(call, ServingContext("blue", CONFIG.deployments["blue"], MODEL))
        except ClientError as error:
            told.append(said(error, dialect.render_error(error, route.operation, request).body))
    assert told
    assert all(one.text for one in told)
    assert [one for one in told if "Zanzibar" in str(one)] == []


LARGEST_ERROR = 8 * 1024
LONG = 64 * 1024
LONG_VALUES: list[Any] = ["é" * (LONG // 2), ["a" * LONG], {"a" * LONG: 5}]


@pytest.mark.parametrize(("dialect", "route", "model"), list(operations()))
def test_the_error_for_a_long_value_is_small(dialect: Dialect, route: Route, model: Any) -> None:
    """Each field has one of the values, and in nightly runs all of them."""
    every = itertools.product(model.model_fields, LONG_VALUES)
    cases = every if NIGHTLY else zip(model.model_fields, itertools.cycle(LONG_VALUES), strict=False)
    bodies = [{**least_body(model), name: value} for name, value in cases]
    for body in [*bodies, {**least_body(model), "x" * LONG: 5}]:
        request = request_with(route, body)
        answer = b""
        try:
            dialect.parse(route.operation, request, ParseContext(CONFIG, CONTEXT.random))
        except ClientError as error:
            answer = dialect.render_error(error, route.operation, request).body
        assert len(answer) < LARGEST_ERROR


@pytest.mark.parametrize("character", ["a", "é", "😀", "\0", '"'])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_the_error_that_quotes_a_long_value_is_small(dialect: Dialect, character: str) -> None:
    long = character * LONG
    errors: list[SwitchyardError] = [
        NotFound(f"There is no endpoint '{long}'; the endpoints are: chat", param="model"),
        BadRequest(f"{long}: unknown", param=long),
        Rejected(f"engine: {long}", status=400, param=long),
        Broken(f"Deployment: {long}"),
        *(Unprocessable(f"`adapter_id` {long}", param=long, value=value) for value in (long, [long], {long: long})),
    ]
    for error in errors:
        for operation in {route.operation: route for route in dialect.routes}.values():
            reply = dialect.render_error(error, operation.operation, request_with(operation, {}))
            assert len(reply.body) < LARGEST_ERROR, type(error)


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    error = NotFound(f"There is no endpoint '{'a' * LONG}'; the endpoints are: chat", param="model")
    assert error.message.startswith("There is no endpoint 'aa")
    assert error.message.endswith("aa'; the endpoints are: chat")
    error.message = error.param = "b" * LONG
    assert len(error.message + error.param) < 1000
