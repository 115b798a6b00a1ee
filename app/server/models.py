"""`GET /api/models`: what is loaded where. Each application of a model, its replicas, and what their engines say.

Managers and viewers read it, at the endpoints that they may use, and operators at those that they operate. Every sum is
one of the replicas that it lists; what nobody says is null. Engine arguments may hold secrets, so that only values that
cannot be one are shown.
"""

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request as HTTPRequest

from app.access.caller import Caller, behind
from app.activity.report import ReplicaStart
from app.config.reference import packages
from app.config.schema import Config
from app.control_plane import RUNNING
from app.dialects.base import Reply
from app.dialects.bodies import dump
from app.engine.card import EngineCard, decode
from app.errors import Forbidden, SwitchyardError
from app.server.fleet import Fleet, FleetSource, KnownFleet, Replica
from app.server.operations import (
    PATIENCE_S,
    Api,
    ApiRoute,
    OperationContext,
    RoutedApi,
    Services,
    ask_in_time,
    openai_words,
)

MOST_AT_ONCE = 32
"""Replicas that are asked at the same time."""

OLD_S = 10.0
"""The age above which the page says how old the list of replicas is."""

HIDDEN = {"hidden": True}
"""In place of a value that may be a secret."""

_SAFE_TEXTS = frozenset(
    """model tokenizer revision tokenizer_revision code_revision served_model_name generation_config load_format
    model_impl tokenizer_mode quantization reasoning_parser tool_call_parser attention_backend
    distributed_executor_backend data_parallel_backend spec_method spec_model""".split()
)
"""Arguments whose texts name a model, a file or a part of vLLM."""
_CREDENTIALS = frozenset({"api_key", "hf_token"})
_ADDRESS = re.compile(r"://|[@?]")
"""In a text that may be an address with a password."""


class ModelsApi(RoutedApi):
    """The route. `fleet`: None where this router is alone. `dead`: which engines have died lately."""

    def __init__(
        self, services: Services, *, fleet: KnownFleet | None, dead: Callable[[], Collection[str]] = frozenset
    ) -> None:
        self._services, self._fleet, self._dead = services, fleet, dead
        self._api = Api("switchyard", services, openai_words)
        self._entries = [ApiRoute("GET", "/api/models", "list_loaded_models", self._models)]

    def _table(self) -> Sequence[ApiRoute]:
        return self._entries

    async def _models(self, request: HTTPRequest, context: OperationContext) -> Reply:
        services = self._services
        seen = self._seen(context.caller)
        fleet, why_not = None, "No control plane: this router does not know its deployments' servers."
        if self._fleet is not None:
            try:
                fleet, why_not = await self._fleet.now(), ""
                if (age_s := self._fleet.age_s()) > OLD_S:
                    why_not = f"Ray Serve's controller has not answered for {age_s:.0f} s: this is what it said then."
            except SwitchyardError as error:
                why_not = f"{error.message}."
        cards = await self._cards(self._fleet, fleet, seen) if self._fleet is not None and fleet is not None else {}
        starts = await ask_in_time(services.controller, "GET", "/activity/starts")
        dead = self._dead()
        cards = {replica: card for replica, card in cards.items() if replica not in dead}
        document = models_document(seen, fleet, cards, starts)
        content = {"at": time.time(), "why_not": why_not or None, **document}
        return Reply(dump(content), headers={"cache-control": "no-store"})

    def _seen(self, caller: Caller) -> Config:
        """The part of the configuration whose models the caller may see. Raises Forbidden if there is none."""
        views, roles = self._services.views(), self._services.access.roles
        visible = views.of(caller)
        if roles.may_view(caller):
            return visible
        if not (operated := roles.operated(caller, visible.endpoints)):
            listed = "in `access.managers`, `access.viewers`, or `access.operators` of an endpoint that it may use"
            raise Forbidden(f"'{caller.name}' may not see what is loaded where: it is not listed {listed}")
        return views.of(replace(caller, endpoints=frozenset(operated)))

    async def _cards(self, known: KnownFleet, fleet: Fleet, seen: Config) -> dict[str, EngineCard]:
        """What the engines of the replicas say that the reader sees, as far as they do within `PATIENCE_S`."""
        cards: dict[str, EngineCard] = {}
        gate = asyncio.Semaphore(MOST_AT_ONCE)

        async def ask(replica: Replica) -> None:
            async with gate:
                try:
                    cards[replica.id] = decode(await known.engine_card(replica.id))
                except (SwitchyardError, msgspec.DecodeError):
                    return

        applications = _deployments(seen).keys()
        queried = [replica for replica in fleet.replicas if replica.application in applications and replica.can_answer]
        try:
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
                for replica in queried:
                    group.create_task(ask(replica))
        except TimeoutError:
            pass
        return cards


