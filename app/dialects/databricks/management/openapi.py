"""An endpoint's requests and answers in OpenAPI 3.1: `GET /api/2.0/serving-endpoints/{name}/openapi`.

Requests are described by the models that check them. The answers' schemas have what every answer has; the engine may
add fields.
"""

from collections.abc import Mapping
from typing import Any

from app.config.schema import Endpoint, Task
from app.dialects.databricks.dialect import BODIES, Databricks
from app.dialects.openapi_schemas import Schema, Schemas, content


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer"}
_CHOSEN: Mapping[str, Schema] = {"index": _COUNT, "finish_reason": _TEXT}
_HEAD: Mapping[str, Schema] = {"id": _TEXT, "object": _TEXT, "created": _COUNT, "model": _TEXT}
_COUNTS = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)

_ANSWERS: Mapping[Task, Schema] = {
    "chat": _object(**_HEAD, choices=_list(_object(message=_object(role=_TEXT), **_CHOSEN)), usage=_COUNTS),
    "completions": _object(**_HEAD, choices=_list(_object(text=_TEXT, **_CHOSEN)), usage=_COUNTS),
    "embeddings": _object(
        object=_TEXT,
        model=_TEXT,
        data=_list(_object(object=_TEXT, index=_COUNT, embedding=_list({"type": "number"}))),
        usage=_object(prompt_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "responses": _object(
        id=_TEXT, object=_TEXT, status=_TEXT, model=_TEXT, output=_list({"type": "object"}), usage={"type": "object"}
    ),
}


def openapi(name: str, endpoint: Endpoint, url: str) -> dict[str, Any]:
    """The document for the endpoint's route at the server `url`, with one schema per task."""
    schemas = Schemas()
    tasks = [task for task in endpoint.tasks if task in BODIES]  # reranking has no task there
    requests = content(schemas.references(Databricks.name, [BODIES[task] for task in tasks]))
    answers = content([_ANSWERS[task] for task in tasks])
    invocation = {
        "requestBody": {"required": True, "content": requests},
        "responses": {"200": {"description": "The whole answer", "content": answers}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": "1"},
        "servers": [{"url": f"{url.rstrip('/')}/serving-endpoints/{name}"}],
        "paths": {"/invocations": {"post": invocation}} if tasks else {},
        "components": {"schemas": schemas.components},
    }
