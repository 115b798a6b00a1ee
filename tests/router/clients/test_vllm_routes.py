"""The other routes of vLLM and TEI, against the real router and a fake engine."""

from base64 import b64decode
from struct import unpack
from typing import Any

import cohere
import httpx
import pytest
from huggingface_hub import InferenceClient
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.engine.fake_engine import refuse
from tests.support.waiting import wait_until

VECTORS = [[0.5, -1.0, 0.0, -0.25, 1.0, 1.0, -1.0, 1.0], [-1.0] * 7 + [1.0]]
USAGE = {"prompt_tokens": 40, "total_tokens": 40}


def vectors(body: dict[str, Any]) -> Response:
    """vLLM's answer at `/v1/embeddings`, the last text first: clients read the indices."""
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"object": "embedding", "index": n, "embedding": VECTORS[n]} for n in range(len(texts))]
    return JSONResponse({"id": "e-1", "object": "list", "model": "m", "data": data[::-1], "usage": USAGE})


def ranked(body: dict[str, Any]) -> Response:
    """vLLM's answer at `/v1/rerank`; later documents score higher."""
    results = [{"index": n, "relevance_score": n / 10} for n in reversed(range(len(body["documents"])))]
    return JSONResponse({"id": "r", "model": "m", "usage": USAGE, "results": results})


@pytest.fixture
def embedding(rig: Rig) -> Rig:
    deployments = rig.config["deployments"]
    tasks = ["embeddings", "rerank"]
    rig.change(
        endpoints={**rig.config["endpoints"], "embed": {"tasks": tasks, "traffic": {"mini": 100}}},
        deployments={**deployments, "mini": {**deployments["mini"], "tasks": tasks}},
        defaults={"embeddings": "embed", "rerank": "embed", "completions": "chat"},
    )
    rig.mini.answer = lambda body: (ranked if "query" in body else vectors)(body)
    return rig


def test_coheres_client_embeds_texts_in_every_form(embedding: Rig) -> None:
    client = cohere.ClientV2(api_key="k", base_url=embedding.url)
    forms: list[Any] = ["float", "base64", "binary", "ubinary"]
    fields: dict[str, Any] = {"model": "embed", "input_type": "search_query", "output_dimension": 8}
    answer = client.embed(texts=["a", "b"], embedding_types=forms, truncate="START", max_tokens=3, **fields)
    assert answer.embeddings.float_ == VECTORS
    assert [list(unpack("<8f", b64decode(text))) for text in answer.embeddings.base64 or ()] == VECTORS
    assert answer.embeddings.ubinary == [[0b10101101], [0b00000001]]
    assert answer.embeddings.binary == [[0b10101101 - 128], [1 - 128]]
    assert answer.meta is not None
    assert answer.meta.billed_units is not None
    assert (answer.texts, answer.meta.billed_units.input_tokens) == (["a", "b"], 40)
    sent = {"model": "mini-model", "input": ["a", "b"], "dimensions": 8}
    assert embedding.mini.requests == [{**sent, "truncate_prompt_tokens": 3, "truncation_side": "left"}]
    assert embedding.mini.paths == ["/v1/embeddings"]


def test_coheres_client_reads_which_field_is_wrong(embedding: Rig) -> None:
    client = cohere.ClientV2(api_key="k", base_url=embedding.url)
    with pytest.raises(cohere.BadRequestError) as raised:
        client.embed(model="embed", input_type="image", images=["data:image/png;base64,AA=="])
    assert raised.value.body["message"].startswith("images: only texts")
    embedding.mini.answer = refuse(400, "This model's maximum context length is 256 tokens.", param="input")
    with pytest.raises(cohere.BadRequestError) as raised:
        client.embed(model="embed", input_type="search_query", texts=["a"], truncate="NONE")
    assert raised.value.body["error"]["param"] == "texts"


def test_hugging_faces_client_embeds_at_an_endpoints_url(embedding: Rig) -> None:
    for url in (f"{embedding.url}/tgi/embed", f"{embedding.url}/embed", f"{embedding.url}/tgi/embed/embed"):
        client = InferenceClient(model=url, provider="hf-inference")
        assert client.feature_extraction(["a", "b"]).tolist() == VECTORS
        assert client.feature_extraction("a", normalize=False, truncate=True).tolist() == VECTORS[:1]
        assert embedding.mini.requests[-1] == {
            "model": "mini-model",
            "input": "a",
            "use_activation": False,
            "truncate_prompt_tokens": -1,
            "truncation_side": "right",
        }


