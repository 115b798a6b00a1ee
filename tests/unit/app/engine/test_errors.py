"""Errors and usage in the engine's answers."""

import json
from typing import Any

import pytest

from app.engine.errors import (
    engine_error,
    engine_message,
    field_named_in,
    media_refused,
    with_own_field,
    with_public_name,
)
from app.engine.output import Usage, find_usage
from app.errors import Broken, Rejected


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b'{"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3}}', Usage(9, 3)),
        (b'{"usage": {"prompt_tokens": 9, "completion_tokens": 3}}', Usage(9, 3)),
        (b'{"usage":{"input_tokens":4,"output_tokens":5}}', Usage(4, 5)),
        (b'{"usage":{"prompt_tokens":9,"total_tokens":9}}', Usage(9, 0)),
        (json.dumps({"text": '"usage":{"prompt_tokens":1}', "usage": {"prompt_tokens": 2}}).encode(), Usage(2, 0)),
        (json.dumps({"text": '"usage":{"prompt_tokens":1}'}).encode(), None),
        (b'{"usage":null}', None),
        (b'{"usage":{"prompt_tokens":%b,"completion_tokens":3}}' % (b"9" * 5_000), Usage(0, 3)),
        (b"", None),
    ],
)
def test_usage_is_found_and_never_mistaken(body: bytes, usage: Usage | None) -> None:
    assert find_usage(body) == usage


def error(message: str, code: object = 400, param: str | None = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": "X", "param": param, "code": code}}).encode()


def test_a_rejection_keeps_its_status_and_field() -> None:
    raised = engine_error(error("bad", 404, "body.messages.0.role"), 404)
    assert isinstance(raised, Rejected)
    assert (raised.status, raised.param, raised.message) == (404, "messages[0].role", "messages[0].role: bad")


@pytest.mark.parametrize(
    "body", [error("The model `x` does not exist.", 404, "model"), error("The model `x` does not exist.", 404)]
)
def test_a_model_that_the_engine_lacks_is_not_the_clients_fault(body: bytes) -> None:
    assert isinstance(engine_error(body, 404), Broken)


def test_a_text_that_is_too_long_is_no_field_of_vllms_own_name() -> None:
    raised = engine_error(
        error("The context is 10 tokens. (parameter=input_tokens, value=11)", 400, "input_tokens"), 400
    )
    assert (raised.message, raised.param) == ("The context is 10 tokens.", None)


def test_pydantics_list_of_errors_becomes_one_sentence() -> None:
    listed = "1 validation error:\n  {'type': 'x', 'loc': ('body', 'n'), 'msg': \"Value error, it's odd\", 'input': 1}"
    assert engine_error(error(listed, 400, "body.n"), 400).message == "n: it's odd"


BLOCKS = ("content", "list[AnthropicContentBlock]")


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        (
            [("string_type", ("stop", "str"), "a string"), ("too_long", ("stop", "list[str]"), "at most 4 items")],
            "stop: at most 4 items",
        ),
        (
            [
                ("string_type", ("messages", 0, "content", "str"), "a string"),
                ("model_type", ("messages", 0, *BLOCKS, 0), "an instance of AnthropicContentBlock"),
            ],
            "messages[0].content[0]: Input should be an object",
        ),
        (
            [
                ("string_type", ("messages", 0, "content", "str"), "a string"),
                ("missing", ("messages", 0, *BLOCKS, 0, "type"), "required"),
                ("missing", ("tools", 0, "function", "parameters", "x"), "later"),
            ],
            "messages[0].content[0].type: required",
        ),
        ([("string_type", ("n", "str"), "a string"), ("int_type", ("n", "int"), "a number")], "n: a string"),
    ],
)
def test_of_a_union_the_branch_for_the_values_type_is_told(
    errors: list[tuple[str, tuple[str | int, ...], str]], message: str
) -> None:
    listed = [
        {"type": kind, "loc": ("body", *location), "msg": msg, "input": "\n  {'type': 'x', 'loc': ('a',), 'msg': 'y'"}
        for kind, location, msg in errors
    ]
    text = f"{len(listed)} validation errors:\n" + "".join(f"  {one}\n" for one in listed)
    first = "body." + ".".join(str(part) for part in errors[0][1] if part != "str")
    told = engine_error(error(text, 400, first), 400)
    assert (told.message, told.param) == (message, message.partition(":")[0])


