"""An application in place of an engine: streams as many chunks as it is asked for, at the pace it is asked for.

Its replicas are placed as an engine's, run as many requests at a time as they have slots, and report their load as an
engine's. Every chunk says which pod and process it comes from.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram
from pydantic import BaseModel, ConfigDict
from ray import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from app.internal_keys import Purpose, accepted
from deployments.draining import GRACE_S
from deployments.engine.internal_key import InternalKeyMiddleware
from deployments.engine.server import QUEUE_TIME, SERVICE_TIME, LoadReport, held_by_serve


class EngineArgs(BaseModel):
    """`llm_config` as for an engine; only its placement is used. `loads_for_s`: how long a replica takes to start.
    `slots`: how many requests run at a time, like `max_num_seqs`; the others wait for their first chunk.
    """

    model_config = ConfigDict(extra="forbid")

    llm_config: dict[str, Any]
    loads_for_s: float = 0.0
    slots: int = 1024


class Work:
    """The slots of an engine, and vLLM's metrics of them."""

    def __init__(self, slots: int) -> None:
        self._free, registry = asyncio.Semaphore(slots), CollectorRegistry()
        self._running = Gauge("vllm:num_requests_running", "", registry=registry)
        self._waiting = Gauge("vllm:num_requests_waiting", "", registry=registry)
        self._queued_s = Histogram(QUEUE_TIME, "", registry=registry)
        self._served_s = Histogram(SERVICE_TIME, "", registry=registry)
        self.load = LoadReport(held_by_serve, registry)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits for a slot, and holds it while the block runs."""
        with self._waiting.track_inprogress(), self._queued_s.time():
            await self._free.acquire()
        try:
            with self._running.track_inprogress(), self._served_s.time():
                yield
        finally:
            self._free.release()


@serve.ingress()
class PacedEngine:
    """Answers chat completions. The last message is JSON: `{"every_s": 0.5}` between two of `max_tokens` chunks, and
    the memory that the request takes in a pod of that name: `{"fill": "pod", "fill_mib": 100}`.
    """

    def __init__(self, loads_for_s: float, slots: int) -> None:
        time.sleep(loads_for_s)
        self._name = f"{os.environ['POD_NAME']}:{os.getpid()}"
        self._work = Work(slots)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application that the replica serves."""
        routes = [
            Route("/health", self._health),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        return InternalKeyMiddleware(Starlette(routes=routes), keys=accepted(os.environ, Purpose.ENGINE))

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The load that an engine's replica reports."""
        return self._work.load.read()

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        count = body.get("max_tokens") or body.get("max_completion_tokens") or 1
        wanted = json.loads(body["messages"][-1]["content"])
        every_s = float(wanted.get("every_s", 0))
        mib = int(wanted.get("fill_mib", 0)) if wanted.get("fill") == os.environ["POD_NAME"] else 0
        taken = b"x" * (mib << 20)
        head = {"id": "chatcmpl-1", "created": int(time.time()), "model": body["model"]}
        if body.get("stream"):
            return StreamingResponse(self._stream(head, count, every_s), media_type="text/event-stream")
        async with self._work.slot():
            await asyncio.sleep(count * every_s)
        message = {"role": "assistant", "content": f"{self._name} " * count}
        assert len(taken) == mib << 20
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
        return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": usage})

    async def _stream(self, head: dict[str, Any], count: int, every_s: float) -> AsyncIterator[str]:
        async with self._work.slot():
            for number in range(count):
                yield self._chunk(head, f"{self._name} ", None)
                if number + 1 < count:
                    await asyncio.sleep(every_s)
            yield self._chunk(head, "", "stop")
            yield "data: [DONE]\n\n"

    def _chunk(self, head: dict[str, Any], content: str, finish_reason: str | None) -> str:
        choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish_reason}
        return f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"


def build(args: EngineArgs) -> serve.Application:
    """The application; Serve validates `args` against its annotation."""
    config = args.llm_config
    bundle = dict(config["placement_group_config"]["bundle_per_worker"])
    actor = (config.get("deployment_config") or {}).get("ray_actor_options") or {}
    bundle["CPU"] = bundle.get("CPU", 0) + actor.get("num_cpus", 1)  # as Ray's LLMServer places its replica
    deployment = serve.deployment(
        name="Engine",
        ray_actor_options=actor,
        placement_group_bundles=[bundle],
        placement_group_strategy="PACK",
        graceful_shutdown_timeout_s=GRACE_S,
        max_ongoing_requests=128,
    )
    return deployment(PacedEngine).bind(args.loads_for_s, args.slots)
