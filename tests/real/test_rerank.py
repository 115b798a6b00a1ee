"""Cohere's SDK against the real application: its embedding model ranks documents by the cosine of their vectors."""

import math
from collections.abc import Sequence

import cohere
import httpx
import pytest

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
    assert [it.index for it in answer.results] == sorted(range(3), key=lambda n: -expected[n])
    assert answer.results[-1].index == 0, "the market has nothing to do with frogs"
    assert {it.index: it.relevance_score for it in answer.results} == pytest.approx(dict(enumerate(expected)), abs=1e-3)
    assert answer.meta is not None
    assert answer.meta.tokens is not None
    assert answer.meta.tokens.input_tokens
    first = client.rerank(model="embed", query=QUERY, documents=DOCUMENTS, top_n=1)
    assert first.results == answer.results[:1]


def test_coheres_first_client_gets_the_documents_back(application: Application) -> None:
    client = cohere.Client(api_key="unused", base_url=application.url)
    objects = [{"text": it} for it in DOCUMENTS]
    answer = client.rerank(model="minilm", query=QUERY, documents=objects, return_documents=True)
    assert [it.document.text for it in answer.results if it.document] == [DOCUMENTS[it.index] for it in answer.results]
    bare = client.rerank(model="minilm", query=QUERY, documents=objects, return_documents=False)
    assert {it.document for it in bare.results} == {None}


def test_coheres_exceptions_are_those_of_the_status(application: Application) -> None:
    client = cohere.ClientV2(api_key="unused", base_url=application.url)
    with pytest.raises(cohere.BadRequestError) as long:
        client.rerank(model="embed", query=QUERY, documents=["word " * 400])
    assert (long.value.body["error"]["param"], long.value.body["message"][:12]) == ("documents", "This model's")
    with pytest.raises(cohere.BadRequestError) as wrong:
        client.rerank(model="chat", query=QUERY, documents=DOCUMENTS)
    assert wrong.value.body["error"]["param"] == "model"
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="gone", query=QUERY, documents=DOCUMENTS)


def test_scores_are_the_cosines_in_the_order_of_the_documents(application: Application) -> None:
    body = {"model": "embed", "queries": QUERY, "documents": DOCUMENTS}
    answer = httpx.post(f"{application.url}/score", json=body).raise_for_status().json()
    assert [it["score"] for it in answer["data"]] == pytest.approx(cosines(application), abs=1e-3)
    assert answer["model"] == "minilm"
