"""Databricks' Foundation Model APIs: OpenAI's shapes behind serving endpoints, with Databricks' bounds and errors.

Contract: https://docs.databricks.com/aws/en/machine-learning/foundation-model-apis/api-reference, and what
`databricks-sdk`, `mlflow.deployments` and the OpenAI SDK at `/serving-endpoints` send and expect.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic_core import from_json

from app.config.schema import Config, Task
from app.dialects.base import ParseContext, Reply, Request, Route, ServingContext, Stream
from app.dialects.databricks.answer import RequestContext
from app.dialects.databricks.chat import chat
from app.dialects.databricks.completions import completions
from app.dialects.databricks.embeddings import embeddings
from app.dialects.databricks.errors import error_reply
from app.dialects.databricks.fields import Chat, Completions, Embeddings, merged
from app.dialects.databricks.responses.fields import Responses
from app.dialects.databricks.responses.translate import responses
from app.dialects.json_body import dump, json_object
from app.dialects.legacy import Call
from app.dialects.openapi_schemas import Body
from app.errors import Broken, NotFound, Rejected, SwitchyardError, WrongTask

TASKS: Mapping[Task, tuple[str, str]] = {
    "chat": ("llm/v1/chat", "messages"),
    "completions": ("llm/v1/completions", "prompt"),
    "embeddings": ("llm/v1/embeddings", "input"),
    "responses": ("agent/v1/responses", "input"),
}
"""Each task's name at Databricks, and the field by which its requests are known."""

_BUILDERS: Mapping[str, Callable[[dict[str, Any], RequestContext], Call]] = {
    "chat": chat,
    "completions": completions,
    "embeddings": embeddings,
    "responses": responses,
}

BODIES: Mapping[Task, Body] = {
    "chat": Body(Chat),
    "completions": Body(Completions),
    "embeddings": Body(Embeddings),
    "responses": Body(Responses),
}
"""What each task's requests are checked by. Their fields may also be in `extra_params`, as JSON."""


def _at_openais_paths(prefix: str) -> tuple[Route, ...]:
    return (
        Route("POST", f"{prefix}/chat/completions", "chat"),
        Route("POST", f"{prefix}/completions", "completions"),
        Route("POST", f"{prefix}/embeddings", "embeddings"),
        Route("POST", f"{prefix}/responses", "responses"),
    )


class Databricks:
    """The dialect at `/serving-endpoints`, and at `/ai-gateway/mlflow/v1`."""

    name: ClassVar[str] = "databricks"
    routes: ClassVar[Sequence[Route]] = (
        Route("POST", "/serving-endpoints/{name}/invocations", "invocations"),
        Route("POST", "/serving-endpoints/{name}/served-models/{deployment}/invocations", "invocations"),
        *_at_openais_paths("/serving-endpoints"),
        *_at_openais_paths("/ai-gateway/mlflow/v1"),
    )
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {
        **{task: [body] for task, body in BODIES.items()},
        "invocations": list(BODIES.values()),
    }

    def claims(self, route: Route, request: Request) -> bool:
        return True  # nobody else has these paths

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        name = request.params.get("name")
        tasks = () if name is None else _tasks_of(name, context.config)
        body = merged(json_object(request.body))
        asked = RequestContext(native=name is not None, request_id=request.id)
        call = _BUILDERS[operation if name is None else _task(name, tasks, body)](body, asked)
        call = replace(call, model=body.get("model"), user=body.get("user") or body.get("safety_identifier"))
        if name is None:
            return call
        chosen = request.params.get("deployment") or (call.model if call.model != name else None)
        return replace(call, model=name, deployment=chosen)

    def render(self, call: Call, body: bytes, served: ServingContext) -> Reply:
        try:
            told = call.note.whole(from_json(body))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise Broken("The deployment's answer is not what it was asked for") from error
        return Reply(dump(told), headers=_served_by(served))

    def stream(self, call: Call, served: ServingContext) -> Stream:
        stream: Stream = call.note.stream()
        stream.headers = _served_by(served)
        return stream

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        if isinstance(error, Rejected) and error.param and error.param not in error.message:
            # The body has no other place for the field's name.
            error = Rejected(f"{error.param}: {error.message}", status=error.status, param=error.param)
        return error_reply(error, request_id=request.id)

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        raise NotFound(f"There is nothing at {request.path}")


def _served_by(served: ServingContext) -> dict[str, str]:
    return {"served-model-name": served.deployment}


def _tasks_of(name: str, config: Config) -> Sequence[Task]:
    """What an endpoint, or a deployment asked by its own name, does. Raises NotFound where neither has the name."""
    found = config.endpoints.get(name) or config.deployments.get(name)
    if found is None:
        known = ", ".join(config.endpoints)
        raise NotFound(f"There is no endpoint '{name}'; the endpoints are: {known}", param="model")
    return found.tasks


def _task(name: str, tasks: Sequence[Task], body: Mapping[str, Any]) -> Task:
    """The task that a body is for, which shows in its fields. Raises WrongTask where the endpoint has another."""
    expected = " or ".join(f"`{TASKS[task][1]}` ({TASKS[task][0]})" for task in tasks)
    for task in tasks:
        if TASKS[task][1] in body:
            return task
    sent = [field for field in ("messages", "prompt", "input") if field in body]
    what = f"`{sent[0]}` is another task's" if sent else "the request has none of its task's fields"
    raise WrongTask(f"Endpoint '{name}' expects {expected}; {what}", param=sent[0] if sent else None)
