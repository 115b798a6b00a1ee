"""Decisions of managers about an experiment: `If-Match` names the state that they saw."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request as HTTPRequest

from app.config.endpoints import MAX_REASON
from app.dialects.base import Reply
from app.dialects.bodies import dump, json_object, validated
from app.errors import BadRequest, Conflict, PreconditionFailed, PreconditionRequired, SwitchyardError
from app.experiments.contract.questions import Action
from app.experiments.contract.report import Acting, Foreseen, Summary
from app.exposures.controller_client import ControllerClient
from app.server.api_operation import openai_words
from app.server.controller_answers import ask


class DecisionRequest(BaseModel):
    """An action on an experiment, with its reason."""

    model_config = ConfigDict(extra="forbid", strict=True)

    action: Action = Field(
        description="`promote`: a treatment gets all the traffic that the holdout leaves, and the experiment ends. "
        "`advance`: the ramp's next step, now. `pause`: no step until the experiment is resumed. `resume`: it "
        "continues. `rollback`: control gets the treatments' traffic, and the ramp pauses. `stop`: the experiment "
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


def acting_of(summary: bytes) -> dict[str, Any]:
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
    request = validated(DecisionRequest, json_object(body), lambda it: BadRequest(it.message, param=it.path))
    return request.model_dump(exclude_none=True)


async def _present(controller: ControllerClient | None, name: str) -> tuple[bytes, Acting]:
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
