"""Reranking and scoring: vLLM's own routes, in the forms that Cohere's and Jina's clients send and read.

Contracts: vLLM 0.29's `/v1/rerank` and `/score`, and Cohere's `/v1/rerank` and `/v2/rerank`. A reranking model judges
each pair of a query and a document; with an embedding model, a score is the cosine between their vectors.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.dialects.common.fields import USER, NonEmptyList, absent, both, described_by, either, given
from app.dialects.openai.fields import OperationBody, Part


class Document(BaseModel):
    """A document, or a query, that is not plain text: Cohere's `text`, or vLLM's list of parts."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra=either(both(given("text"), absent("content")), both(given("content"), absent("text"))),
    )

    text: str | None = None
    content: NonEmptyList[Part] | None = None

    @model_validator(mode="after")
    def _has_either(self) -> Self:
        if (self.text is None) == (not self.content):
            raise ValueError("a document needs either `text` or `content`")
        return self


Text = str | Document
Texts = Text | NonEmptyList[Text]

_TEXTS = "vLLM's; an object with `text` is sent as that text"


class _Scoring(OperationBody):
    user: str | None = Field(default=None, description=USER)
    max_tokens_per_doc: int | None = Field(default=None, ge=0)
    max_tokens_per_query: int | None = Field(default=None, ge=0)


class Rerank(_Scoring):
    """POST /v1/rerank and /v2/rerank."""

    refused: ClassVar[Mapping[str, str]] = {
        **OperationBody.refused,
        "max_chunks_per_doc": "documents are not cut into chunks; `max_tokens_per_doc` shortens them",
        "rank_fields": "a document is ranked by its whole text; send only the relevant text as `documents`",
    }

    query: Text = Field(description=_TEXTS)
    documents: Texts = Field(description=_TEXTS)
    max_tokens_per_doc: int | None = Field(
        default=None,
        ge=0,
        description="vLLM's; the model's context if that is shorter, in which documents are shortened anyway at "
        "`/v2/rerank`",
    )
    top_n: int | None = Field(default=None, ge=0, description="vLLM's; 0 is all documents")
    return_documents: bool | None = Field(
        default=None,
        description="done here: whether results repeat their document; by default they do, except at `/v2/rerank`",
    )

    @model_validator(mode="after")
    def _has_documents(self) -> Self:
        if self.documents == []:
            raise ValueError("documents: must not be empty")
        return self


_ALSO_QUERIES = "another name for `queries`"
_ALSO_DOCUMENTS = "another name for `documents`"

_PAIRS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
"""The pairs of fields that vLLM takes; they mean the same."""

_NAMES = sorted({name for pair in _PAIRS for name in pair})


class Score(_Scoring):
    """POST /score: one query and any number of documents, or as many documents as queries."""

    model_config = described_by(
        either(*(both(*map(given, pair), absent(*(name for name in _NAMES if name not in pair))) for pair in _PAIRS))
    )

    queries: Texts | None = Field(default=None, description=_TEXTS)
    documents: Texts | None = Field(default=None, description=_TEXTS)
    items: Texts | None = Field(default=None, description=_ALSO_DOCUMENTS)
    text_1: Texts | None = Field(default=None, description=_ALSO_QUERIES)
    text_2: Texts | None = Field(default=None, description=_ALSO_DOCUMENTS)
    data_1: Texts | None = Field(default=None, description=_ALSO_QUERIES)
    data_2: Texts | None = Field(default=None, description=_ALSO_DOCUMENTS)

    @model_validator(mode="after")
    def _is_one_pair(self) -> Self:
        given = [name for pair in _PAIRS for name in pair if getattr(self, name) is not None]
        pair = pair_in(given)
        if pair is None:
            first = given[0] if given else "queries"
            raise ValueError(f"{first}: send `queries` and `documents`, and no other pair of texts")
        queries, documents = (_count(getattr(self, name)) for name in pair)
        for name, count in zip(pair, (queries, documents), strict=True):
            if not count:
                raise ValueError(f"{name}: must not be empty")
        if queries not in (1, documents):
            raise ValueError(f"{pair[1]}: must have as many texts as `{pair[0]}` ({queries}), or `{pair[0]}` only one")
        return self


def pair_in(names: Sequence[str] | Mapping[str, Any]) -> tuple[str, str] | None:
    """The fields with the queries and with the documents; None unless these are all of the fields with texts."""
    present = {name for pair in _PAIRS for name in pair if name in names}
    return next((pair for pair in _PAIRS if present == set(pair)), None)


def texts(value: Any) -> Any:
    """Checked texts as vLLM takes them: objects with `text` become that text."""
    if isinstance(value, list):
        return [texts(item) for item in value]
    return value["text"] if isinstance(value, dict) and "text" in value else value


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1


def reranked(answer: dict[str, Any], *, with_documents: bool, is_v2: bool) -> dict[str, Any]:
    """vLLM's answer with or without documents, and for `/v2/rerank` with the counts where Cohere's clients look."""
    if not with_documents:
        for result in answer["results"]:
            result.pop("document", None)
    if is_v2:
        counts = {"input_tokens": answer["usage"]["prompt_tokens"], "output_tokens": 0}
        answer["meta"] = {"api_version": {"version": "2"}, "tokens": counts}
    return answer
