"""The server in the replicas of every vLLM deployment. Importing it imports vLLM.

vLLM's own FastAPI application is mounted on each replica (`serve.ingress()`), so every native route is available,
behind the internal key.

- Reports a replica's age to the router: a new one answers more slowly, since its caches are empty; and its id, by which
  the router knows a death that several streams tell of.
- A stream outlives its engine. A replica that is stopped hands over its streams. Whole answers tell their engine, too.
- A client that disconnects ends its generation, streaming or not.
- Ray's vLLM engine, with the model in the process of vLLM's scheduler where possible.
- A replica's report of its load, for the autoscaling policy (`deployments.autoscaling`): vLLM's own metrics.
"""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry
from ray import serve
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine
from ray.serve.exceptions import RayServeException
from ray.serve.llm.deployment import LLMServer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.internal_api import AWAIT_WEIGHTS_VARIABLE, MODEL_PATH, PACKAGE_PREFIX, REPLICA_AGE_HEADER, REPLICA_HEADER
from app.internal_keys import Purpose, accepted
from app.telemetry.logs import event, log_to_stderr
from deployments.draining import is_stopped, own_replica
from deployments.engine.adapters import prepare_modules
from deployments.engine.bounds import guard, harden
from deployments.engine.completions import add_completions
from deployments.engine.continuation import OpenStreams, continue_streams, obstacle
from deployments.engine.fork import end_spares, fork_engines
from deployments.engine.head_first import HeadFirstMiddleware
from deployments.engine.internal_key import InternalKeyMiddleware
from deployments.engine.logits.vllm_adapter import BatchProcessor
from deployments.engine.model_info import add_model_card, engine_card
from deployments.engine.scheduler import scheduler_class
from deployments.engine.trial import Trials
from deployments.engine.tried_requests import trials_for, tried
from deployments.engine.watchdog import Watchdog
from deployments.weights import cache as weights
from deployments.weights.sources import source_on
from deployments.weights.volume import arrival

_AGE, _ID = REPLICA_AGE_HEADER.encode(), REPLICA_HEADER.encode()


class ReplicaMiddleware:
    """Adds to every HTTP response the replica's id, and the seconds since this was made, when the engine is ready."""

    def __init__(self, app: ASGIApp, *, id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock
        self._ready_at, self._id = clock(), id.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = ((_AGE, b"%.1f" % (self._clock() - self._ready_at)), (_ID, self._id))
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


_log = logging.getLogger("switchyard")


# A replica that is stopped finishes its requests, for as long as a request may take. Streams need not hold its node so
# long: another replica continues them. That computes prompt and answer again, so short answers are finished first.

LOOK_AGAIN_S = 1.0


async def hand_over_when_stopped(
    streams: OpenStreams,
    is_stopped: Callable[[], bool],
    has_successor: Callable[[], bool],
    after_s: float,
    every_s: float = LOOK_AGAIN_S,
) -> None:
    """Hands over all `streams` from `after_s` seconds after the stop on, while another replica runs. Never returns.

    `has_successor` may block.
    """
    while not is_stopped():  # noqa: ASYNC110  Serve tells nobody
        await asyncio.sleep(every_s)
    await asyncio.sleep(after_s)
    while True:
        if len(streams) and await asyncio.to_thread(has_successor) and (count := streams.hand_over()):
            _log.info("Handed over the streams of a stopped replica", extra=event("handed_over", streams=count))
        await asyncio.sleep(every_s)


def replica_id() -> str:
    """Serve's id of this replica; a random one where the engine is served without Serve."""
    try:
        return str(serve.get_replica_context().replica_tag)
    except RayServeException:
        return secrets.token_hex(8)


def has_successor() -> bool:
    """Whether another replica of this one's deployment runs. This one counts as stopping."""
    context = serve.get_replica_context()
    application = serve.status().applications.get(context.app_name)
    deployment = application and application.deployments.get(context.deployment)
    return bool(deployment and deployment.replica_states.get("RUNNING"))


# Serve handles a disconnect by cancelling the request's task. vLLM generates an unstreamed response in a separate task,
# and the task that would end it on a disconnect is the one that Serve has just cancelled: the engine would continue. So
# the cancellation is delayed for a moment, in which vLLM reads the disconnect itself.

GRACE_S = 0.1
"""The time that the application has to end by itself. A stream does not: the cancellation that follows ends it."""


class DisconnectMiddleware:
    """Lets the application read a disconnect before it is cancelled."""

    def __init__(self, app: ASGIApp, *, grace_s: float = GRACE_S) -> None:
        self._app = app
        self._grace_s = grace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        task = asyncio.ensure_future(self._app(scope, receive, send))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=self._grace_s)
            task.cancel()
            raise


# On CPUs vLLM starts a process for the model alongside that of its scheduler, since the threads of OpenMP are bound to
# cores when a process starts. Where threads are not bound (VLLM_CPU_OMP_THREADS_BIND=nobind) and one process has the
# whole model, that only costs: eight CPU-seconds at the start, half a gigabyte of memory, and a message each way per
# step.

