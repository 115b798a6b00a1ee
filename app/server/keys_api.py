"""API keys over HTTP: managers create, change, rotate and revoke those that the controller of experiments keeps.

`access.issue_keys` allows it. A secret is in the answer to its creation or rotation and nowhere else; what is kept is
its salted hash. Keys of the keys file are listed too, and changed in the file. A manager gives no right that it lacks:
a key for endpoints that it may not use is refused, and so is a change of such a key. Errors have OpenAI's form.
"""

import asyncio
import json
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import replace
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from starlette.requests import Request as HTTPRequest

from app.access import keys as api_keys
from app.access.caller import Caller, names
from app.access.issued import IssuedKey, KeyChange
from app.access.keys import KeyRecord
from app.config.access import CallerName, GroupName, Limits
from app.config.base import ConfigError
from app.config.endpoints import MAX_REASON
from app.config.schema import Config
from app.dialects.base import Reply
from app.dialects.bodies import dump, json_object_with_nulls, validated
from app.dialects.schemas import Body
from app.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    SwitchyardError,
)
from app.misspellings import question
from app.server.operations import Api, ApiRoute, OperationContext, RoutedApi, Services, ask, openai_words, read_json

DAYS = 14
"""Days of use that the list of keys has."""
_NEVER_CACHED = {"cache-control": "no-store"}
_SETTINGS = ("endpoints", "expires", "limits", "group")
_Reason = Annotated[str, Field(min_length=1, max_length=MAX_REASON)]
Given = TypeVar("Given", bound="Reasoned")
_Endpoints = Annotated[list[str], Field(min_length=1, max_length=1000)]


class Reasoned(BaseModel):
    """A change of a key; this alone revokes it."""

    model_config = ConfigDict(extra="forbid")

    reason: _Reason | None = Field(default=None, description="Why, for the audit log.")


class KeySettings(Reasoned):
    """What a key may do. A field that is null has its default."""

    endpoints: _Endpoints | None = Field(default=None, description="The endpoints that it may use. Default: all.")
    expires: AwareDatetime | None = Field(default=None, description="Its end: ISO 8601 with a zone. Default: never.")
    limits: Limits | None = Field(default=None, description="Its own limits. Default: those of the configuration.")
    group: GroupName | None = Field(default=None, description="One of `access.groups`, which experiments tell apart.")


class NewKey(KeySettings):
    """A key to create."""

    name: CallerName = Field(description="The caller's name, in logs, limits and roles. No other key has it.")


class ChangedKey(KeySettings):
    """A change of a key. A field that is left out stays as it is."""

    previous_expires: AwareDatetime | None = Field(
        default=None, description="The end of the secret that a rotation has replaced; null: at once."
    )


class Rotation(Reasoned):
    """A new secret of a key, beside which the present one works for a while."""

    previous_expires: AwareDatetime | None = Field(description="The end of the present secret; null: at once.")
    expires: AwareDatetime | None = Field(default=None, description="The end of the new one. Default: as before.")


