"""Reranking and scoring: accepted requests, the engine's requests, and answers for Cohere's and Jina's clients."""

import json
from typing import Any

import pytest

from app.config.schema import parse as parse_config
from app.dialects.base import MALFORMED_ANSWER_ERRORS, Call, Request
from app.dialects.openai.dialect import OpenAI
from app.errors import BadRequest
from tests.support.clients.dialect_calls import engine_request
from tests.support.clients.samples import CONTEXT, SERVED

RERANK: dict[str, Any] = {"model": "embed", "query": "a frog", "documents": ["a toad", "a bank"]}
SCORE: dict[str, Any] = {"model": "embed", "queries": "a frog", "documents": ["a toad", "a bank"]}
REQUIRED = {"rerank": RERANK, "rerank_v2": RERANK, "score": SCORE}
OPERATIONS = sorted(REQUIRED)
CONFIG = parse_config(
    {
        "endpoints": {"e": {"tasks": ["rerank"], "traffic": {"m": 100}}},
        "deployments": {"m": {"app": "m", "model": "m", "tasks": ["rerank"]}},
    }
)


def parse(operation: str, body: dict[str, Any]) -> Call:
    return OpenAI().parse(operation, Request("POST", "/x", json.dumps(body).encode()), CONTEXT)


def with_fields(operation: str, **fields: Any) -> Call:
    return parse(operation, {**REQUIRED[operation], **fields})


@pytest.mark.parametrize(
    ("operation", "path"), [("rerank", "/v1/rerank"), ("rerank_v2", "/v1/rerank"), ("score", "/score")]
)
def test_a_minimal_request_passes_unchanged(operation: str, path: str) -> None:
    call = with_fields(operation)
    request = engine_request(call, SERVED)
    assert (call.task, call.model, request.path) == ("rerank", "embed", path)
    cut = {"truncate_prompt_tokens": -1} if operation == "rerank_v2" else {}
    assert request.body == call.body == REQUIRED[operation] | cut
    assert call.translation.generates
    assert not call.translation.stream


def test_every_path_of_vllms_is_served() -> None:
    operations = {route.path: route.operation for route in OpenAI.routes if route.operation in REQUIRED}
    reranks = {"/rerank": "rerank", "/v1/rerank": "rerank", "/v2/rerank": "rerank_v2"}
    scores = ("/score", "/v1/score", "/endpoints/{endpoint}/score")
    assert operations == {**reranks, **dict.fromkeys(scores, "score")}


@pytest.mark.parametrize(
    ("operation", "field", "value"),
    [
        ("rerank", "documents", "one text"),
        ("rerank", "query", {"content": [{"type": "text", "text": "a"}]}),
        ("rerank", "top_n", 0),
        ("rerank", "top_n", 1),
        ("rerank", "max_tokens_per_doc", 5),
        ("score", "queries", ["a", "b"]),
        ("score", "documents", "one text"),
        ("score", "instruction", "Find animals"),
    ],
)
def test_a_valid_field_reaches_the_engine(operation: str, field: str, value: Any) -> None:
    assert with_fields(operation, **{field: value}).body[field] == value


def test_cohere_documents_with_a_text_are_sent_as_that_text() -> None:
    call = with_fields("rerank", query={"text": "a frog"}, documents=[{"text": "a toad"}, "a bank"])
    assert call.body == RERANK
    assert with_fields("score", documents=[{"text": "a toad"}, "a bank"]).body == SCORE


