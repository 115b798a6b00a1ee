"""Text Embeddings Inference (TEI), Hugging Face's server beside TGI: vectors of texts and of their tokens, similar
texts, ranked texts, and classes.

Contract: TEI's OpenAPI description of `/embed`, `/embed_all`, `/similarity`, `/rerank` and `/predict`, and what
`huggingface_hub` sends and reads. Its errors are TGI's, and unknown fields are ignored, as there.
"""

from collections.abc import Mapping, Sequence
from math import hypot
from operator import mul
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import Field, WithJsonSchema
from pydantic_core import from_json

from app.dialects.base import Call, ParseContext, Reply, Request, ServingContext, immutable
from app.dialects.bodies import dump, dump_members, peek, request_object
from app.dialects.common.fields import NonEmpty, NonEmptyList
from app.dialects.common.requests import DirectTranslation
from app.dialects.tgi.fields import Strict, checked
from app.engine.vectors import embeddings
from app.errors import Unprocessable
from app.long_json import written

TokenIds = NonEmptyList[int]

_PROMPT_NAME = "rejected: the router does not have the prompts in the model's own settings"


class _Texts(Strict):
    truncate: bool = Field(default=False, description="done by vLLM; without it a text that is too long is rejected")
    truncation_direction: Literal["left", "right", "Left", "Right"] = Field(
        default="Right", description="vLLM's `truncation_side`"
    )

    def truncation(self) -> dict[str, Any]:
        """vLLM's fields."""
        side = {"truncation_side": self.truncation_direction.lower()}
        return {"truncate_prompt_tokens": -1, **side} if self.truncate else {}


class EmbedAll(_Texts):
    """POST /embed_all. The answer has a list of vectors for each text."""

    inputs: NonEmpty | TokenIds | NonEmptyList[str] | NonEmptyList[TokenIds] = Field(description="vLLM's `input`")
    prompt_name: Annotated[Any, WithJsonSchema({"type": "null"})] = Field(default=None, description=_PROMPT_NAME)


class Embed(EmbedAll):
    """POST /embed. The answer has a vector for each text, as a list."""

    normalize: bool = Field(default=True, description="vLLM's `use_activation`")
    dimensions: int | None = Field(default=None, ge=1, description="vLLM's")


class Sentences(Strict):
    """The `inputs` of Similarity."""

    source_sentence: str
    sentences: NonEmptyList[str]


class SimilarityParameters(_Texts):
    """The `parameters` of Similarity."""

    prompt_name: Annotated[Any, WithJsonSchema({"type": "null"})] = Field(default=None, description=_PROMPT_NAME)


class Similarity(Strict):
    """POST /similarity. The answer has a number for each of the sentences."""

    inputs: Sentences = Field(
        description="done here: the cosine between the vectors of `source_sentence` and of each of the `sentences`"
    )
    parameters: SimilarityParameters | None = Field(default=None, description="`truncate`, `truncation_direction`")


class PredictParameters(Strict):
    """The `parameters` of Predict, which Hugging Face's client sends."""

    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    top_k: int | None = Field(default=None, ge=1)


class Predict(_Texts):
    """POST /predict. The answer has the classes of a text, or a list of them for each text."""

    inputs: NonEmpty | NonEmptyList[str] | NonEmptyList[NonEmptyList[str]] = Field(
        description="vLLM's `input`; in a batch, each text is a list of one. Pairs of texts are rejected"
    )
    raw_scores: bool = Field(default=False, description="vLLM's `use_activation`, if true")
    parameters: PredictParameters | None = Field(
        default=None,
        description="`top_k`: the most classes; `function_to_apply`: `none` gives raw scores, others are the model's",
    )


class Rerank(_Texts):
    """POST /rerank with `texts`. The answer is a list, the best text first."""

    query: str = Field(description="vLLM's")
    texts: NonEmptyList[str] = Field(description="vLLM's `documents`")
    raw_scores: bool = Field(default=False, description="vLLM's `use_activation`, if true")
    return_text: bool = Field(default=False, description="done here")


def _refuse_prompt_name(value: object, param: str) -> None:
    if value is not None:
        raise Unprocessable(f"`prompt_name` is {_PROMPT_NAME}", param=param)


def _refuse_empty(value: object, param: str) -> None:
    if not value:
        raise Unprocessable(f"`{param}` cannot be empty", param=param)


@immutable
class EmbedTranslation(DirectTranslation):
    """Vectors, from vLLM's `/v1/embeddings`."""

    field_names: ClassVar[Mapping[str, str]] = {
        "input": "inputs",
        "truncate_prompt_tokens": "truncate",
        "use_activation": "normalize",
    }

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        fields = checked(Embed, request_object(request.body))
        _refuse_prompt_name(fields.prompt_name, "prompt_name")
        _refuse_empty(fields.inputs, "inputs")
        body: dict[str, Any] = {"input": fields.inputs, **fields.truncation()}
        if not fields.normalize:
            body["use_activation"] = False
        if fields.dimensions is not None:
            body["dimensions"] = fields.dimensions
        return Call("embeddings", body, cls("/v1/embeddings", body), field_names=cls.field_names)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(dump_members([item["embedding"] for item in _in_order(embeddings(answer, msgspec.Raw))]))