class KeysApi(RoutedApi):
    """The routes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._api = Api("switchyard", services, key_words)

    def _table(self) -> list[ApiRoute]:
        match = {"If-Match": "The ETag of the key that was seen"}
        change, rotation, revoke = [Body(ChangedKey)], [Body(Rotation)], [Body(Reasoned)]
        return [
            ApiRoute("GET", "/api/keys", "list_keys", self._list),
            ApiRoute("POST", "/api/keys", "create_key", self._create, {}, [Body(NewKey)], 201, {}, True),
            ApiRoute("PATCH", "/api/keys/{id}", "change_key", self._change, {}, change, 200, match, True),
            ApiRoute("POST", "/api/keys/{id}/rotate", "rotate_key", self._rotate, {}, rotation, 200, match, True),
            ApiRoute("POST", "/api/keys/{id}/revoke", "revoke_key", self._revoke, {}, revoke, 200, match, True),
        ]

    async def _list(self, request: HTTPRequest, context: OperationContext) -> Reply:
        services = self._services
        config, access = services.views().config, services.access
        access.roles.require_viewer(context.caller, "see the keys")
        uses = await self._uses()
        issued = {key.id: key for key in access.issued_keys()}
        used = access.last_uses()
        shown = []
        for key in access.key_uses():
            id = key.caller.id.removeprefix("key-")
            record = issued.get(id)
            times = [at for at in (used.get(key.caller.id), uses.get("used", {}).get(key.caller.id)) if at is not None]
            shown.append(
                {
                    "id": id,
                    "name": key.caller.name,
                    "source": "file" if record is None else "issued",
                    "endpoints": None if key.caller.endpoints is None else sorted(key.caller.endpoints),
                    "expires": key.expires,
                    "limits": _numbers(key.caller.limits),
                    "configured_limits": _numbers(config.access.limits.callers.get(key.caller.name)),
                    "group": next(iter(key.caller.groups), None),
                    "created_at": record.created_at if record is not None else None,
                    "created_by": record.created_by if record is not None else None,
                    "previous": key.previous[0] if key.previous is not None else None,
                    "last_used": max(times, default=None),
                    "uses": uses["uses"].get(key.caller.id, []) if uses else None,
                    "revision": record.revision if record is not None else None,
                }
            )
        return Reply(
            dump(
                {
                    "at": time.time(),
                    "days": DAYS,
                    "issue_keys": config.access.issue_keys,
                    "why_not": self._why_not(config, context.caller),
                    "endpoints": list(services.views().of(context.caller).endpoints),
                    "groups": list(config.access.groups),
                    "keys": shown,
                    "former": _former(uses, [str(key["id"]) for key in shown]) if uses else None,
                }
            ),
            headers=_NEVER_CACHED,
        )

    def _why_not(self, config: Config, caller: Caller) -> str | None:
        """The reason why the caller can create no key here; None if it can."""
        if not config.access.knows_callers:
            return "This server checks no keys: set `access.keys_file` or `access.oidc`, and `managers`."
        if not config.access.issue_keys:
            return "Keys are in the keys file: `access.issue_keys: true` lets managers create some here."
        if not self._services.access.roles.may_manage(caller):
            return "Managers create and revoke keys; your key only shows them."
        return None if self._services.controller is not None else "The controller of experiments keeps keys; it is off."

    async def _uses(self) -> dict[str, Any]:
        """What each key was used for, on all routers; empty while the controller does not answer."""
        try:
            async with asyncio.timeout(2.0):
                answer = await ask(self._services.controller, "POST", "/activity/uses", {"days": str(DAYS)})
        except (SwitchyardError, TimeoutError):
            return {}
        found: dict[str, Any] = msgspec.json.decode(answer.body)
        for day in chain(*found["uses"].values()):
            day["not_answered"] = day["failed"]  # which it was called once
        return found

    async def _create(self, request: HTTPRequest, context: OperationContext) -> Reply:
        wanted = await self._asked(request, context, "create keys", NewKey)
        self._check(wanted, self._services.views().config, context.caller)
        if self._services.access.id_of(f"key:{wanted.name}") is not None:
            raise Conflict(f"name: '{wanted.name}' has a key already; choose another name", param="name")
        try:
            secret, record = api_keys.create(
                wanted.name,
                endpoints=wanted.endpoints or (),
                expires=wanted.expires,
                limits=wanted.limits,
                group=wanted.group,
            )
        except ConfigError as error:
            raise BadRequest(str(error), param=error.problems[0].partition(":")[0]) from None
        key = IssuedKey(record.id, record.name, _plain(record), time.time(), context.caller.name)
        await self._keep(KeyChange(record.id, "", key))
        context.change.after = audited(key)
        return Reply(dump({"key": secret, **view(key)}), 201, headers={**_NEVER_CACHED, "etag": f'"{key.revision}"'})

    async def _change(self, request: HTTPRequest, context: OperationContext) -> Reply:
        wanted = await self._asked(request, context, "change keys", ChangedKey)
        present, expected = await self._present(request, context)
        context.change.before = audited(present)
        self._check(wanted, self._services.views().config, context.caller, changed=wanted.model_fields_set)
        settings = wanted.model_dump(mode="json", include=set(_SETTINGS), exclude_unset=True)
        if "previous_expires" in wanted.model_fields_set:
            settings["previous"] = _ended(present, wanted.previous_expires)
        merged = {name: value for name, value in {**present.record, **settings}.items() if value is not None}
        key = replace(present, record=merged)
        await self._keep(KeyChange(present.id, expected, key))
        context.change.after = audited(key)
        return Reply(dump(view(key)), headers={**_NEVER_CACHED, "etag": f'"{key.revision}"'})

    async def _rotate(self, request: HTTPRequest, context: OperationContext) -> Reply:
        wanted = await self._asked(request, context, "rotate keys", Rotation)
        present, expected = await self._present(request, context)
        context.change.before = audited(present)
        now, end = datetime.now(UTC), wanted.previous_expires
        for name, moment in (("previous_expires", end), ("expires", wanted.expires)):
            if moment is not None and moment <= now:
                raise BadRequest(f"{name}: must be in the future", param=name)
        record = KeyRecord.model_validate(present.record)
        if record.previous is not None and record.previous.expires > now:
            until = record.previous.expires.isoformat()
            raise Conflict(f"The key has two secrets until {until}: end the old one first, with `previous_expires`")
        try:
            secret, record = api_keys.rotated(record, now=now, until=end or now, expires=wanted.expires)
        except ConfigError as error:  # the present secret's end is over
            raise BadRequest("expires: the key has ended; name the new secret's end", param="expires") from error
        key = replace(present, record=_plain(record))
        await self._keep(KeyChange(present.id, expected, key))
        context.change.after = audited(key)
        return Reply(dump({"key": secret, **view(key)}), headers={**_NEVER_CACHED, "etag": f'"{key.revision}"'})

    async def _revoke(self, request: HTTPRequest, context: OperationContext) -> Reply:
        await self._asked(request, context, "revoke keys", Reasoned)
        present, expected = await self._present(request, context)
        context.change.before = audited(present)
        await self._keep(KeyChange(present.id, expected, None))
        context.change.after = {"id": present.id, "revoked": True}
        return Reply(dump({"id": present.id, "name": present.name, "revoked": True}), headers=_NEVER_CACHED)

    async def _asked(self, request: HTTPRequest, context: OperationContext, what: str, model: type[Given]) -> Given:
        """What a manager asks for. Raises Forbidden for others, Conflict where no keys are issued, and what `read_json`
        and `given` raise."""
        config, roles = self._services.views().config, self._services.access.roles
        if not roles.may_manage(context.caller):
            raise Forbidden(f"'{context.caller.name}' may not {what}: it is not listed in `access.managers`")
        body = await read_json(request, context, config)
        if not config.access.issue_keys:
            raise Conflict("Keys are in the keys file here: set `access.issue_keys: true` to issue them over the API")
        wanted = given(model, body)
        context.change.reason = wanted.reason
        return wanted

    async def _present(self, request: HTTPRequest, context: OperationContext) -> tuple[IssuedKey, str]:
        """The key in the path, and the revision that `If-Match` expects. Raises PreconditionRequired, NotFound,
        Conflict for a key of the file, and Forbidden for one with more rights than the caller's."""
        id, access = request.path_params["id"], self._services.access
        if (if_match := request.headers.get("if-match")) is None:
            raise PreconditionRequired("If-Match: missing; send the ETag of the key that you saw", param="If-Match")
        await access.refresh_issued()
        key = next((key for key in access.issued_keys() if key.id == id), None)
        if key is None:
            if any(use.caller.id == f"key-{id}" for use in access.key_uses()):
                raise Conflict(f"The key '{id}' is in the keys file: change it there")
            raise NotFound(f"No issued key has the id '{id}'; it may have been revoked", param="id")
        self._require_rights(context.caller, key.record.get("endpoints"))
        tags = [tag.strip().strip('"') for tag in if_match.split(",")]
        if if_match.strip() != "*" and key.revision not in tags:
            raise PreconditionFailed("If-Match: the key has changed; look at it, then repeat", current=view(key))
        return key, key.revision

    def _check(self, wanted: KeySettings, config: Config, caller: Caller, changed: Collection[str] = _SETTINGS) -> None:
        """Raises BadRequest and Forbidden with the field at fault."""
        visible = names(self._services.views().of(caller))
        for number, name in enumerate(wanted.endpoints or ()):
            if name not in visible:
                place = f"endpoints[{number}]"
                raise BadRequest(f"{place}: no endpoint '{name}'{question(name, visible)}", param=place)
        if "endpoints" in changed:
            self._require_rights(caller, wanted.endpoints)
        if wanted.expires is not None and wanted.expires <= datetime.now(UTC):
            raise BadRequest("expires: must be in the future", param="expires")
        if wanted.group is not None and wanted.group not in config.access.groups:
            known = ", ".join(config.access.groups) or "none"
            raise BadRequest(f"group: '{wanted.group}' is not in `access.groups`: {known}", param="group")
        if wanted.limits is not None:
            try:
                self._services.access.check_own_limits()
            except ConfigError as error:
                raise BadRequest(f"limits: {error}", param="limits") from None

    def _require_rights(self, caller: Caller, endpoints: Sequence[str] | None) -> None:
        if caller.endpoints is None:
            return
        more = None if endpoints is None else sorted(set(endpoints) - caller.endpoints)
        if more is None or more:
            wide = "all endpoints" if more is None else ", ".join(more)
            own = ", ".join(sorted(caller.endpoints))
            raise Forbidden(f"'{caller.name}' may use {own} alone, and gives a key no more: not {wide}")

    async def _keep(self, change: KeyChange) -> None:
        """Has the change kept, and applies it here. Other routers read it within seconds."""
        body = msgspec.json.encode(change)
        try:
            await ask(self._services.controller, "POST", "/keys", body=body)
        except PreconditionFailed as error:
            current = view(msgspec.convert(error.current, IssuedKey))
            raise PreconditionFailed(
                "If-Match: the key has changed; look at it, then repeat", current=current
            ) from None
        await self._services.access.refresh_issued()