NOT_BOUND = "nobind"
"""vLLM's value for threads that are not bound to cores."""


class Engine(VLLMEngine):  # type: ignore[misc]  # Ray ships no types
    """Chooses vLLM's executor after Ray, which knows one for CPUs alone, and its scheduler; extends its workers; tries
    constraints.
    """

    obstacle: str | None = None
    """Why the engine does not continue streams."""
    trials: Trials | None = None
    """Of constraints."""

    async def start(self) -> None:
        """Returns when constraints can be tried, too: a new replica's first requests may be a lost engine's streams."""
        await super().start()
        if self.trials is not None:
            await self.trials.ready()

    def _start_async_llm_engine(self, vllm_engine_args: Any, vllm_engine_config: Any, placement_group: Any) -> Any:
        parallel = vllm_engine_config.parallel_config
        parallel.distributed_executor_backend = executor(
            parallel.distributed_executor_backend,
            parallel.world_size,
            vllm_engine_config.device_config.device_type,
            os.environ.get("VLLM_CPU_OMP_THREADS_BIND", ""),
        )
        self.obstacle = obstacle(vllm_engine_config)
        if self.obstacle is None:
            parallel.worker_extension_cls = WORKER_EXTENSION
        scheduler = vllm_engine_config.scheduler_config
        scheduler.scheduler_cls = scheduler_class(scheduler.scheduler_cls, is_async=scheduler.async_scheduling)
        self.trials = trials_for(vllm_engine_config)
        fork_engines()
        client = super()._start_async_llm_engine(vllm_engine_args, vllm_engine_config, placement_group)
        end_spares()
        if self.trials is not None:
            client.add_request = tried(client.add_request, self.trials)
        return client


WORKER_EXTENSION = "deployments.engine.worker.WorkerExtension"


def executor(chosen: str, processes: int, device: str, binding: str) -> str:
    """vLLM's executor: `uni`, in the scheduler's process, or the one that Ray and vLLM have `chosen`."""
    alone = chosen == "mp" and processes == 1
    return "uni" if alone and device == "cpu" and binding == NOT_BOUND else chosen


GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv",
}
"""vLLM's name to ours. With several engine cores in a replica, requests add up, and `kv` is the fullest one's."""

PREFIX_CACHE = {
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
}
"""vLLM's counters of prompt tokens."""

QUEUE_TIME = "vllm:request_queue_time_seconds"
"""vLLM's histogram of the time that requests waited before they began, in seconds."""

SERVICE_TIME = "vllm:request_inference_time_seconds"
"""vLLM's histogram of the time that requests ran, in seconds."""