@immutable
class TeiRerankTranslation(DirectTranslation):
    """Texts in the order of their scores, from vLLM's `/v1/rerank`."""

    with_texts: bool = False
    field_names: ClassVar[Mapping[str, str]] = {
        "documents": "texts",
        "truncate_prompt_tokens": "truncate",
        "use_activation": "raw_scores",
    }

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        fields = checked(Rerank, request_object(request.body))
        _refuse_empty(fields.texts, "texts")
        body: dict[str, Any] = {"query": fields.query, "documents": fields.texts, **fields.truncation()}
        if fields.raw_scores:
            body["use_activation"] = False
        translation = cls("/v1/rerank", body, fields.return_text)
        return Call("rerank", body, translation, field_names=cls.field_names)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        texts = self.body["documents"]
        return Reply(dump([self._ranked(result, texts) for result in from_json(answer)["results"]]))

    def _ranked(self, result: Mapping[str, Any], texts: list[str]) -> dict[str, Any]:
        text = {"text": texts[result["index"]]} if self.with_texts else {}
        return {"index": result["index"], **text, "score": result["relevance_score"]}


@immutable
class EmbedAllTranslation(DirectTranslation):
    """A vector for each token of each text, from vLLM's `/pooling`."""

    field_names: ClassVar[Mapping[str, str]] = {"input": "inputs", "truncate_prompt_tokens": "truncate"}

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        fields = checked(EmbedAll, request_object(request.body))
        _refuse_prompt_name(fields.prompt_name, "prompt_name")
        _refuse_empty(fields.inputs, "inputs")
        body = {"input": fields.inputs, "task": "token_embed", **fields.truncation()}
        return Call("embeddings", body, cls("/pooling", body), field_names=cls.field_names)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(written([vectors["data"] for vectors in _in_order(from_json(answer))]))


@immutable
class SimilarityTranslation(DirectTranslation):
    """The cosine between a sentence's vector and each other's, of vLLM's `/v1/embeddings`."""

    field_names: ClassVar[Mapping[str, str]] = {"input": "inputs", "truncate_prompt_tokens": "parameters.truncate"}

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        fields = checked(Similarity, request_object(request.body))
        parameters = fields.parameters or SimilarityParameters()
        _refuse_prompt_name(parameters.prompt_name, "parameters.prompt_name")
        _refuse_empty(fields.inputs.sentences, "inputs.sentences")
        texts = [fields.inputs.source_sentence, *fields.inputs.sentences]
        body = {"input": texts, **parameters.truncation()}
        return Call("embeddings", body, cls("/v1/embeddings", body), field_names=cls.field_names)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        source, *others = (_unit(item["embedding"]) for item in _in_order(embeddings(answer)))
        return Reply(dump([sum(map(mul, source, other)) for other in others]))


@immutable
class PredictTranslation(DirectTranslation):
    """Each class of a text with its score, the likeliest first, from vLLM's `/classify`.

    `batched`: the answer has such a list for each text. `most`: of the classes.
    """

    batched: bool = False
    most: int | None = None
    needs_model = True
    field_names: ClassVar[Mapping[str, str]] = {
        "input": "inputs",
        "truncate_prompt_tokens": "truncate",
        "use_activation": "raw_scores",
    }

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        fields = checked(Predict, request_object(request.body))
        texts, batched = _to_classify(fields.inputs)
        parameters = fields.parameters
        body: dict[str, Any] = {"input": texts, **fields.truncation()}
        if fields.raw_scores or (parameters is not None and parameters.function_to_apply == "none"):
            body["use_activation"] = False
        # Hugging Face's client sends `parameters`, and reads a list for each text, also for one text.
        translation = cls(
            "/classify", body, batched or parameters is not None, parameters.top_k if parameters is not None else None
        )
        return Call("classify", body, translation, field_names=cls.field_names)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        classes = [self._classes(item, serving.known_model.labels) for item in _in_order(from_json(answer))]
        return Reply(dump(classes if self.batched else classes[0]))

    def _classes(self, item: Mapping[str, Any], labels: Sequence[str]) -> list[dict[str, Any]]:
        scores = item["probs"]
        names = labels if len(labels) == len(scores) else [f"LABEL_{number}" for number in range(len(scores))]
        classes = [{"score": score, "label": name} for score, name in zip(scores, names, strict=True)]
        return sorted(classes, key=lambda scored: -scored["score"])[: self.most]


def _in_order(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The results of vLLM's answer, one for each text."""
    return sorted(answer["data"], key=lambda item: item["index"])


def _unit(vector: Sequence[float]) -> list[float]:
    length = hypot(*vector) or 1.0
    return [number / length for number in vector]


def _to_classify(inputs: str | list[str] | list[list[str]]) -> tuple[list[str], bool]:
    """The texts, and whether they are a batch, whose texts are lists of one. Raises Unprocessable."""
    if isinstance(inputs, str):
        return [inputs], False
    batch = [texts for texts in inputs if isinstance(texts, list)]
    if not batch:
        return [_single([text for text in inputs if isinstance(text, str)])], False
    return [_single(texts) for texts in batch], True


def _single(texts: list[str]) -> str:
    if len(texts) != 1:
        raise Unprocessable(
            "`inputs`: each must be one text; for the score of a pair use `POST /rerank` or `POST /score`",
            param="inputs",
        )
    return texts[0]


def operation_of(request: Request, context: ParseContext) -> str | None:
    """TEI's operation at the path of an endpoint that has no completions: TEI has its model's at `/`, too."""
    endpoint = context.config.endpoints.get(request.params.get("endpoint", ""))
    if endpoint is None or "completions" in endpoint.tasks:
        return None
    if "embeddings" in endpoint.tasks:
        return "similarity" if isinstance(peek(request.body).get("inputs"), dict) else "embed"
    return "predict" if "classify" in endpoint.tasks else None
