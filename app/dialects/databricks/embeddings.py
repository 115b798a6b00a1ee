"""Databricks' embedding task."""

import re
from dataclasses import dataclass
from typing import Any

from app.dialects.base import ServingContext, Stream
from app.dialects.databricks.answer import RequestContext
from app.dialects.databricks.fields import RECORDS, Embeddings, checked
from app.dialects.legacy import Call

_PLACEHOLDER = re.compile(r"\{(instruction|input)\}")


@dataclass(frozen=True, slots=True)
class EmbeddingsAnswer:
    """The answer to an embedding request: its usage has prompt tokens only."""

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        usage = {name: answer["usage"][name] for name in ("prompt_tokens", "total_tokens")}
        return {**answer, "usage": usage}

    def stream(self) -> Stream:
        raise AssertionError("embeddings are not streamed")


def embeddings(body: dict[str, Any], asked: RequestContext) -> Call:
    """An embedding request as vLLM reads it. Raises BadRequest."""
    checked(Embeddings, body)
    sent = {name: value for name, value in body.items() if name not in RECORDS}
    fit = _with_instruction if "instruction" in sent else None
    return Call("embeddings", "/v1/embeddings", sent, note=EmbeddingsAnswer(), fit=fit)


def _with_instruction(body: dict[str, Any], served: ServingContext) -> dict[str, Any]:
    """`body` with the instruction in each text, as the deployment's `instruction_template` puts them together."""
    rest = {name: value for name, value in body.items() if name != "instruction"}
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    template = served.settings.instruction_template
    return {**rest, "input": [_filled(template, instruction=body["instruction"], input=text) for text in texts]}


def _filled(template: str, **values: str) -> str:
    # In one pass: what is put in may itself hold a placeholder's letters.
    return _PLACEHOLDER.sub(lambda found: values[found[1]], template)
