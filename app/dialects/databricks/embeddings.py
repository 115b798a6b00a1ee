"""Databricks' embedding task."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from app.dialects.base import Call, EngineRequest, Flow, Reply, ServingContext, Translation, no_lookups
from app.dialects.databricks.answer import RequestContext, json_reply
from app.dialects.databricks.fields import Embeddings, checked, without_records

_PLACEHOLDER = re.compile(r"\{(instruction|input)\}")


@dataclass(frozen=True)
class EmbeddingsTranslation(Translation):
    """Embeddings. vLLM has no `instruction`: it goes into each text by the deployment's `instruction_template`."""

    body: Mapping[str, Any]

    @classmethod
    def parse(cls, body: dict[str, Any], context: RequestContext) -> Call:
        """Raises BadRequest."""
        checked(Embeddings, body)
        sent = without_records(body)
        return Call("embeddings", sent, cls(sent))

    def engine_requests(self, serving: ServingContext) -> Flow:
        body = dict(self.body)
        if (instruction := body.pop("instruction", None)) is not None:
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            template = serving.settings.instruction_template
            body["input"] = [_filled(template, instruction=instruction, input=text) for text in texts]
        return no_lookups(EngineRequest("/v1/embeddings", body))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        response = from_json(answer)
        usage = {name: response["usage"][name] for name in ("prompt_tokens", "total_tokens")}
        return json_reply({**response, "usage": usage}, serving)


def _filled(template: str, **values: str) -> str:
    # In one pass: a value may itself contain a placeholder.
    return _PLACEHOLDER.sub(lambda found: values[found[1]], template)