def given(model: type[Given], body: bytes) -> Given:
    """The body as a `model`. Raises BadRequest with the field at fault."""
    content = json_object_with_nulls(body)
    return validated(model, content, lambda problem: BadRequest(problem.message, param=problem.path))


def key_words(error: SwitchyardError, request: HTTPRequest, request_id: str) -> Reply:
    """OpenAI's form; the present key of a failed precondition is added."""
    reply = openai_words(error, request, request_id)
    if isinstance(error, PreconditionFailed):
        headers = {**reply.headers, "etag": f'"{error.current["revision"]}"'}
        return replace(reply, body=dump({**json.loads(reply.body), "current": error.current}), headers=headers)
    return reply


def _former(uses: Mapping[str, Any], present: Collection[str]) -> dict[str, Any]:
    """What keys were used for that are no more: after a leak, that is the question."""
    used = {**uses["uses"], **uses["used"]}
    ids = {id.removeprefix("key-") for id in used if id.startswith("key-")} - {*present}
    return {
        id: {"last_used": uses["used"].get(f"key-{id}"), "uses": uses["uses"].get(f"key-{id}", [])}
        for id in sorted(ids)
    }


def _numbers(limits: Limits | None) -> dict[str, Any] | None:
    """The limits that are set; None if none is."""
    return None if limits is None else limits.model_dump(exclude_unset=True) or None


