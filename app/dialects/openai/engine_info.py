"""vLLM's questions about one engine: GET /version and GET /tokenizer_info, asked of a deployment.

`?model=` names the endpoint or the deployment; else it is the default endpoint of the first task that has one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from pydantic_core import from_json

from app.config.schema import TASKS, Config, Task
from app.dialects.base import Call, Reply, Request, ServingContext
from app.dialects.common.direct import DirectTranslation
from app.dialects.json_body import dump
from app.engine.answers import TOKENIZER_INFO_PATH, VERSION_PATH
from app.errors import UnsupportedRoute


@dataclass(frozen=True)
class Version(DirectTranslation):
    """The engine's version in vLLM's form, and this server's beside it."""

    generates = False
    is_shared = True

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(dump({"version": from_json(answer)["version"], "switchyard": _own_version()}))


def no_tokenizer_info() -> UnsupportedRoute:
    """The error where the engine has no such route."""
    argument = "`engine_kwargs: {enable_tokenizer_info_endpoint: true}` in the deployment's application"
    return UnsupportedRoute("tokenizer's settings", argument)


@dataclass(frozen=True)
class TokenizerInfo(DirectTranslation):
    """The tokenizer's settings, from engines that show them."""

    generates = False
    is_shared = True


@cache
def _own_version() -> str | None:
    try:
        return version("switchyard")
    except PackageNotFoundError:  # run from a checkout
        return None


QUESTIONS: Mapping[str, Callable[[], DirectTranslation]] = {
    "version": lambda: Version(VERSION_PATH, {}),
    "tokenizer_info": lambda: TokenizerInfo(TOKENIZER_INFO_PATH, {}),
}
"""Operation to its translation."""


def asked(question: Callable[[], DirectTranslation], request: Request, config: Config) -> Call:
    """The call of a question."""
    name = request.query.get("model")
    named = config.endpoints.get(name or "") or config.deployments.get(name or "")
    tasks = config.defaults if name is None else named.tasks if named is not None else ()
    task: Task = next((task for task in TASKS if task in tasks), "chat")
    return Call(task, {}, question(), name)
