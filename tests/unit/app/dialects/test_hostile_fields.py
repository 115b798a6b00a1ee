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
from app.dialects.registry import DIALECTS
from app.dialects.tgi.fields import Parameters
from app.errors import BadRequest, Broken, ClientError, NotFound, Rejected, SwitchyardError, Unprocessable
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