def test_a_template_that_the_engine_does_not_take_is_its_field() -> None:
    message = "Chat template is passed with request, but --trust-request-chat-template is not set. Refused."
    told = engine_error(error(message), 400)
    assert told.param == "chat_template"
    assert told.message.startswith("chat_template: ")
    assert "--trust" not in told.message


@pytest.mark.parametrize("field", ["prompt", "input", "messages"])
def test_a_token_that_the_model_has_not_is_in_the_text(field: str) -> None:
    assert field_named_in("Token id 1000000000 is out of vocabulary", {"model": "m", field: [1000000000]}) == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("top_k must be 0 (disable), or at least 1, got -5.", "top_k"),
        ("max_tokens=9000 cannot be greater than max_model_len", "max_tokens"),
        ("this model cannot stream n answers", None),
        ("This model's maximum context length is 10 tokens, you asked for more", "messages"),
        ("m is not a multimodal model", "messages"),
        ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "tool_choice"),
        ("out of luck", None),
        ("min_tokens must be less than or equal to max_tokens=1, got 5.", "min_tokens"),
        ("stop is too long for a request of messages with top_k", "top_k"),
    ],
)
def test_a_field_that_only_the_sentence_names_is_found(message: str, field: str | None) -> None:
    body = {"model": "m", "n": 2, "stream": True, "messages": [], "max_tokens": 1, "min_tokens": 5, "top_k": -5}
    assert field_named_in(message, body) == field


SAMPLES = "Requested sample logprobs of 32, which is greater than max allowed: 20"
PROMPTS = "prompt_logprobs: Requested prompt logprobs of 32, which is greater than max allowed: 20"
TOO_MANY = "prompt_logprobs: tokens of the prompt times values for each are 17000, at most 16384"


@pytest.mark.parametrize(
    ("message", "param", "fields", "own"),
    [
        (SAMPLES, "logprobs", {"use_beam_search": True, "n": 16, "logprobs": 1}, "n"),
        (SAMPLES, "logprobs", {"logprobs": True, "top_logprobs": 32}, "top_logprobs"),
        (SAMPLES, "logprobs", {"logprobs": 32}, "logprobs"),
        (PROMPTS, "prompt_logprobs", {"echo": True, "logprobs": 32}, "logprobs"),
        (PROMPTS, "prompt_logprobs", {"echo": True, "logprobs": True, "top_logprobs": 32}, "top_logprobs"),
        (PROMPTS, "prompt_logprobs", {"prompt_logprobs": 32, "logprobs": 1}, "prompt_logprobs"),
        (TOO_MANY, None, {"prompt": "a", "echo": True, "logprobs": 20}, "logprobs"),
        ("top_k: too small", "top_k", {"logprobs": 1}, "top_k"),
    ],
)
def test_too_many_log_probabilities_are_those_of_the_field_that_asked_for_them(
    message: str, param: str | None, fields: dict[str, Any], own: str
) -> None:
    told, found = with_own_field(message, param, fields)
    assert found == own
    assert own in told
    assert "prompt_logprobs" not in told or "prompt_logprobs" in fields


def test_a_grammar_of_a_forced_call_that_the_engine_cannot_follow_is_its_tools() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "banana"}}}}}
    forced = {"model": "m", "messages": [], "tools": [tool], "tool_choice": "required"}
    told, param = with_own_field("Invalid grammar specification: 'triggers'", None, forced)
    assert (told, param) == ("tools: the engine cannot follow a schema of their parameters", "tools")


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": []}}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": SCHEMA}, "Grammar error: Unsatisfiable schema: anyOf is empty"),
        ({"response_format": SCHEMA}, "Failed to transform json schema into a grammar: tools"),
        ({"structured_outputs": {"regex": "("}}, "Failed to transform regex into a grammar: unclosed group"),
        ({"structured_outputs": {"choice": []}}, "Choice '[]' cannot be an empty list"),
        ({"text": {"format": {"schema": {"type": "x"}}}}, "Grammar error: Invalid type: x"),
    ],
)
def test_a_constraint_that_the_engine_cannot_follow_is_its_field(fields: dict[str, Any], message: str) -> None:
    body = {"model": "m", "messages": [], "tools": [], **fields}
    assert field_named_in(message, body) == next(iter(fields))
    assert field_named_in(message, {"model": "m"}) is None


def test_a_document_that_is_too_long_or_no_text_is_a_reranks() -> None:
    body = {"model": "m", "query": "a", "documents": ["b"]}
    assert field_named_in("This model's maximum context length is 10 tokens", body) == "documents"
    assert field_named_in("MultiModalParam is not supported for BertModel", body) == "documents"


