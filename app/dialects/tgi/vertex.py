"""`/vertex`, Google Vertex AI's route of TGI: several requests in one, answered together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from app.config.schema import Task
from app.dialects.base import Call, EngineRequest, Flow, ParseContext, Reply, Request, ServingContext, Translation
from app.dialects.bodies import dump, request_object
from app.dialects.tgi.chat import Chat, ChatCompletion
from app.dialects.tgi.fields import GenerateRequest, read
from app.dialects.tgi.generate import Generate
from app.dialects.tgi.profile import RequestStyle, profile_of
from app.engine.constraints import Effort, refused_constraint
from app.engine.output import find_usage
from app.errors import BadRequest, Unprocessable

MAX_INSTANCES = 128


class Instances(BaseModel):
    """The request as OpenAPI describes it; `Vertex.parse` checks one instance after the other."""

    instances: list[GenerateRequest | Chat] = Field(
        min_length=1,
        max_length=MAX_INSTANCES,
        description=f"1 to {MAX_INSTANCES} requests, each with `inputs` and `parameters` or a chat's fields",
    )


@dataclass(frozen=True, slots=True)
class Vertex(Translation):
    """A batch of generations and chats. The engine gets all of them at once; the answer has their texts, in order."""

    instances: Sequence[Generate | ChatCompletion]
    needs_model = True

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        instances = request_object(request.body).get("instances")
        if not isinstance(instances, list):
            raise BadRequest("`instances`: must be a list", param="instances")
        if not 0 < len(instances) <= MAX_INSTANCES:
            raise Unprocessable(f"`instances` must be 1 to {MAX_INSTANCES}. Given: {len(instances)}", param="instances")
        effort = Effort()
        parsed = [_instance(instance, f"instances[{i}]", context, effort) for i, instance in enumerate(instances)]
        has_chats = any(isinstance(instance, ChatCompletion) for instance in parsed)
        body = {"input": [instance.body for instance in parsed]}
        task: Task = "chat" if has_chats else "completions"
        return Call(task, body, cls(parsed), field_names={"input": "instances"})

    def engine_requests(self, serving: ServingContext) -> Flow:
        requests: list[EngineRequest] = []
        for instance in self.instances:
            if requests:
                yield ()
            request = yield from instance.engine_requests(serving)
            assert isinstance(request, EngineRequest), "an instance needs the engine"
            requests.append(request)
        answers = yield requests
        texts = [instance.text(answer, serving) for instance, answer in zip(self.instances, answers, strict=True)]
        return Reply(dump({"predictions": texts}), usage=find_usage(dump(answers)))


def _instance(instance: Any, path: str, context: ParseContext, effort: Effort) -> Generate | ChatCompletion:
    """Raises BadRequest or Unprocessable, naming the instance by its `path`."""
    if not isinstance(instance, dict):
        raise BadRequest(f"`{path}`: must be an object", param=path)
    try:
        translation = _translation({**instance, "stream": False}, context)
        # The exchange checks the constraints of single requests only.
        if (refused := refused_constraint(translation.body, effort=effort)) is not None:
            field, reason = refused
            name = translation.field_names.get(field.partition(".")[0], field)
            raise Unprocessable(f"{name}: {reason}", param=name)
    except (BadRequest, Unprocessable) as error:
        raise type(error)(f"{path}: {error.message}", param=f"{path}.{error.param}", code=error.code) from None
    return translation


def _translation(fields: dict[str, Any], context: ParseContext) -> Generate | ChatCompletion:
    if "messages" in fields:
        return ChatCompletion.from_body(fields)
    style = RequestStyle(profile_of(context.config), is_tgi=True)
    return Generate.from_request(read(fields), style, context.random)
