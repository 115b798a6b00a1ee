"""Streams outlive their engines: what clients of every dialect see, and what the router's books say."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

from app.internal_api import APP_PREFIX, CONTINUATION_HEADER
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.support.engine.fake_engine import CARD, USAGE, FakeEngine, frame, stream
from tests.support.engine.marked import Fate
from tests.support.engine.other_answers import every_route
from tests.support.experiments.recording_controller import Keeper
from tests.support.processes.servers import ServerPool

ASKS: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
AZURE = "/azure/chat/completions?api-version=2024-05-01-preview"
STREAMS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "openai chat": ("/v1/chat/completions", {"messages": ASKS, "stream_options": {"include_usage": True}}),
    "openai completions": ("/v1/completions", {"prompt": "hi"}),
    "openai responses": ("/v1/responses", {"input": "hi"}),
    "anthropic": ("/v1/messages", {"messages": ASKS, "max_tokens": 9}),
    "azure": (AZURE, {"messages": ASKS}),
    "databricks": ("/serving-endpoints/chat/invocations", {"messages": ASKS}),
    "databricks responses": ("/serving-endpoints/responses", {"input": "hi"}),
    "tgi": ("/tgi/chat/generate_stream", {"inputs": "hi", "parameters": {"max_new_tokens": 9}}),
    "tgi chat": ("/tgi/chat/v1/chat/completions", {"messages": ASKS}),
    "friendli chat": ("/dedicated/v1/chat/completions", {"messages": ASKS}),
    "friendli": ("/dedicated/v1/completions", {"prompt": "hi", "max_tokens": 9}),
}
each = pytest.mark.parametrize("name", STREAMS)
_BREAKS = ("azure", "friendli")


class ContinuingRig:
    """A router, and the replicas of its one deployment, all of which one fake plays."""

    def __init__(self, router: Router, engine: FakeEngine, client: httpx.Client) -> None:
        self.router, self.engine, self.client = router, engine, client
        self.config: dict[str, Any] = {
            "endpoints": {"chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"blue": 100}}},
            "deployments": {"blue": {"app": "blue", "model": "m"}},
            "defaults": {"chat": "chat", "completions": "chat", "responses": "chat"},
        }
        self.router.reconfigure(self.config)

    def change(self, deployment: Mapping[str, Any] | None = None, **sections: Any) -> None:
        deployments = {"blue": {**self.config["deployments"]["blue"], **(deployment or {})}}
        self.router.reconfigure({**self.config, "deployments": deployments, **sections})

    def ask(self, name: str = "openai chat", **fields: Any) -> httpx.Response:
        path, body = STREAMS[name]
        return self.client.post(path, json={"model": "chat", "stream": True, **body, **fields})

    def text(self, name: str = "openai chat", **fields: Any) -> str:
        """The body of a stream; of a broken one, what came of it."""
        path, body = STREAMS[name]
        parts = []
        with self.client.stream("POST", path, json={"model": "chat", "stream": True, **body, **fields}) as response:
            assert response.status_code == 200, response.read()
            try:
                parts = [part for part in response.iter_text()]
            except httpx.RemoteProtocolError:
                parts.append("broken")
        return "".join(parts)

    def metric(self, begins: str) -> float:
        lines = [line for line in self.client.get("/metrics").text.splitlines() if line.startswith(begins)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def continued(self, reason: str, outcome: str) -> float:
        labels = f'deployment="blue",endpoint="chat",outcome="{outcome}",reason="{reason}"'
        return self.metric(f"switchyard_continued_streams_total{{{labels}}}")


@pytest.fixture
def rig(servers: ServerPool) -> Iterator[ContinuingRig]:
    engine = FakeEngine(card=CARD, continues=True)
    others = every_route(engine)
    engine.answer = lambda body: completion(body) if isinstance(body.get("prompt"), str) else others(body)
    with servers.host(Starlette(routes=[Mount(f"{APP_PREFIX}blue", engine.app)])) as ingress:
        router = Router(RuntimeEnvironment(ingress, internal_key="internal"), controller=Keeper(), send_every_s=0.02)
        with servers.host(router.app) as url, httpx.Client(base_url=url, timeout=30) as client:
            yield ContinuingRig(router, engine, client)


def completion(body: dict[str, Any]) -> Response:
    """vLLM's completion of a text, in several chunks."""
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    texts = [("Hel", None), ("lo", None), (" you", None), ("", "length")]
    choices = [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason} for text, reason in texts]
    frames = [frame({**head, "choices": [choice]}) for choice in choices]
    return stream([*frames, frame({**head, "choices": [], "usage": USAGE}), "data: [DONE]\n\n"])


def plain(text: str) -> str:
    """An answer without what differs between two requests for the same."""
    return re.sub(r'"(id|created|created_at|request_id|seed)":("[^"]*"|[0-9]+)', "", text)


@each
def test_a_stream_goes_on_wherever_its_engine_dies(rig: ContinuingRig, name: str) -> None:
    undisturbed = plain(rig.text(name))
    assert CONTINUATION_HEADER not in undisturbed
    assert ":t " not in undisturbed
    for how in ("closed", "half", "error", "handover"):
        for after in range(1, 9):
            rig.engine.fates = [Fate(after, how)]
            rig.engine.known.clear()
            assert plain(rig.text(name)) == undisturbed, (how, after)
            if len(rig.engine.known) == 1:
                break  # the stream was over
        assert after > 1, how
    assert rig.continued("closed", "continued") > 0 < rig.continued("handover", "continued")
