"""The body of `POST /api/feedback`, and its check against the running experiments."""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, RootModel, WithJsonSchema
from pydantic_core import from_json, to_json

from app.config.experiments import Feedback as Declaration
from app.config.experiments import is_active
from app.config.schema import Config
from app.dialects.bodies import Checked, validated
from app.errors import BadRequest
from app.experiments.contract.questions import MAX_RUNS
from app.exposures.identity import request_hash
from app.exposures.wire import FeedbackItem

MOST_ITEMS = 1000


class Feedback(BaseModel):
    """A score for an answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    request_id: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="The answer's header x-request-id, or the id in its body."
    )
    metric: Annotated[str, Field(max_length=63)] = Field(
        description="A name below `feedback` of a running experiment of an endpoint that the caller may use."
    )
    value: Annotated[object, WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "number"}]})] = Field(
        description="True or false (or 1 or 0), or a number within the metric's bounds, as declared."
    )


class FeedbackList(RootModel[Annotated[list[Feedback], Field(min_length=1, max_length=MOST_ITEMS)]]):
    """Several scores."""


class RunsRequest(BaseModel):
    """The body of `POST /api/experiments/{name}/aa`; the controller checks it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    runs: Annotated[int, Field(ge=1, le=MAX_RUNS)] = Field(description="How often the recorded units are labelled.")


def checked(body: bytes, config: Config, caller: int, at: float) -> tuple[list[FeedbackItem], list[str]]:
    """The scores that count, and the names of metrics that no running experiment of `config` declares.

    `config` is what the caller may see of the configuration, `caller` its hash (0 for a manager), `at` is in Unix
    seconds. Raises BadRequest with the path of the first wrong field; nothing counts then.
    """
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from None
    several = isinstance(content, list)
    if several and not 1 <= len(content) <= MOST_ITEMS:
        raise BadRequest(f"A list has 1 to {MOST_ITEMS} scores, not {len(content)}")
    given = _validated(FeedbackList, content).root if several else [_validated(Feedback, content)]
    declared = _declared(config)
    items, unknown = list[FeedbackItem](), dict[str, None]()
    for index, item in enumerate(given):
        if item.metric not in declared:
            unknown[item.metric] = None
            continue
        path = f"[{index}].value" if several else "value"
        value = _value(item.value, declared[item.metric], path)
        items.append(FeedbackItem(at, request_hash(item.request_id), caller, item.metric, value))
    return items, list(unknown)


def _declared(config: Config) -> dict[str, list[Declaration]]:
    """Every running experiment's feedback metrics, by name: two experiments may declare the same one."""
    declared: dict[str, list[Declaration]] = {}
    for experiment in config.experiments.values():
        if is_active(experiment) and experiment.endpoint in config.endpoints:
            for name, declaration in experiment.feedback.items():
                declared.setdefault(name, []).append(declaration)
    return declared


def _value(value: object, declared: Iterable[Declaration], path: str) -> float:
    """The value as a number, if any of the declarations accepts it."""
    expected = []
    for it in declared:
        if it.type == "boolean":
            if isinstance(value, bool | int | float) and value in (0, 1):
                return float(value)
            expected.append("true or false")
        else:
            assert it.min is not None, "the configuration checks it"
            assert it.max is not None
            if isinstance(value, int | float) and not isinstance(value, bool) and it.min <= value <= it.max:
                return float(value)
            expected.append(f"a number from {it.min:g} to {it.max:g}")
    raise BadRequest(f"{path}: must be {' or '.join(dict.fromkeys(expected))}, not {_shown(value)}", param=path)


def _shown(value: object) -> str:
    """The value as JSON where it is short, else its type."""
    if isinstance(value, str):
        return "a text"
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else to_json(value).decode()


def _validated(model: type[Checked], content: Any) -> Checked:
    if not isinstance(content, dict | list):
        raise BadRequest("The body must be a JSON object, or a list of them")
    return validated(model, content, lambda problem: BadRequest(problem.message, param=problem.path))
