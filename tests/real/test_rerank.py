"""The clients of Cohere and of Text Embeddings Inference, and vLLM's own routes, against the real application: its
embedding model ranks documents by the cosine of their vectors.
"""

import math
from collections.abc import Sequence
from typing import Any

import cohere
import httpx
import pytest
from huggingface_hub import InferenceClient

from tests.real.conftest import Application

pytestmark = pytest.mark.real

QUERY = "a green frog"
DOCUMENTS = ["The stock market fell.", "Frogs are amphibians.", "A toad sat in the grass."]


def cosines(application: Application) -> list[float]:
    """The cosines of the query and each document, from the same deployment's embeddings."""
    answer = application.sdk.embeddings.create(model="embed", input=[QUERY, *DOCUMENTS])
    query, *documents = (item.embedding for item in answer.data)
    return [_cosine(query, document) for document in documents]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return _product(one, other) / math.sqrt(_product(one, one) * _product(other, other))


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_coheres_client_gets_the_documents_in_the_order_of_their_cosines(application: Application) -> None:
    expected = cosines(application)
    client = cohere.ClientV2(api_key="unused", base_url=application.url)
    answer = client.rerank(model="embed", query=QUERY, documents=DOCUMENTS)
    assert [result.index for result in answer.results] == sorted(range(3), key=lambda n: -expected[n])
    assert answer.results[-1].index == 0, "the market has nothing to do with frogs"
    assert {result.index: result.relevance_score for result in answer.results} == pytest.approx(
        dict(enumerate(expected)), abs=1e-3
    )
    assert answer.meta is not None
    assert answer.meta.tokens is not None
    assert answer.meta.tokens.input_tokens
    first = client.rerank(model="embed", query=QUERY, documents=DOCUMENTS, top_n=1)
    assert first.results == answer.results[:1]


def test_coheres_first_client_gets_the_documents_back(application: Application) -> None:
    client = cohere.Client(api_key="unused", base_url=application.url)
    objects = [{"text": document} for document in DOCUMENTS]
    answer = client.rerank(model="minilm", query=QUERY, documents=objects, return_documents=True)
    assert [result.document.text for result in answer.results if result.document] == [
        DOCUMENTS[result.index] for result in answer.results
    ]
    bare = client.rerank(model="minilm", query=QUERY, documents=objects, return_documents=False)
    assert {result.document for result in bare.results} == {None}


def test_documents_that_are_too_long_are_truncated(application: Application) -> None:
    client = cohere.ClientV2(api_key="unused", base_url=application.url)
    answer = client.rerank(model="embed", query=QUERY, documents=["word " * 400, DOCUMENTS[0]])
    assert sorted(result.index for result in answer.results) == [0, 1]


def test_coheres_exceptions_are_those_of_the_status(application: Application) -> None:
    client = cohere.ClientV2(api_key="unused", base_url=application.url)
    with pytest.raises(cohere.BadRequestError) as wrong:
        client.rerank(model="chat", query=QUERY, documents=DOCUMENTS)
    assert wrong.value.body["error"]["param"] == "model"
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="gone", query=QUERY, documents=DOCUMENTS)


def test_scores_are_the_cosines_in_the_order_of_the_documents(application: Application) -> None:
    body = {"model": "embed", "queries": QUERY, "documents": DOCUMENTS}
    answer = httpx.post(f"{application.url}/score", json=body).raise_for_status().json()
    assert [item["score"] for item in answer["data"]] == pytest.approx(cosines(application), abs=1e-3)
    assert answer["model"] == "minilm"


def test_coheres_client_gets_the_vectors_of_openais(application: Application) -> None:
    expected = [item.embedding for item in application.sdk.embeddings.create(model="embed", input=DOCUMENTS).data]
    client = cohere.ClientV2(api_key="unused", base_url=application.url)
    fields: dict[str, Any] = {"model": "embed", "input_type": "search_document"}
    answer = client.embed(texts=DOCUMENTS, embedding_types=["float", "ubinary"], **fields)
    assert answer.embeddings.float_ is not None
    for vector, same in zip(answer.embeddings.float_, expected, strict=True):
        assert vector == pytest.approx(same, abs=1e-5)
    assert [len(packed) for packed in answer.embeddings.ubinary or ()] == [384 // 8] * 3
    long = ["word " * 400]
    assert len(client.embed(texts=long, **fields).embeddings.float_ or ()) == 1
    with pytest.raises(cohere.BadRequestError) as refused:
        client.embed(texts=long, truncate="NONE", **fields)
    assert refused.value.body["error"]["param"] == "texts"


def test_hugging_faces_client_gets_the_vectors_of_openais(application: Application) -> None:
    expected = [item.embedding for item in application.sdk.embeddings.create(model="embed", input=DOCUMENTS).data]
    client = InferenceClient(model=f"{application.url}/tgi/embed", provider="hf-inference")
    for vector, same in zip(client.feature_extraction(DOCUMENTS).tolist(), expected, strict=True):
        assert vector == pytest.approx(same, abs=1e-5)
    (raw,) = client.feature_extraction(DOCUMENTS[0], normalize=False, truncate=True).tolist()
    assert math.sqrt(_product(raw, raw)) != pytest.approx(1, abs=1e-2)
    ranked = httpx.post(f"{application.url}/rerank", json={"query": QUERY, "texts": DOCUMENTS}, timeout=60).json()
    scores = dict(enumerate(cosines(application)))
    assert {item["index"]: item["score"] for item in ranked} == pytest.approx(scores, abs=1e-3)
    assert [item["score"] for item in ranked] == sorted((item["score"] for item in ranked), reverse=True)


def test_vllms_pooling_and_detokenize(application: Application) -> None:
    def post(path: str, **body: Any) -> Any:
        return httpx.post(application.url + path, json=body, timeout=60).raise_for_status().json()

    expected = application.sdk.embeddings.create(model="embed", input=QUERY).data[0].embedding
    (pooled,) = post("/pooling", model="embed", input=QUERY, task="embed")["data"]
    assert pooled["data"] == pytest.approx(expected, abs=1e-5)
    tokens = post("/tokenize", model="chat", prompt=QUERY)["tokens"]
    assert post("/detokenize", model="chat", tokens=tokens) == {"prompt": QUERY}
