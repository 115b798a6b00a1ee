"""`/info`, of TGI and of Text Embeddings Inference (TEI), and `/v1/models`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.config.schema import Config, Task
from app.dialects.base import Call, Flow, ParseContext, Reply, Request, ServingContext, Translation, no_lookups
from app.dialects.common.model_list import model_list
from app.dialects.json_body import dump
from app.dialects.tgi.addressing import task_asked_about
from app.dialects.tgi.chat.fields import MAX_PROMPTS
from app.dialects.tgi.fields import MAX_BEST_OF, MAX_STOP_SEQUENCES
from app.errors import NotFound
from app.misspellings import question

MAX_CONCURRENT_REQUESTS = 128

_TEI_KINDS: Mapping[Task, dict[str, Any]] = {
    "embeddings": {"embedding": {"pooling": None}},
    "rerank": {"reranker": None},
    "classify": {"classifier": {"id2label": None, "label2id": None}},
}
"""TEI's tasks, and its words for their models."""

_VERSION = "3.3.6"  # the version of TGI's interface


@dataclass(frozen=True, slots=True)
class Info(Translation):
    """`/info`, with the names that MindIE adds. What the router does not know is null."""

    needs_model = True
    generates = False
    is_shared = True

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        task = task_asked_about(request, context)
        return Call(task, {}, TEIInfo(task) if task in _TEI_KINDS else cls())

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(Reply(dump(_info(serving.deployment, serving.known_model.max_len))))


def _info(name: str, context: int) -> dict[str, Any]:
    card = {
        "model_id": name,
        "model_sha": None,
        "model_pipeline_tag": "text-generation",
        "model_dtype": None,
        "model_device_type": None,
    }
    return {
        **card,
        "max_concurrent_requests": MAX_CONCURRENT_REQUESTS,
        "max_best_of": MAX_BEST_OF,
        "max_stop_sequences": MAX_STOP_SEQUENCES,
        "max_input_tokens": context - 1,
        "max_input_length": context - 1,
        "max_total_tokens": context,
        "max_batch_total_tokens": None,
        "max_waiting_tokens": None,
        "waiting_served_ratio": None,
        "validation_workers": 1,
        "max_client_batch_size": MAX_PROMPTS,
        "router": "text-generation-router",
        "version": _VERSION,
        "sha": None,
        "docker_label": None,
        "models": [{**card, "max_total_tokens": context}],
    }


@dataclass(frozen=True, slots=True)
class TEIInfo(Translation):
    """`/info` of an endpoint with vectors or scores, in TEI's form. What the router does not know is null."""

    task: Task
    generates = False
    is_shared = True

    def engine_requests(self, serving: ServingContext) -> Flow:
        context = serving.model.max_len if serving.model is not None else None
        return no_lookups(Reply(dump(_tei_info(serving.deployment, _TEI_KINDS[self.task], context))))


def _tei_info(name: str, kind: dict[str, Any], context: int | None) -> dict[str, Any]:
    return {
        "model_id": name,
        "model_sha": None,
        "model_dtype": None,
        "model_type": kind,
        "max_concurrent_requests": MAX_CONCURRENT_REQUESTS,
        "max_input_length": context,
        "max_batch_tokens": None,
        "max_batch_requests": None,
        "max_client_batch_size": None,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": None,
        "sha": None,
        "docker_label": None,
    }


def models(config: Config, request: Request) -> Reply:
    """`/v1/models`: the endpoint of the path, or all of them. Raises NotFound."""
    endpoint = request.params.get("endpoint")
    names = list(config.endpoints) if endpoint is None else [endpoint]
    known = [*config.endpoints, *config.deployments]
    if endpoint is not None and endpoint not in known:
        raise NotFound(f"There is no endpoint '{endpoint}'{question(endpoint, known)}", param="model")
    return Reply(dump(model_list(config, names, request.configured_at)))
