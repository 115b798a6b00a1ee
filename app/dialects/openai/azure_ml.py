"""Chats at `/score`, where vLLM scores pairs of texts: Azure ML's managed endpoints have one route for every model.

The client wraps a chat in `input_data`, and reads the text from `output`. Contract: Azure ML's documentation of models
deployed to managed online endpoints, and LangChain's `AzureMLChatOnlineEndpoint`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from app.dialects.base import Reply, ServingContext, immutable
from app.dialects.bodies import dump
from app.dialects.common.fields import NonEmptyList
from app.dialects.common.requests import DirectTranslation
from app.dialects.openai.fields import Message, OperationBody
from app.dialects.schemas import Body, Schemas, content
from app.errors import BadRequest

_MESSAGES, _PARAMETERS = "input_data.input_string", "input_data.parameters"

_UNSUPPORTED: Mapping[str, str] = {
    "return_full_text": "not supported: `output` is the new text alone",
    "stream": "not supported here; `POST /v1/chat/completions` streams",
}

_LOST = (
    "functions logprobs n prompt_logprobs return_prompt_text return_token_ids return_token_offsets tools top_logprobs"
).split()
"""Chat's fields for what an `output` cannot have."""


class InputData(BaseModel):
    """A chat's messages, and the fields of a chat request under `parameters`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input_string: NonEmptyList[Message] = Field(min_length=1)
    parameters: dict[str, Any] = Field(default_factory=dict)


class WrappedChat(OperationBody):
    """POST /score with a chat."""

    input_data: InputData = Field(
        description="Azure ML's form of a chat: the messages are in `input_string`, and chat's fields in `parameters`, "
        "where `max_new_tokens` is `max_tokens`, and `do_sample` false is greedy; the answer has the text as `output`"
    )


def swagger(endpoint: str, bodies: Sequence[Body]) -> dict[str, Any]:
    """What `GET /swagger.json` says of an endpoint: its route, and the bodies that this takes."""
    schemas = Schemas()
    requests = content(schemas.references("openai", bodies))
    answers = {"200": {"description": "The answer", "content": {"application/json": {"schema": {"type": "object"}}}}}
    operation = {
        "operationId": "RunMLService",
        "description": "A chat, or texts to score",
        "requestBody": {"required": True, "content": requests},
        "responses": answers,
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": endpoint, "version": "1"},
        "paths": {"/score": {"post": operation}},
        "components": {"schemas": schemas.components},
    }


@immutable
class OutputTranslation(DirectTranslation):
    """The chat's answer in Azure ML's form."""

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(dump({"output": from_json(answer)["choices"][0]["message"]["content"] or ""}))


def chat_body(body: dict[str, Any]) -> dict[str, Any]:
    """The chat request in a checked `WrappedChat`. Raises BadRequest for parameters that only text has."""
    given = body["input_data"]
    parameters = dict(given.get("parameters", {}))
    for name in ("stream", "return_full_text"):
        if parameters.pop(name, False):
            raise _refused(name, _UNSUPPORTED[name])
    for name in _LOST:
        if parameters.get(name) and (name, parameters[name]) != ("n", 1):
            raise _refused(name, "`output` has one text and nothing else; `POST /v1/chat/completions` has the rest")
    if "max_new_tokens" in parameters:
        if "max_tokens" in parameters:
            raise _refused("max_tokens", "not together with max_new_tokens, which is the same")
        parameters["max_tokens"] = parameters.pop("max_new_tokens")
    if parameters.pop("do_sample", True) is False:
        parameters["temperature"] = 0
    model = {"model": body["model"]} if "model" in body else {}
    return {**parameters, **model, "messages": given["input_string"]}


def _refused(name: str, why: str) -> BadRequest:
    path = f"{_PARAMETERS}.{name}"
    return BadRequest(f"{path}: {why}", param=path)


def under_clients_name(error: BadRequest) -> BadRequest:
    """The error of a chat request under the name of the field in `input_data`."""
    if error.param is None:
        return error
    is_message = error.param.startswith("messages")
    path = error.param.replace("messages", _MESSAGES, 1) if is_message else f"{_PARAMETERS}.{error.param}"
    return BadRequest(error.message.replace(error.param, path, 1), param=path, code=error.code)
