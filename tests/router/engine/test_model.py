"""How the router fetches a deployment's model card, and caches it."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.config.schema import Timeouts
from app.errors import Broken, Unavailable, UpstreamError
from app.internal_api import INTERNAL_KEY_HEADER, MODEL_PATH
from app.upstream.client import Upstream
from app.upstream.target import Target
from tests.support.clients.samples import tokenizer
from tests.support.processes.servers import free_port, serve

CARD = {"tokenizer": tokenizer().to_str(), "eos_token_ids": [0], "max_model_len": 100}


class CardServer:
    """A model application that serves its card, and records the ETags of the requests."""

    def __init__(self) -> None:
        self.card: dict[str, Any] = CARD
        self.status = 200
        self.etags: list[str | None] = []
        self.go_on = threading.Event()
        self.go_on.set()

    async def answer(self, request: Request) -> Response:
        assert request.headers[INTERNAL_KEY_HEADER] == "key"
        known = request.headers.get("if-none-match")
        self.etags.append(known)
        await asyncio.to_thread(self.go_on.wait, 5)
        etag = f'"{self.card["max_model_len"]}"'
        if known == etag:
            return Response(status_code=304, headers={"etag": etag})
        return Response(json.dumps(self.card), self.status, {"etag": etag}, media_type="application/json")


@pytest.fixture
async def upstream(request: pytest.FixtureRequest) -> AsyncIterator[Upstream]:
    """A rig, parametrized indirectly with `Upstream`'s arguments."""
    async with Upstream(**getattr(request, "param", {})) as upstream:
        yield upstream


def target(url: str, tokenizer_dir: Path | None = None, model: str = "m") -> Target:
    return Target("blue", url, model, {INTERNAL_KEY_HEADER: "key"}, tokenizer_dir)


async def test_deployments_that_share_an_engine_share_its_card(upstream: Upstream) -> None:
    server = CardServer()
    with serve(Starlette(routes=[Route(MODEL_PATH, server.answer)])) as url:
        identities = {
            id(await upstream.model(target(url, model=name), Timeouts())) for name in ("m", "french", "german")
        }
    assert (len(identities), server.etags) == (1, [None])


async def test_a_fresh_card_is_requested_once(upstream: Upstream) -> None:
    server = CardServer()
    with serve(Starlette(routes=[Route(MODEL_PATH, server.answer)])) as url:
        first, second = [await upstream.model(target(url), Timeouts()) for _ in range(2)]
    assert first is second
    assert first.max_len == 100
    assert server.etags == [None]


@pytest.mark.parametrize("upstream", [{"model_fresh_s": -1}], indirect=True, ids=["nothing stays fresh"])
async def test_a_stale_card_is_requested_by_its_etag(upstream: Upstream) -> None:
    server = CardServer()
    with serve(Starlette(routes=[Route(MODEL_PATH, server.answer)])) as url:
        first = await upstream.model(target(url), Timeouts())
        assert await upstream.model(target(url), Timeouts()) is first
        server.card = {**CARD, "max_model_len": 200}
        assert (await upstream.model(target(url), Timeouts())).max_len == 200
        assert server.etags == [None, '"100"', '"100"']
        server.status = 500
        server.card = CARD
        assert (await upstream.model(target(url), Timeouts())).max_len == 200
    assert (await upstream.model(target(url), Timeouts())).max_len == 200


@pytest.mark.parametrize("status", [404, 405, 500])
async def test_a_deployment_without_a_card_has_failed(upstream: Upstream, status: int) -> None:
    server = CardServer()
    server.status = status
    with serve(Starlette(routes=[Route(MODEL_PATH, server.answer)])) as url:
        with pytest.raises(UpstreamError):
            await upstream.model(target(url), Timeouts())
        server.status = 200
        assert (await upstream.model(target(url), Timeouts())).max_len == 100


@pytest.mark.parametrize(
    "upstream", [{"model_fresh_s": -1, "model_max_wait_s": 0.01}], indirect=True, ids=["short waits"]
)
async def test_a_hanging_deployment_delays_no_request_that_knows_its_model(upstream: Upstream) -> None:
    server = CardServer()
    with serve(Starlette(routes=[Route(MODEL_PATH, server.answer)])) as url:
        first = await upstream.model(target(url), Timeouts())
        server.go_on.clear()
        answer = [await upstream.model(target(url), Timeouts()) for _ in range(3)]
        server.go_on.set()
    assert answer == [first] * 3
    assert server.etags == [None, '"100"']


async def test_a_client_that_leaves_does_not_cancel_the_shared_fetch(upstream: Upstream) -> None:
    server = CardServer()
    server.go_on.clear()
    with serve(Starlette(routes=[Route(MODEL_PATH, server.answer)])) as url:
        leaver, stayer = (asyncio.create_task(upstream.model(target(url), Timeouts())) for _ in range(2))
        await asyncio.sleep(0)
        leaver.cancel()
        server.go_on.set()
        assert (await stayer).max_len == 100
    assert server.etags == [None]


async def test_a_deployment_that_is_gone_is_unavailable(upstream: Upstream) -> None:
    with pytest.raises(Unavailable):
        await upstream.model(target(f"http://127.0.0.1:{free_port()}"), Timeouts())


async def models(request: Request) -> Response:
    adapter = {"id": "french", "max_model_len": None, "parent": "m"}  # as vLLM lists it
    listed = [{"id": "other", "max_model_len": 7}, adapter, {"id": "m", "max_model_len": 50, "parent": None}]
    return Response(json.dumps({"data": listed}))


async def test_a_model_of_an_external_server_is_read_from_local_files(upstream: Upstream, tmp_path: Path) -> None:
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    with serve(Starlette(routes=[Route("/v1/models", models)])) as url:
        model = await upstream.model(target(url, tmp_path), Timeouts())
        assert model.max_len == 50
        assert (await upstream.model(target(url, tmp_path, "french"), Timeouts())).max_len == 50, "its parent's"
        unknown = Target("blue", url + "/", "gone", {}, tmp_path)
        with pytest.raises(Broken):
            await upstream.model(unknown, Timeouts())


async def test_missing_tokenizer_files_are_a_broken_deployment(upstream: Upstream, tmp_path: Path) -> None:
    with serve(Starlette(routes=[Route("/v1/models", models)])) as url, pytest.raises(Broken, match="cannot be read"):
        await upstream.model(target(url, tmp_path), Timeouts())