class LoadReport:
    """Reads the metrics of this process. `held`: requests that wait in Serve, before vLLM. `clock`: seconds."""

    def __init__(
        self,
        held: Callable[[], int],
        registry: CollectorRegistry = REGISTRY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        names = [*GAUGES, *(f"{name}_{part}" for name in (QUEUE_TIME, SERVICE_TIME) for part in ("sum", "count"))]
        self._collect, self._held, self._clock = registry.restricted_registry(names).collect, held, clock
        self._ready_at = clock()
        self._before: dict[str, tuple[float, float]] = {}
        self._service_s = 0.0

    def read(self) -> dict[str, float]:
        """`ReplicaLoad` as a dict. `queue_s` is the mean of the requests that began since the last call, 0 if none did;
        `service_s` of those that ended, or the last one that is known.

        Values that vLLM does not report are left out: the policy then has only Serve's own count.
        """
        load: dict[str, float] = {"held": float(self._held()), "age_s": self._clock() - self._ready_at}
        for family in self._collect():
            values = [sample.value for sample in family.samples]
            if family.name == QUEUE_TIME:
                load["queue_s"] = self._mean_since(family) or 0.0
            elif family.name == SERVICE_TIME:
                load["service_s"] = self._service_s = self._mean_since(family) or self._service_s
            elif (name := GAUGES.get(family.name)) is not None and values:
                load[name] = _of_engines(name, values)
        return load

    def _mean_since(self, family: Any) -> float | None:
        """The mean of a histogram's observations since the last call; None without any."""
        total = sum(sample.value for sample in family.samples if sample.name.endswith("_sum"))
        count = sum(sample.value for sample in family.samples if sample.name.endswith("_count"))
        total_before, count_before = self._before.get(family.name, (0.0, 0.0))
        self._before[family.name] = (total, count)
        return (total - total_before) / (count - count_before) if count > count_before else None


def present_counts(held: int, registry: CollectorRegistry = REGISTRY) -> dict[str, Any]:
    """The counts of an `EngineCard`, from the metrics of this process. `held`: as in `LoadReport`."""
    names = {**GAUGES, **PREFIX_CACHE}
    values: dict[str, list[float]] = {}
    for family in registry.restricted_registry(list(names)).collect():
        for sample in family.samples:
            if sample.name in names:
                values.setdefault(names[sample.name], []).append(sample.value)
    found = {name: _of_engines(name, each) for name, each in values.items()}
    counts: dict[str, Any] = {name: int(value) for name, value in found.items() if name != "kv"}
    if "waiting" in counts:
        counts["waiting"] += held
    return {**counts, "kv_cache_use": found["kv"]} if "kv" in found else counts


def _of_engines(name: str, values: Sequence[float]) -> float:
    return max(values) if name == "kv" else sum(values)


def held_by_serve() -> int:
    """Requests that this replica has accepted and that wait for one of its `max_ongoing_requests`.

    Ray 2.60 counts them and does not publish them; 0 where it does not count.
    """
    return int(getattr(own_replica(), "_num_queued_requests", 0))


@serve.ingress()
class EngineServer(LLMServer):  # type: ignore[misc]  # Ray ships no types
    """Ray's LLMServer behind the internal key."""

    _default_engine_cls = Engine
    _hand_over_after_s: float | None = None
    _takes_embeddings = False

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, llm_config: Any, *, takes_embeddings: bool = False, hand_over_after_s: float | None = None
    ) -> None:
        """`takes_embeddings`: callers may send prompts as tensors. `hand_over_after_s`: when a replica that is stopped
        hands its streams over; None: it finishes them."""
        self._takes_embeddings, self._hand_over_after_s = takes_embeddings, hand_over_after_s
        await super().__init__(llm_config)

    async def start(self) -> None:
        """Starts the engine once its weights are there."""
        log_to_stderr()
        if os.environ.get(AWAIT_WEIGHTS_VARIABLE) == "1":  # not in `_start_engine`, whose time Ray limits
            await arrival(sources_on(models_directory(), self._llm_config), models_directory(), _log.info)
        await super().start()

    async def _start_engine(self) -> None:
        prepare_modules(self._llm_config)
        harden(takes_embeddings=self._takes_embeddings)
        await self.engine.start()  # not super(): Ray's also starts a 400 MB actor for usage reports
        self._streams, self._continues = OpenStreams(), await self._can_continue()
        self._load, self._ready_at = LoadReport(held_by_serve), time.time()
        self._watchers = [asyncio.create_task(Watchdog(self.engine._engine_client).run())]
        if (after_s := self._hand_over_after_s) is not None:
            handing_over = hand_over_when_stopped(self._streams, is_stopped, has_successor, after_s)
            self._watchers.append(asyncio.create_task(handing_over))

    async def _can_continue(self) -> bool:
        """Whether this replica continues the streams of others."""
        why_not = self.engine.obstacle
        if why_not is None and not all(await self.engine._engine_client.collective_rpc("take_output")):
            why_not = "an unknown model runner"
        if why_not is not None:
            message = "This replica does not continue the streams of others: %s"
            _log.warning(message, why_not, extra=event("continues_no_streams", reason=why_not))
        return why_not is None

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The load, for the autoscaling policy. Serve finds this method by its name and calls it every few seconds."""
        return self._load.read()

    def card(self) -> bytes:
        """An `app.engine.card.EngineCard` as JSON, for `deployments.fleet` in routers."""
        return engine_card(self.engine._engine_client.vllm_config, self._ready_at, present_counts(held_by_serve()))

    async def __serve_build_asgi_app__(self) -> FastAPI:
        app: FastAPI = await super().__serve_build_asgi_app__()
        BatchProcessor.vocabulary_size = app.state.engine_client.model_config.get_vocab_size()
        add_model_card(app, MODEL_PATH, continues=self._continues)
        add_completions(app)
        continue_streams(app, self._streams, continues=self._continues)
        guard(app.state.engine_client)
        app.add_middleware(DisconnectMiddleware)
        app.add_middleware(HeadFirstMiddleware)
        app.add_middleware(ReplicaMiddleware, id=replica_id())
        app.add_middleware(InternalKeyMiddleware, keys=accepted(os.environ, Purpose.ENGINE))
        return app


class PackagedWeights(CallbackBase):  # type: ignore[misc]
    """Prepares `package:` weights in the replica, before its engine looks for the model."""

    async def on_before_node_init(self) -> None:
        loading = self.llm_config.model_loading_config
        name = loading.model_source.removeprefix(PACKAGE_PREFIX)
        path = await asyncio.to_thread(weights.prepare, name, models_directory())
        loading.model_source = str(path)
        self.llm_config.get_engine_config().hf_model_id = str(path)
        self.ctx.run_init_node = False  # the model is local: no download task on other nodes


def sources_on(volume: Path, llm_config: Any) -> list[str]:
    """The sources of an LLMConfig's model and adapters that the volume has."""
    loading, modules = llm_config.model_loading_config, llm_config.engine_kwargs.get("lora_modules") or ()
    named = [loading.model_source or loading.model_id, *(module["path"] for module in modules)]
    return [source for name in named if isinstance(name, str) and (source := source_on(volume, name)) is not None]


def models_directory() -> Path:
    """The directory of prepared weights on this node."""
    return weights.default_cache()