async def replica_starts(fleet: FleetSource, known: Collection[str]) -> tuple[list[ReplicaStart], list[str]]:
    """The starts of the replicas with engines that run, but for the `known` ones; and the replicas that are told to
    stop. Raises UpstreamError."""
    listed, starts = await fleet.fleet(), []
    for replica in listed.replicas:
        state = listed.applications.get(replica.application)
        if state is None or "llm_config" not in state.arguments or replica.id in known or not replica.can_answer:
            continue
        try:
            took_s = _took_s(replica, decode(await fleet.engine_card(replica.id)))
        except (SwitchyardError, msgspec.DecodeError):
            continue
        if took_s is not None and replica.started_at is not None:
            starts.append(ReplicaStart(replica.id, replica.application, replica.started_at, took_s))
    return starts, [replica.id for replica in listed.replicas if replica.has_time_to_stop]


def models_document(
    seen: Config,
    fleet: Fleet | None,
    cards: Mapping[str, EngineCard],
    starts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a reader of `seen` sees of `fleet` (None: unknown). `cards`: what engines say, by the replica's id.
    `starts`: those of replicas, as `Board.starts` returns them."""
    behind = _endpoints(seen)
    replicas: dict[str, list[Replica]] = {}
    for replica in fleet.replicas if fleet is not None else ():
        replicas.setdefault(replica.application, []).append(replica)
    return {
        "applications": [
            {
                "application": name,
                "deployments": [
                    {"deployment": deployment, "model": seen.deployments[deployment].model}
                    for deployment in deployments
                ],
                "endpoints": _sorted(endpoint for deployment in deployments for endpoint in behind.get(deployment, ())),
                **_application(fleet, name),
                **_sums(replicas.get(name, []), cards, is_known=fleet is not None),
                "starts": _starts(starts, name, None if fleet is None else replicas.get(name, [])),
                "engines": _engines(replicas.get(name, []), cards),
                "replicas": [_replica(replica, cards.get(replica.id)) for replica in sorted(replicas.get(name, []))],
            }
            for name, deployments in _deployments(seen).items()
        ],
        "elsewhere": [
            {"deployment": name, "model": deployment.model, "endpoints": _sorted(behind.get(name, ()))}
            for name, deployment in seen.deployments.items()
            if deployment.app is None
        ],
    }


def _deployments(seen: Config) -> dict[str, list[str]]:
    """The deployments by application: those of adapters share one."""
    found: dict[str, list[str]] = {}
    for name, deployment in seen.deployments.items():
        if deployment.app is not None:
            found.setdefault(deployment.app, []).append(name)
    return found


def _endpoints(seen: Config) -> dict[str, list[str]]:
    """The endpoints by deployment."""
    found: dict[str, list[str]] = {}
    for name, endpoint in seen.endpoints.items():
        shadow = [endpoint.mirror.deployment] if endpoint.mirror is not None else []
        for deployment in {*behind(endpoint), *shadow}:
            found.setdefault(deployment, []).append(name)
    return found


def _starts(starts: Mapping[str, Any] | None, name: str, present: Sequence[Replica] | None) -> dict[str, Any] | None:
    """An application's known starts. `gone`: how many of those replicas there are no more; `stopped`: how many of them
    were seen to be told to stop. The others have crashed, or nobody watched. Both are null if the present ones
    (`present`) are not known."""
    if starts is None:
        return None
    none: dict[str, Any] = {"count": 0, "median_s": None, "longest_s": None, "last_at": None}
    own = {**none, "replicas": [], "stopped": [], **starts["applications"].get(name, {})}
    ids = {replica.id for replica in present or ()}
    ended = {"gone": own.pop("replicas"), "stopped": own.pop("stopped")}
    counts = {name: len(set(replicas) - ids) if present is not None else None for name, replicas in ended.items()}
    return {"since": starts["since"], **own, **counts}


def _application(fleet: Fleet | None, name: str) -> dict[str, Any]:
    if fleet is None or (state := fleet.applications.get(name)) is None:
        return {"status": None, "message": None, "source": None, "arguments": None}
    section = state.arguments.get("llm_config")
    llm = section if isinstance(section, Mapping) else {}
    loading, arguments = llm.get("model_loading_config"), llm.get("engine_kwargs")
    source = loading.get("model_source") or loading.get("model_id") if isinstance(loading, Mapping) else None
    return {
        "status": state.status,
        "message": state.message or None,
        "source": shown("model", source) if source is not None else None,
        "arguments": _shown(arguments if isinstance(arguments, Mapping) else {}),
    }


def _sums(replicas: Sequence[Replica], cards: Mapping[str, EngineCard], *, is_known: bool) -> dict[str, Any]:
    """Sums over the replicas; of a figure that no replica reports, null."""
    said = [cards[replica.id] for replica in replicas if replica.id in cards]
    queries, hits = _sum(card.prefix_queries for card in said), _sum(card.prefix_hits for card in said)
    return {
        "running_replicas": sum(_runs(replica, cards) for replica in replicas) if is_known else None,
        "running": _sum(card.running for card in said),
        "waiting": _sum(card.waiting for card in said),
        "kv_cache_use": max((card.kv_cache_use for card in said if card.kv_cache_use is not None), default=None),
        "prefix_queries": queries,
        "prefix_hits": hits,
        "prefix_hit_rate": _rate(hits, queries),
    }


def _runs(replica: Replica, cards: Mapping[str, EngineCard]) -> bool:
    """Whether its engine answers, too: the control plane may not have noticed yet that it has died."""
    return replica.state == RUNNING and replica.id in cards


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _rate(hits: int | None, queries: int | None) -> float | None:
    return round(hits / queries, 4) if hits is not None and queries else None


def _engines(replicas: Sequence[Replica], cards: Mapping[str, EngineCard]) -> list[dict[str, Any]]:
    """What does not change while an engine runs, once for all replicas that agree in it."""
    groups: dict[str, dict[str, Any]] = {}
    for replica in sorted(replicas):
        if (card := cards.get(replica.id)) is None:
            continue
        same = {
            "vllm": card.vllm,
            "ray": card.ray,
            "revision": card.revision,
            "device": card.device,
            "devices": card.devices,
            "arguments": _shown(card.arguments),
        }
        key = msgspec.json.encode(same, order="deterministic").decode()
        groups.setdefault(key, {**same, "replicas": []})["replicas"].append(replica.id)
    return list(groups.values())


def _replica(replica: Replica, card: EngineCard | None) -> dict[str, Any]:
    said = msgspec.structs.asdict(card) if card is not None else {}
    return {
        "id": replica.id,
        "state": replica.state,
        "is_silent": replica.state == RUNNING and card is None,
        "node": replica.node or None,
        "accelerator": replica.accelerator,
        "started_at": None if card is not None and _was_running(replica, card) else replica.started_at,
        "ready_at": said.get("ready_at"),
        "start_s": _took_s(replica, card) if card is not None else None,
        **{name: said.get(name) for name in ("running", "waiting", "kv_cache_use", "prefix_queries", "prefix_hits")},
        "prefix_hit_rate": _rate(said.get("prefix_hits"), said.get("prefix_queries")),
    }


def _took_s(replica: Replica, card: EngineCard) -> float | None:
    """Seconds from the replica's start until its engine was ready; None if they are not known."""
    if replica.started_at is None or _was_running(replica, card):
        return None
    return round(card.ready_at - replica.started_at, 1)


def _was_running(replica: Replica, card: EngineCard) -> bool:
    """Whether it ran before Serve's controller, which takes its own start for that of the replicas that it finds."""
    return replica.started_at is not None and card.ready_at < replica.started_at


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(set(names))


# --- Arguments ---


def _shown(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: shown(name, value) for name, value in sorted(arguments.items())}


def shown(name: str, value: Any) -> Any:
    """The value of an engine argument if it can be no secret, and `HIDDEN` if it might be one.

    Numbers, switches and lists of them are shown; texts of arguments whose texts are vLLM's own words, or name a model,
    a file or a part of vLLM. Whatever else there is, such as an object, may have a credential in it.
    """
    if name in _CREDENTIALS:
        return HIDDEN
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list) and all(isinstance(one, bool | int | float) for one in value):
        return value
    if isinstance(value, str) and value in _words().get(name, ()):
        return value
    if isinstance(value, str) and name in _SAFE_TEXTS and _ADDRESS.search(value) is None:
        return value
    return HIDDEN


def _words() -> Mapping[str, Sequence[str]]:
    """The words that vLLM knows for an argument, by its name."""
    properties: Mapping[str, Mapping[str, Any]] = packages()["$defs"]["EngineArguments"]["properties"]
    return {name: schema["enum"] for name, schema in properties.items() if "enum" in schema}
