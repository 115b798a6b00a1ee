"""Databricks' Foundation Model APIs: OpenAI's shapes behind serving endpoints, with Databricks' bounds and errors.

Contract: https://docs.databricks.com/aws/en/machine-learning/foundation-model-apis/api-reference, and what
`databricks-sdk`, `mlflow.deployments` and the OpenAI SDK at `/serving-endpoints` send and expect.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from app.config.schema import Config, Task
from app.dialects.base import Call, ParseContext, Reply, Request, Route, openai_routes
from app.dialects.bodies import request_object
from app.dialects.common.fields import REJECTED_BY_NAME
from app.dialects.databricks.chat import DatabricksChatTranslation, DatabricksEmbeddingsTranslation, RequestContext
from app.dialects.databricks.completions import DatabricksCompletionsTranslation
from app.dialects.databricks.errors import error_reply
from app.dialects.databricks.fields import Chat, Completions, Embeddings, merged
from app.dialects.databricks.fields import DatabricksBody as Fields
from app.dialects.databricks.response_fields import Responses
from app.dialects.databricks.responses import DatabricksResponsesTranslation
from app.dialects.schemas import Body
from app.errors import NotFound, Rejected, SwitchyardError, WrongTask

TASKS: Mapping[Task, tuple[str, str]] = {
    "chat": ("llm/v1/chat", "messages"),
    "completions": ("llm/v1/completions", "prompt"),
    "embeddings": ("llm/v1/embeddings", "input"),
    "responses": ("agent/v1/responses", "input"),
}
"""Each task's name in Databricks' API, and the field that identifies its requests."""

_PARSERS: Mapping[str, Callable[[dict[str, Any], RequestContext], Call]] = {
    "chat": DatabricksChatTranslation.parse,
    "completions": DatabricksCompletionsTranslation.parse,
    "embeddings": DatabricksEmbeddingsTranslation.parse,
    "responses": DatabricksResponsesTranslation.parse,
}

BODIES: Mapping[Task, Body] = {
    "chat": Body(Chat),
    "completions": Body(Completions),
    "embeddings": Body(Embeddings),
    "responses": Body(Responses),
}
"""The body of each task's requests. Its fields may also be in `extra_params`, as JSON."""


def _openai_routes(prefix: str) -> tuple[Route, ...]:
    return (*openai_routes(prefix), Route("POST", f"{prefix}/responses", "responses"))


class Databricks:
    """The dialect at `/serving-endpoints`, and at `/ai-gateway/mlflow/v1`."""

    name: ClassVar[str] = "databricks"
    routes: ClassVar[Sequence[Route]] = (
        Route("POST", "/serving-endpoints/{name}/invocations", "invocations"),
        Route("POST", "/serving-endpoints/{name}/served-models/{deployment}/invocations", "invocations"),
        *_openai_routes("/serving-endpoints"),
        *_openai_routes("/ai-gateway/mlflow/v1"),
    )
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {
        **{task: [body] for task, body in BODIES.items()},
        "invocations": list(BODIES.values()),
    }
    unknown_fields: ClassVar[str] = REJECTED_BY_NAME
    unknown_nested: ClassVar[str] = f"{REJECTED_BY_NAME}; of items of an `input`, and their blocks: no effect"

    def claims(self, route: Route, request: Request) -> bool:
        return True  # no other dialect has these paths

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        name = request.params.get("name")
        tasks = () if name is None else _tasks_of(name, context.config)
        body = merged(request_object(request.body))
        origin = RequestContext(native=name is not None, request_id=request.id)
        call = _PARSERS[operation if name is None else _task(name, tasks, body)](body, origin)
        user = body.get("user") or body.get("safety_identifier")
        call = replace(call, model=body.get("model"), user=user, cache_key=body.get("prompt_cache_key"))
        if name is None:
            return call
        chosen = request.params.get("deployment") or (call.model if call.model != name else None)
        return replace(call, model=name, deployment=chosen)

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        if isinstance(error, Rejected) and error.param and error.param not in error.message:
            # The body has no other place for the field's name.
            error = Rejected(f"{error.param}: {error.message}", status=error.status, param=error.param)
        return error_reply(error, request_id=request.id)

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        raise NotFound(f"No route for {request.method} {request.path}")


def _tasks_of(name: str, config: Config) -> Sequence[Task]:
    """The Databricks tasks that the endpoint or deployment `name` supports. Raises NotFound if there is neither."""
    section = config.endpoints.get(name) or config.deployments.get(name)
    if section is None:
        raise NotFound(f"There is no endpoint '{name}'", param="model")  # its caller may not see the others' names
    return [task for task in section.tasks if task in TASKS]


def _task(name: str, tasks: Sequence[Task], body: Mapping[str, Any]) -> Task:
    """The task that a body is for, by its fields. Raises WrongTask if it is not one of `tasks`."""
    if not tasks:
        raise WrongTask(f"Endpoint '{name}' has no task of this API", param="model")
    expected = " or ".join(f"`{TASKS[task][1]}` ({TASKS[task][0]})" for task in tasks)
    for task in tasks:
        if TASKS[task][1] in body:
            return task
    sent = next((field for field in ("messages", "prompt", "input", *Fields.refused) if field in body), None)
    if sent is None:
        what = "the request has no field of its task"
    elif sent in Fields.refused:
        what = f"`{sent}` has rows for models of other kinds"
    else:
        what = f"`{sent}` is another task's"
    raise WrongTask(f"Endpoint '{name}' expects {expected}; {what}", param=sent)