@pytest.mark.parametrize("tasks", [["embeddings"], ["rerank"], ["embeddings", "rerank"]])
def test_an_endpoint_for_texts_answers_teis_questions(embedding: Rig, tasks: list[str]) -> None:
    embedding.change(endpoints={"texts": {"tasks": tasks, "traffic": {"mini": 100}}})
    url = f"{embedding.url}/tgi/texts"
    client = InferenceClient(model=url, provider="hf-inference")
    assert client.health_check(model=url)
    info = client.get_endpoint_info(model=url)
    kind = "embedding" if "embeddings" in tasks else "reranker"
    assert (info["model_id"], list(info["model_type"])) == ("mini", [kind])
    assert [httpx.get(url + path).status_code for path in ("", "/health", "/ping", "/info")] == [200] * 4
    assert httpx.get(f"{embedding.url}/endpoints/texts/info").json() == info
    embedding.mini.healthy = False
    wait_until(lambda: not client.health_check(model=url))


def test_a_server_for_texts_alone_answers_teis_questions_at_its_base(embedding: Rig) -> None:
    del embedding.config["defaults"]["completions"]
    embedding.change()
    for path in ("/tgi", "/tgi/health", "/tgi/ping", "/tgi/info"):
        assert httpx.get(embedding.url + path).status_code == 200, path
    assert httpx.get(f"{embedding.url}/info").json()["model_type"] == {"embedding": {"pooling": None}}


@pytest.mark.parametrize("path", ["/rerank", "/tgi/embed/rerank"])
def test_texts_are_ranked_in_teis_form(embedding: Rig, path: str) -> None:
    body: dict[str, Any] = {"query": "q", "texts": ["a", "b"], "raw_scores": True, "return_text": True}
    answer = httpx.post(embedding.url + path, json=body)
    assert answer.json() == [{"index": 1, "text": "b", "score": 0.1}, {"index": 0, "text": "a", "score": 0.0}]
    assert (answer.headers["azureml-model-deployment"], embedding.mini.paths[-1]) == ("mini", "/v1/rerank")
    sent = {"model": "mini-model", "query": "q", "documents": ["a", "b"], "use_activation": False}
    assert embedding.mini.requests[-1] == sent
    plain = httpx.post(embedding.url + path, json={"query": "q", "texts": ["a"]}).json()
    assert plain == [{"index": 0, "score": 0.0}]


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/embed", {"inputs": []}, 422, "`inputs` cannot be empty"),
        ("/embed", {"inputs": ["a", 5]}, 422, "`inputs["),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422, "`prompt_name`"),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, 422, "`truncation_direction`"),
        ("/embed", {}, 422, "`inputs`"),
        ("/rerank", {"query": "q", "texts": []}, 422, "`texts` cannot be empty"),
        ("/rerank", {"texts": ["a"]}, 422, "`query`"),
        ("/tgi/chat/embed", {"inputs": "a"}, 422, "does not support embeddings"),
    ],
)
def test_teis_errors_name_the_field_in_its_form(
    embedding: Rig, path: str, body: dict[str, Any], status: int, told: str
) -> None:
    answer = httpx.post(embedding.url + path, json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (status, "validation")
    assert told in answer.json()["error"]
    assert embedding.mini.requests == []


def test_an_engines_refusal_names_teis_field(embedding: Rig) -> None:
    embedding.mini.answer = refuse(400, "input: too long", param="input")
    answer = httpx.post(f"{embedding.url}/embed", json={"inputs": "a"})
    assert (answer.status_code, "inputs: too long" in answer.json()["error"]) == (422, True)


def test_pooling_and_detokenize_are_vllms(embedding: Rig) -> None:
    pooled = {"id": "p", "object": "list", "data": [{"index": 0, "object": "pooling", "data": [[0.5], [1.0]]}]}
    embedding.mini.answer = lambda body: JSONResponse({**pooled, "usage": USAGE})
    body: dict[str, Any] = {"model": "embed", "input": "a", "task": "token_embed"}
    answer = httpx.post(f"{embedding.url}/pooling", json=body)
    assert answer.json().get("data") == pooled["data"], answer.text
    assert (embedding.mini.paths, embedding.mini.requests) == (["/pooling"], [{**body, "model": "mini-model"}])
    wrong = httpx.post(f"{embedding.url}/pooling", json={**body, "task": "classify"}).json()["error"]
    assert wrong["param"] == "task"
    embedding.blue.answer = lambda body: JSONResponse({"prompt": "hi"})
    answer = httpx.post(f"{embedding.url}/detokenize", json={"model": "chat", "tokens": [1, 2]})
    assert (answer.json(), embedding.blue.paths) == ({"prompt": "hi"}, ["/detokenize"])
    assert embedding.blue.requests == [{"model": "blue-model", "tokens": [1, 2]}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/embed", {"model": "embed", "texts": ["word " * 4000]}),
        ("/embed", {"inputs": "word " * 4000}),
        ("/rerank", {"query": "q", "texts": ["word " * 4000]}),
        ("/pooling", {"model": "embed", "input": "word " * 4000}),
    ],
)
def test_their_tokens_count_for_the_limits(embedding: Rig, path: str, body: dict[str, Any]) -> None:
    embedding.change(access={"limits": {"default": {"tokens_per_minute": 1000}}})
    answer = httpx.post(embedding.url + path, json=body)
    assert (answer.status_code, embedding.mini.requests) == (413, [])  # more than a minute has
