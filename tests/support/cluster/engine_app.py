"""An application in place of an engine: streams as many chunks as it is asked for, at the pace it is asked for.

Its replicas are placed as an engine's. Every chunk says which pod and process it comes from.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from app.internal_api import INTERNAL_KEY_VARIABLE
from deployments.draining import GRACE_S
from deployments.engine.internal_key import InternalKeyMiddleware


class EngineArgs(BaseModel):
    """`llm_config` as for an engine, of which only the placement counts; `loads_for_s`: how long a replica starts."""

    model_config = ConfigDict(extra="forbid")

    llm_config: dict[str, Any]
    loads_for_s: float = 0.0


@serve.ingress()
class PacedEngine:
    """Answers chat completions. The last message is JSON: `{"every_s": 0.5}` between two of `max_tokens` chunks."""

    def __init__(self, loads_for_s: float) -> None:
        time.sleep(loads_for_s)
        self._name = f"{os.environ['POD_NAME']}:{os.getpid()}"
        self._running = 0

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application that the replica serves."""
        routes = [
            Route("/health", self._health),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        return InternalKeyMiddleware(Starlette(routes=routes), key=os.environ.get(INTERNAL_KEY_VARIABLE))

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What an engine's replica reports."""
        return {"running": float(self._running), "waiting": 0.0}

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        count = body.get("max_tokens") or body.get("max_completion_tokens") or 1
        every_s = float(json.loads(body["messages"][-1]["content"]).get("every_s", 0))
        head = {"id": "chatcmpl-1", "created": int(time.time()), "model": body["model"]}
        if body.get("stream"):
            return StreamingResponse(self._stream(head, count, every_s), media_type="text/event-stream")
        await asyncio.sleep(count * every_s)
        message = {"role": "assistant", "content": f"{self._name} " * count}
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
        return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": usage})

    async def _stream(self, head: dict[str, Any], count: int, every_s: float) -> AsyncIterator[str]:
        self._running += 1
        try:
            for number in range(count):
                yield self._chunk(head, f"{self._name} ", None)
                if number + 1 < count:
                    await asyncio.sleep(every_s)
            yield self._chunk(head, "", "stop")
            yield "data: [DONE]\n\n"
        finally:
            self._running -= 1

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
    return deployment(PacedEngine).bind(args.loads_for_s)
