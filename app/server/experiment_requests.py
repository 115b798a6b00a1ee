"""Decisions of managers about an experiment: `If-Match` names the state that they saw.

- `POST /api/experiments/check`: a section for an experiment, checked as the file's sections are.
- The body of `POST /api/feedback`, and its check against the running experiments.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
import yaml
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, WithJsonSchema
from pydantic_core import from_json, to_json
from starlette.requests import Request as HTTPRequest

from app.config.base import ConfigError, problems_of
from app.config.endpoints import MAX_REASON
from app.config.experiments import (
    Experiment,
    FeedbackSettings,
    experiment_warnings,
    is_active,
    unknown_metrics,
)
from app.config.schema import Config, parse
from app.dialects.base import Reply
from app.dialects.bodies import Checked, dump, json_object, json_object_with_nulls, validated
from app.errors import BadRequest, Conflict, PreconditionFailed, PreconditionRequired, SwitchyardError
from app.experiments.contract.query import MAX_RUNS, Action
from app.experiments.contract.report import AutomationStatus, Foreseen, Summary
from app.exposures.controller_client import ControllerClient
from app.exposures.identity import request_hash
from app.exposures.wire import FeedbackItem
from app.server.operations import ask, openai_words


class DecisionRequest(BaseModel):
    """An action on an experiment, with its reason."""

    model_config = ConfigDict(extra="forbid", strict=True)

    action: Action = Field(
        description="`promote`: a treatment gets all the traffic that the holdout leaves, and the experiment ends. "
        "`advance`: the ramp's next step, now. `pause`: no step until the experiment is resumed. `resume`: it "
        "continues. `rollback`: control gets the treatments' traffic, and a ramp pauses. `stop`: the experiment "
        "ends, the traffic stays."
    )
    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON)] = Field(description="Why, for the journal.")
    treatment: str | None = Field(
        default=None, description="Which treatment `promote` means; needed if there are several."
    )


def etag(content: bytes) -> dict[str, str]:
    """The ETag of a Summary in JSON, as headers: none if nothing acts on the experiment."""
    acting = msgspec.json.decode(content, type=Summary).acting
    return {"etag": f'"{acting.revision}"'} if acting is not None else {}


def automation_fields(summary: bytes) -> dict[str, Any]:
    """What the audit log has of a Summary: its revision, its state, and the treatments' share."""
    acting = msgspec.json.decode(summary, type=Summary).acting
    return {"revision": acting.revision, "state": acting.state, "share": acting.share} if acting is not None else {}


async def decide(
    controller: ControllerClient | None, name: str, if_match: str | None, given: Mapping[str, Any], caller: str
) -> tuple[bytes, bytes]:
    """Has the controller carry out the decision; returns the experiment's Summaries before and after it, in JSON.

    Raises PreconditionRequired, PreconditionFailed with the present Summary, Conflict, and Unavailable.
    """
    if if_match is None:
        raise PreconditionRequired(
            "If-Match: missing; send the ETag of the experiment that you saw, so that no one's decision is lost",
            param="If-Match",
        )
    path = f"/experiments/{name}"
    present, acting = await _present(controller, name)
    whatever = if_match.strip() == "*"
    if not whatever and f'"{acting.revision}"' not in [tag.strip() for tag in if_match.split(",")]:
        raise stale(json.loads(present))
    decision = {**given, "by": caller} | ({} if whatever else {"revision": acting.revision})
    try:
        return present, (await ask(controller, "POST", f"{path}/decision", body=dump(decision))).body
    except PreconditionFailed as error:  # another action came between the question and the decision
        raise stale(error.current) from None


async def foresee(controller: ControllerClient | None, name: str, body: bytes, caller: str) -> Foreseen:
    """The consequences of the decision, if it were made now. Raises BadRequest, Conflict, and Unavailable."""
    given = given_decision(body)
    await _present(controller, name)
    decision = dump({**given, "by": caller})
    answer = await ask(controller, "POST", f"/experiments/{name}/decision", {"dry_run": "true"}, decision)
    return msgspec.json.decode(answer.body, type=Foreseen)


def given_decision(body: bytes) -> dict[str, Any]:
    """The decision in the body. Raises BadRequest."""
    request = validated(
        DecisionRequest, json_object(body), lambda problem: BadRequest(problem.message, param=problem.path)
    )
    return request.model_dump(exclude_none=True)


async def _present(controller: ControllerClient | None, name: str) -> tuple[bytes, AutomationStatus]:
    """The present Summary, and the state of acting. Raises Conflict if nothing acts on the experiment."""
    present = (await ask(controller, "GET", f"/experiments/{name}")).body
    acting = msgspec.json.decode(present, type=Summary).acting
    if acting is None:
        raise Conflict(f"Nothing acts on '{name}': it is an A/A test, or its state is draft or stopped", param="name")
    return present, acting


