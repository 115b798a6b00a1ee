"""What an endpoint takes and gives, as OpenAPI: `GET /api/2.0/serving-endpoints/{name}/openapi`.

Contract: https://docs.databricks.com/machine-learning/foundation-model-apis/api-reference, the fields per task.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.config import Endpoint, Task

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": ["integer", "null"], "minimum": 1}
_FLAG: Schema = {"type": "boolean", "default": False}
_FREE: Schema = {"type": "object"}
_TEXTS: Schema = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_TEMPERATURE: Schema = {"type": "number", "minimum": 0, "maximum": 2, "default": 1}
_TOP_P: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 1}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _choice(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def _object(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


_SAMPLING: Mapping[str, Schema] = {
    "max_tokens": _COUNT,
    "temperature": _TEMPERATURE,
    "top_p": _TOP_P,
    "top_k": _COUNT,
    "stop": _TEXTS,
    "n": {"type": "integer", "minimum": 1, "default": 1},
    "stream": _FLAG,
}

_MESSAGE = _object(
    "role",
    role=_choice("system", "user", "assistant", "tool"),
    content={"type": ["string", "array", "null"], "items": _FREE},
    tool_calls=_list(_FREE),
    tool_call_id=_TEXT,
)

_REQUESTS: Mapping[Task, Schema] = {
    "chat": _object(
        "messages",
        messages={"type": "array", "items": _MESSAGE, "minItems": 1},
        tools={"type": ["array", "null"], "items": _FREE, "maxItems": 32},
        tool_choice={"oneOf": [_choice("none", "auto", "required"), _FREE]},
        response_format={"type": ["object", "null"]},
        logprobs=_FLAG,
        top_logprobs={"type": ["integer", "null"], "minimum": 0, "maximum": 20},
        reasoning_effort=_choice("low", "medium", "high"),
        **_SAMPLING,
    ),
    "completions": _object(
        "prompt",
        prompt=_TEXTS,
        error_behavior={**_choice("error", "truncate"), "default": "error"},
        suffix={**_TEXT, "default": ""},
        echo=_FLAG,
        use_raw_prompt=_FLAG,
        **_SAMPLING,
    ),
    "embeddings": _object("input", input=_TEXTS, instruction=_TEXT),
    "responses": _object(
        "input",
        input={"oneOf": [_TEXT, _list(_FREE)]},
        instructions={"type": ["string", "null"]},
        max_output_tokens=_COUNT,
        temperature=_TEMPERATURE,
        top_p=_TOP_P,
        stream=_FLAG,
        text=_FREE,
        reasoning=_FREE,
        tools={"type": ["array", "null"], "items": _FREE},
        tool_choice={"oneOf": [_choice("none", "auto", "required"), _FREE]},
    ),
}

_WHOLE: Schema = {"type": "integer"}
_CHOSEN: Mapping[str, Schema] = {"index": _WHOLE, "finish_reason": _TEXT, "finishReason": _TEXT}
_COUNTS = _object(prompt_tokens=_WHOLE, completion_tokens=_WHOLE, total_tokens=_WHOLE)
_HEAD: Mapping[str, Schema] = {"id": _TEXT, "object": _TEXT, "created": _WHOLE, "model": _TEXT, "usage": _COUNTS}

_RESPONSES: Mapping[Task, Schema] = {
    "chat": _object(**_HEAD, choices=_list(_object(message=_MESSAGE, **_CHOSEN))),
    "completions": _object(**_HEAD, choices=_list(_object(text=_TEXT, **_CHOSEN))),
    "embeddings": _object(
        id=_TEXT,
        object=_TEXT,
        model=_TEXT,
        data=_list(_object(object=_TEXT, index=_WHOLE, embedding=_list({"type": "number"}))),
        usage=_object(prompt_tokens=_WHOLE, total_tokens=_WHOLE),
    ),
    "responses": _object(id=_TEXT, object=_TEXT, status=_TEXT, model=_TEXT, output=_list(_FREE), usage=_FREE),
}


def openapi(name: str, endpoint: Endpoint, url: str) -> dict[str, Any]:
    """The document (OpenAPI 3.1) for the endpoint's route at the server `url`, one schema per task that it does."""
    body = {"application/json": {"schema": _one_of([_REQUESTS[task] for task in endpoint.tasks])}}
    answer = {"application/json": {"schema": _one_of([_RESPONSES[task] for task in endpoint.tasks])}}
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": "1"},
        "servers": [{"url": f"{url.rstrip('/')}/serving-endpoints/{name}"}],
        "paths": {
            "/invocations": {
                "post": {
                    "requestBody": {"required": True, "content": body},
                    "responses": {"200": {"description": "The answer", "content": answer}},
                }
            }
        },
    }


def _one_of(schemas: Sequence[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"oneOf": list(schemas)}
