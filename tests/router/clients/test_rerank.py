"""Reranking and scoring, as Cohere's and vLLM's clients send it, against the real router and a fake engine."""

from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.engine.fake_engine import refuse

DOCUMENTS = ["a bank", "a toad"]
TOKENS = "x-ratelimit-remaining-tokens"


def scores(body: dict[str, Any]) -> Response:
    """vLLM's answer at `/v1/rerank` and `/score`; later documents score higher."""
    count = len(body["documents"])
    usage = {"prompt_tokens": 40, "total_tokens": 40}
    if "queries" in body:
        data = [{"index": n, "object": "score", "score": n / 10} for n in range(count)]
        return JSONResponse({"id": "s", "object": "list", "created": 1, "model": "m", "data": data, "usage": usage})
    results = [
        {"index": n, "document": {"text": body["documents"][n], "multi_modal": None}, "relevance_score": n / 10}
        for n in reversed(range(count))
    ]
    return JSONResponse({"id": "s", "model": "m", "usage": usage, "results": results[: body.get("top_n") or count]})


@pytest.fixture
def reranking(rig: Rig) -> Rig:
    deployments = rig.config["deployments"]
    rig.change(
        endpoints={**rig.config["endpoints"], "embed": {"tasks": ["embeddings", "rerank"], "traffic": {"mini": 100}}},
        deployments={**deployments, "mini": {**deployments["mini"], "tasks": ["embeddings", "rerank"]}},
        defaults={"rerank": "embed"},
    )
    rig.mini.answer = scores
    return rig


def post(rig: Rig, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{rig.url}{path}", json=body)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_back_in_their_order(reranking: Rig, path: str) -> None:
    answer = post(reranking, path, model="embed", query="a frog", documents=DOCUMENTS, top_n=1)
    assert [(result["index"], result["relevance_score"]) for result in answer.json()["results"]] == [(1, 0.1)]
    assert ("meta" in answer.json()) == (path == "/v2/rerank")
    sent = {"model": "mini-model", "query": "a frog", "documents": DOCUMENTS, "top_n": 1}
    assert reranking.mini.requests == [sent | ({"truncate_prompt_tokens": -1} if path == "/v2/rerank" else {})]
    assert reranking.mini.paths == ["/v1/rerank"]
    assert answer.headers["azureml-model-deployment"] == "mini"


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_pairs_are_scored(reranking: Rig, path: str) -> None:
    answer = post(reranking, path, model="embed", text_1="a frog", text_2=DOCUMENTS)
    assert [item["score"] for item in answer.json()["data"]] == [0, 0.1]
    assert reranking.mini.requests == [{"model": "mini-model", "queries": "a frog", "documents": DOCUMENTS}]
    assert reranking.mini.paths == ["/score"]


def test_without_a_model_the_default_answers_and_other_endpoints_name_their_tasks(reranking: Rig) -> None:
    assert post(reranking, "/v2/rerank", query="a", documents=["b"]).status_code == 200
    wrong = post(reranking, "/v2/rerank", model="chat", query="a", documents=["b"])
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "model"
    assert wrong.json()["message"] == (
        "model: endpoint 'chat' does not support rerank; it supports chat, completions, responses"
    )
    unknown = post(reranking, "/v1/rerank", model="gone", query="a", documents=["b"])
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_tokens_count_towards_the_limit(reranking: Rig) -> None:
    reranking.change(access={"limits": {"default": {"tokens_per_minute": 1000}}})
    calls = {"model": "embed", "query": "x" * 200, "documents": ["y" * 200]}
    left = [int(post(reranking, "/v2/rerank", **calls).headers[TOKENS]) for _ in range(2)]
    assert left == [900, 860], "the estimate at first, then what the engine counted"


def test_documents_are_filtered_and_counted(reranking: Rig) -> None:
    endpoints = reranking.config["endpoints"]
    filtered = {**endpoints["embed"], "content_filter": {"patterns": ["secret"]}}
    reranking.change(endpoints={**endpoints, "embed": filtered}, max_messages=3)
    for fields in ({"query": "a secret", "documents": ["b"]}, {"query": "a", "documents": ["b", {"text": "secret"}]}):
        blocked = post(reranking, "/v1/rerank", model="embed", **fields)
        assert (blocked.status_code, blocked.json()["error"]["code"]) == (400, "content_filter")
    many = post(reranking, "/v1/rerank", model="embed", query="a", documents=["b"] * 4)
    assert many.status_code == 400
    assert "documents" in many.json()["error"]["message"]
    assert reranking.mini.requests == []


def test_the_engines_refusal_names_the_field(reranking: Rig) -> None:
    reranking.mini.answer = refuse(400, "max_tokens_per_doc (300) must be less than max_model_len (256).")
    refused = post(reranking, "/v1/rerank", model="embed", query="a", documents=["b"], max_tokens_per_doc=300)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens_per_doc")


def test_a_priority_needs_the_operators_permission(reranking: Rig) -> None:
    calls = {"model": "embed", "query": "a", "documents": ["b"], "priority": 1}
    assert post(reranking, "/v2/rerank", **calls).json()["error"]["param"] == "priority"


@pytest.mark.parametrize("prefix", ["/v1", "/openai/v1"])
def test_transcription_is_a_404_that_says_so(rig: Rig, prefix: str) -> None:
    sent = {"file": ("a.wav", b"RIFF", "audio/wav")}
    answer = httpx.post(f"{rig.url}{prefix}/audio/transcriptions", files=sent, data={"model": "whisper-1"})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("unsupported_route", "invalid_request_error")
    assert error["message"].startswith("This server has no audio; use ")


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize(("most", "sent"), [(40, 40), (99, 99), (100, None), (4096, None)])
def test_a_limit_beyond_the_context_cuts_documents_to_the_context(
    reranking: Rig, path: str, most: int, sent: int | None
) -> None:
    def measuring(body: dict[str, Any]) -> Response:
        if reranking.mini.paths[-1] == "/tokenize":
            return JSONResponse({"count": 1, "max_model_len": 100, "tokens": [1]})
        return scores(body)

    reranking.mini.answer = measuring
    answer = post(reranking, path, model="embed", query="a frog", documents=DOCUMENTS, max_tokens_per_doc=most)
    assert answer.status_code == 200
    body = reranking.mini.requests[-1]
    assert (body.get("max_tokens_per_doc"), body["truncate_prompt_tokens"]) == (sent, -1)