def stale(present: Mapping[str, Any]) -> PreconditionFailed:
    """The decision was made for another state than the `present` Summary."""
    message = "If-Match: the experiment has gone on since; look at it, then repeat the request with its ETag"
    return PreconditionFailed(message, current=present)


def error_words(error: SwitchyardError, request: HTTPRequest, request_id: str) -> Reply:
    """OpenAI's form, with the experiment's present state if the request was made for another one."""
    reply = openai_words(error, request, request_id)
    if isinstance(error, PreconditionFailed):
        present = dump(error.current)
        body = dump({**json.loads(reply.body), "current": error.current})
        return replace(reply, body=body, headers={**reply.headers, **etag(present)})
    return reply


class CheckRequest(BaseModel):
    """A new experiment, or other settings of one that is declared."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(description="What it is to be called.")
    experiment: dict[str, Any] = Field(description="The section, as below `experiments` in the file.")


def check(body: bytes, seen: Config) -> dict[str, Any]:
    """The problems for which the section would be rejected, its warnings, and without problems the YAML for the file.

    It is checked against what the caller sees. Raises BadRequest if `body` is not a CheckRequest.
    """
    given = validated(
        CheckRequest, json_object_with_nulls(body), lambda problem: BadRequest(problem.message, param=problem.path)
    )
    section = {name: value for name, value in given.experiment.items() if value is not None}
    try:
        config = _with(given.name, section, seen)
    except ConfigError as error:
        return {"problems": _excerpt(error.problems, given.name), "warnings": [], "yaml": None}
    experiment = config.experiments[given.name]
    warnings = experiment_warnings({given.name: experiment}, seen.endpoints)
    return {"problems": [], "warnings": _excerpt(warnings, given.name), "yaml": _yaml(given.name, section)}


def _with(name: str, section: Mapping[str, Any], seen: Config) -> Config:
    """The configuration with this experiment. Raises ConfigError."""
    try:
        Experiment.model_validate(section)
    except ValidationError as error:  # all of them, as the whole configuration's check would report them
        problems = [*problems_of(error, Experiment), *unknown_metrics(section)]
        raise ConfigError([f"experiments.{name}.{problem}" for problem in problems]) from None
    others = {
        other: plain.model_dump() for other, plain in seen.experiments.items() if plain.endpoint in seen.endpoints
    }
    return parse(
        {
            "endpoints": {other: endpoint.model_dump() for other, endpoint in seen.endpoints.items()},
            "deployments": {other: deployment.model_dump() for other, deployment in seen.deployments.items()},
            "experiments": {**others, name: section},
        }
    )


def _excerpt(lines: list[str], name: str) -> list[str]:
    """Lines about this experiment without its path, so that each begins with the field."""
    path = f"experiments.{name}"
    return [line.removeprefix(f"{path}.").removeprefix(f"{path}: ") for line in lines]


def _yaml(name: str, section: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(
        {"experiments": {name: dict(section)}}, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    return text


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


def _declared(config: Config) -> dict[str, list[FeedbackSettings]]:
    """Every running experiment's feedback metrics, by name: two experiments may declare the same one."""
    declared: dict[str, list[FeedbackSettings]] = {}
    for experiment in config.experiments.values():
        if is_active(experiment) and experiment.endpoint in config.endpoints:
            for name, declaration in experiment.feedback.items():
                declared.setdefault(name, []).append(declaration)
    return declared


def _value(value: object, declared: Iterable[FeedbackSettings], path: str) -> float:
    """The value as a number, if any of the declarations accepts it."""
    expected = []
    for settings in declared:
        if settings.type == "boolean":
            if isinstance(value, bool | int | float) and value in (0, 1):
                return float(value)
            expected.append("true or false")
        else:
            assert settings.min is not None, "the configuration checks it"
            assert settings.max is not None
            if isinstance(value, int | float) and not isinstance(value, bool) and settings.min <= value <= settings.max:
                return float(value)
            expected.append(f"a number from {settings.min:g} to {settings.max:g}")
    raise BadRequest(f"{path}: must be {' or '.join(dict.fromkeys(expected))}, not {_quoted(value)}", param=path)


def _quoted(value: object) -> str:
    """The value as JSON where it is short, else its type."""
    if isinstance(value, str):
        return "a text"
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else to_json(value).decode()


def _validated(model: type[Checked], content: Any) -> Checked:
    if not isinstance(content, dict | list):
        raise BadRequest("The body must be a JSON object, or a list of them")
    return validated(model, content, lambda problem: BadRequest(problem.message, param=problem.path))
