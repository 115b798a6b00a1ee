"""Google Vertex AI's route of TGI: several questions in one request, their texts in one answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, Field
from pydantic_core import from_json

from app.config.schema import Task
from app.dialects.base import Reply, ServingContext
from app.dialects.json_body import dump
from app.dialects.legacy import Lookup
from app.dialects.tgi.answer import generated_text
from app.dialects.tgi.chat import request as chat
from app.dialects.tgi.chat.answer import text_of
from app.dialects.tgi.chat.fields import Chat
from app.dialects.tgi.fields import Question, read
from app.dialects.tgi.generation import Generation
from app.dialects.tgi.profile import Profile, RequestStyle
from app.errors import BadRequest, Unprocessable
from app.routing.traffic import Random

MAX_INSTANCES = 128


class Instances(BaseModel):
    """A request as a whole, for those who want to know what it may be; `Batch` reads one after the other."""

    instances: list[Question | Chat] = Field(min_length=1, max_length=MAX_INSTANCES)


@dataclass(frozen=True, slots=True)
class Batch:
    """The instances of a request: a Generation each, None for a chat. `questions` are theirs, in vLLM's words."""

    generations: Sequence[Generation | None]
    questions: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, body: Mapping[str, Any], profile: Profile, random: Random) -> Self:
        """Raises BadRequest or Unprocessable, which name the instance."""
        instances = body.get("instances")
        if not isinstance(instances, list):
            raise BadRequest("`instances`: must be a list", param="instances")
        if not 0 < len(instances) <= MAX_INSTANCES:
            raise Unprocessable(f"`instances` must be 1 to {MAX_INSTANCES}. Given: {len(instances)}", param="instances")
        read = [_read(instance, f"instances[{i}]", profile, random) for i, instance in enumerate(instances)]
        return cls([generation for generation, _ in read], [question for _, question in read])

    @property
    def task(self) -> Task:
        """What the deployment must be able to do."""
        return "chat" if None in self.generations else "completions"

    def fit(self, body: dict[str, Any], served: ServingContext) -> dict[str, Any]:
        """The questions with ids for prompts. Raises Unprocessable."""
        asked = zip(self.generations, self.questions, strict=True)
        return {**body, "input": [(one.fit if one else chat.possible)(question, served) for one, question in asked]}

    def lookup(self, body: dict[str, Any]) -> Lookup:
        """All of them at once."""
        paths = ["/v1/completions" if one else "/v1/chat/completions" for one in self.generations]
        return Lookup(list(zip(paths, body["input"], strict=True)), lambda _, answers: {"answers": list(answers)})

    def predictions(self, body: bytes, served: ServingContext) -> Reply:
        """The texts, in order. Raises Broken."""
        answers = from_json(body)["answers"]
        texts = [
            generated_text(one, dump(answer), served) if one else text_of(answer)
            for one, answer in zip(self.generations, answers, strict=True)
        ]
        return Reply(dump({"predictions": texts}))


def _read(instance: Any, path: str, profile: Profile, random: Random) -> tuple[Generation | None, dict[str, Any]]:
    if not isinstance(instance, dict):
        raise BadRequest(f"`{path}`: must be an object", param=path)
    try:
        if "messages" in instance:
            question, _ = chat.chat({**instance, "stream": False})
            return None, question
        inputs, parameters = read({**instance, "stream": False})
        return Generation.of(inputs, parameters, RequestStyle(profile, is_tgis=True), random)
    except (BadRequest, Unprocessable) as error:
        raise type(error)(f"{path}: {error.message}", param=f"{path}.{error.param}", code=error.code) from None