def test_pydantics_report_becomes_one_sentence() -> None:
    report = (
        "2 validation errors for Part\na.text\n  Field required [type=missing, input_value={}]\n    For further ..."
    )
    assert engine_error(error(report), 400).message == "a.text: Field required"


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_other_errors_are_the_deployments_fault(status: int) -> None:
    raised = engine_error(error("secret detail", status), status)
    assert isinstance(raised, Broken)
    assert "secret" not in raised.message


@pytest.mark.parametrize("body", [b'{"error":"Unauthorized"}', b'{"error":{}}', b'{"detail":"Bad"}'])
def test_a_rejection_without_an_error_object_has_our_text(body: bytes) -> None:
    assert engine_error(body, 400).message == "The engine rejected the request"


@pytest.mark.parametrize("status", [400, 404, 405, 409, 415, 422])
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'"x"', b"Not Found"])
def test_a_page_is_no_rejection(body: bytes, status: int) -> None:
    assert isinstance(engine_error(body, status), Broken)


def test_a_route_that_the_engine_lacks_is_the_deployments_fault() -> None:
    assert isinstance(engine_error(b'{"detail":"Not Found"}', 404), Broken)
    assert isinstance(engine_error(b'{"detail":"Method Not Allowed"}', 405), Broken)


def test_a_body_that_is_too_large_for_a_server_in_between_is_the_clients_fault() -> None:
    assert isinstance(engine_error(b"<html>", 413), Rejected)


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("tools.0.FunctionTool.name", "tools[0].name"),
        ("messages.0.content.list[union].1.ChatCompletionContentPartTextParam.type", "messages[0].content[1].type"),
        ("0.ChatCompletionContentPartTextParam.type", None),
    ],
)
@pytest.mark.parametrize("in_param", [False, True])
def test_no_error_has_the_name_of_a_python_class(place: str, path: str | None, in_param: bool) -> None:
    report = f"2 validation errors for Part\n{place}\n  Field required [type=missing, input_value={{}}]\n    For"
    raised = engine_error(error("Field required" if in_param else report, 400, place if in_param else None), 400)
    assert (raised.param, raised.message) == (path, f"{path}: Field required" if path else "Field required")


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
TEXT = {"type": "text", "text": "hi"}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"messages": [{"content": "hi"}, {"content": [TEXT, IMAGE]}]}, "messages[1].content[1]"),
        ({"messages": [{"content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"content": [{"type": "tool_result", "content": [TEXT, {"type": "image"}]}]}]},
            "messages[0].content[0].content[1]",
        ),
        ({"input": [{"content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call_output", "output": [{"type": "input_image"}]}]}, "input[0].output[0]"),
        ({"input": "hi"}, None),
    ],
)
def test_the_part_that_a_model_of_texts_cannot_read_is_found(body: dict[str, Any], path: str | None) -> None:
    assert media_refused("m is not a multimodal model", body) == path
    assert media_refused("out of luck", body) is None


def test_an_error_that_is_longer_than_what_is_read_of_it_has_its_first_problem() -> None:
    problem = "{'type': 'string_type', 'loc': ('body', 'input', 0, 'Message', 'role'), 'msg': 'Input should be a text'}"
    message = f"999 validation errors:\n  {problem}\n" + "  {'type': 'x'}\n" * 1000
    raised = engine_error(error(message, 400, None)[:5000], 400)
    assert (raised.param, raised.message) == ("input[0].role", "input[0].role: Input should be a text")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('Model "org/m-1" has no vectors of 5', 'Model "chat" has no vectors of 5'),
        ("org/m-1 is none", "chat is none"),
        ("org/m-1.", "chat."),
        ("org/m-12 and org/m-1-b, xorg/m-1", "org/m-12 and org/m-1-b, xorg/m-1"),
    ],
)
def test_an_error_has_the_public_name_of_the_model(message: str, expected: str) -> None:
    assert with_public_name(message, "org/m-1", "chat") == expected
    assert with_public_name(message, "", "chat") == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"Too many requests in the queue\n", "Too many requests in the queue"),
        (error("busy", 429, None), "busy"),
        (b"<html>no</html>", ""),
        (b'{"detail": 1}', ""),
        (b"", ""),
    ],
)
def test_an_engines_words_are_its_error_objects_or_a_plain_text(body: bytes, message: str) -> None:
    assert engine_message(body) == message