@pytest.mark.parametrize("names", [("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")])
def test_the_other_names_of_a_scores_texts_become_two_names(names: tuple[str, str]) -> None:
    call = parse("score", {"model": "embed", names[0]: SCORE["queries"], names[1]: SCORE["documents"]})
    assert call.body == SCORE
    assert call.field_names["documents"] == names[1]
    assert call.field_names.get("queries", "queries") == names[0]


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("rerank", {"query": None}, "query"),
    ("rerank", {"query": 5}, "query"),
    ("rerank", {"query": ["a"]}, "query"),
    ("rerank", {"documents": None}, "documents"),
    ("rerank", {"documents": []}, "documents"),
    ("rerank", {"documents": ["a", 5]}, "documents[1]"),
    ("rerank", {"documents": [{"text": "a", "title": "b"}]}, "documents[0].title"),
    ("rerank", {"documents": [{"content": [{"text": "a"}]}]}, "documents[0].content[0].type"),
    ("rerank", {"documents": [{}]}, "documents[0]"),
    ("rerank", {"documents": [{"text": "a", "content": [{"type": "text", "text": "a"}]}]}, "documents[0]"),
    ("rerank", {"top_n": -1}, "top_n"),
    ("rerank", {"top_n": "1"}, "top_n"),
    ("rerank", {"max_tokens_per_doc": -1}, "max_tokens_per_doc"),
    ("rerank", {"return_documents": "yes"}, "return_documents"),
    ("rerank", {"rank_fields": ["title"]}, "rank_fields"),
    ("rerank_v2", {"max_chunks_per_doc": 10}, "max_chunks_per_doc"),
    ("rerank", {"overlap": 3}, "overlap"),
    ("rerank", {"stream": True}, "stream"),
    ("score", {"queries": None}, "documents"),
    ("score", {"queries": None, "documents": None}, "queries"),
    ("score", {"text_1": "a"}, "queries"),
    ("score", {"queries": []}, "queries"),
    ("score", {"documents": []}, "documents"),
    ("score", {"queries": ["a", "b", "c"]}, "documents"),
    ("score", {"top_n": 1}, "top_n"),
]


@pytest.mark.parametrize(("operation", "fields", "param"), INVALID)
def test_an_invalid_field_is_named(operation: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        with_fields(operation, **fields)
    assert raised.value.param == param
    assert raised.value.message.split(":")[0].endswith((param, "supplied"))


ANSWER: dict[str, Any] = {
    "id": "score-1",
    "model": "mini",
    "usage": {"prompt_tokens": 12, "total_tokens": 12},
    "results": [
        {"index": 1, "document": {"text": "a toad", "multi_modal": None}, "relevance_score": 0.5},
        {"index": 0, "document": {"text": "a bank", "multi_modal": None}, "relevance_score": 0.1},
    ],
}
BARE = [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.1}]
META = {"api_version": {"version": "2"}, "tokens": {"input_tokens": 12, "output_tokens": 0}}


@pytest.mark.parametrize(
    ("operation", "fields", "expected"),
    [
        ("rerank", {}, ANSWER),
        ("rerank", {"return_documents": True}, ANSWER),
        ("rerank", {"return_documents": False}, {**ANSWER, "results": BARE}),
        ("rerank_v2", {}, {**ANSWER, "results": BARE, "meta": META}),
        ("rerank_v2", {"return_documents": True}, {**ANSWER, "meta": META}),
    ],
)
def test_the_route_and_the_client_decide_about_documents(operation: str, fields: dict[str, Any], expected: Any) -> None:
    call = with_fields(operation, **fields)
    assert "return_documents" not in call.body
    assert json.loads(call.translation.reply(json.dumps(ANSWER).encode(), SERVED).body) == expected


@pytest.mark.parametrize("answer", [b"?", b"[]", b"{}", b'{"results": [1]}', b'{"results": []}'])
def test_a_malformed_answer_is_the_deployments_failure(answer: bytes) -> None:
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        with_fields("rerank_v2").translation.reply(answer, SERVED)


def test_an_error_is_openais_and_cohere_clients_read_its_message() -> None:
    error, request = BadRequest("top_n: too small", param="top_n"), Request("POST", "/v2/rerank")
    plain = json.loads(OpenAI().render_error(error, "rerank", request).body)
    assert plain["error"]["param"] == "top_n"
    assert json.loads(OpenAI().render_error(error, "rerank_v2", request).body) == {**plain, "message": error.message}