def _plain(record: KeyRecord) -> dict[str, Any]:
    return record.model_dump(mode="json", exclude_unset=True)


def _ended(key: IssuedKey, at: datetime | None) -> dict[str, Any] | None:
    """The key's previous secret, which ends then; None: it ends at once. Raises BadRequest."""
    if (previous := key.record.get("previous")) is None:
        raise BadRequest(
            "previous_expires: there is one secret alone; a rotation gives it two", param="previous_expires"
        )
    if at is not None and at <= datetime.now(UTC):
        raise BadRequest("previous_expires: must be in the future, or null", param="previous_expires")
    return {**previous, "expires": at.isoformat()} if at is not None else None


def view(key: IssuedKey) -> dict[str, Any]:
    """The key as the API shows it: without the hash."""
    record = key.record
    return {
        "id": key.id,
        "name": key.name,
        **{name: record.get(name) for name in _SETTINGS},
        "previous_expires": (record.get("previous") or {}).get("expires"),
        "created_at": key.created_at,
        "created_by": key.created_by,
        "revision": key.revision,
    }


def audited(key: IssuedKey) -> Mapping[str, Any]:
    """The key in the audit log."""
    return {name: value for name, value in view(key).items() if name in ("id", "name", "previous_expires", *_SETTINGS)}
