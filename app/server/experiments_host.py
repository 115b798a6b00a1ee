"""The controller of experiments over HTTP, for routers in other processes. Its host requires the internal key.

POST /batches               an encoded batch; the answer is an acknowledgement, both MessagePack
POST /recordings            an encoded file of recorded requests; 204 once it is written
GET, POST /api/<path>       a question, answered as `app.experiments.api` does
GET /export                 the recorded exposures, as a file; its bytes come as they are read
GET /health                 it is alive
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app.errors import SwitchyardError
from app.experiments.controller import InvalidBatch
from app.experiments.host import ControllerHost
from app.experiments.recordings import InvalidRecording
from app.experiments.storage.store import StoreError
from app.exposures.controller_client import Answer
from app.internal_api import (
    API_PATH,
    BATCHES_PATH,
    CONTROLLER_HEADER,
    EXPORT_PATH,
    MESSAGE_PACK,
    RECORDINGS_PATH,
)

_OURS = {CONTROLLER_HEADER: "1"}


def experiments_app(host: ControllerHost) -> Starlette:
    """The application; the controller works during its lifespan."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with host:
            yield

    async def batches(request: Request) -> Response:
        return Response(await host.send(await request.body()), 200, _OURS, MESSAGE_PACK)

    async def recordings(request: Request) -> Response:
        await host.record(await request.body())
        return Response(status_code=204, headers=_OURS)

    async def api(request: Request) -> Response:
        path = "/" + request.path_params["path"]
        answer = await host.ask(request.method, path, dict(request.query_params), await request.body())
        return Response(answer.body, answer.status, _OURS, answer.media_type)

    async def export(request: Request) -> Response:
        stack = AsyncExitStack()
        exported = await stack.enter_async_context(host.export(dict(request.query_params)))
        if isinstance(exported, Answer):
            await stack.aclose()
            return Response(exported.body, exported.status, _OURS, exported.media_type)

        async def pieces() -> AsyncIterator[bytes]:
            async with stack:
                async for piece in exported.pieces:
                    yield piece

        return StreamingResponse(pieces(), 200, _OURS, exported.media_type)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route(BATCHES_PATH, batches, methods=["POST"]),
            Route(RECORDINGS_PATH, recordings, methods=["POST"]),
            Route(API_PATH + "/{path:path}", api, methods=["GET", "POST"]),
            Route(EXPORT_PATH, export, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
        ],
        exception_handlers={
            InvalidBatch: _invalid,
            InvalidRecording: _invalid_recording,
            StoreError: _not_written,
            SwitchyardError: _failed,
        },
        lifespan=lifespan,
    )


async def _invalid(request: Request, raised: Exception) -> Response:
    return JSONResponse({"message": f"This is not a batch: {raised}", "param": None}, 400, _OURS)


async def _invalid_recording(request: Request, raised: Exception) -> Response:
    return JSONResponse({"message": f"This is not a recording: {raised}", "param": None}, 400, _OURS)


async def _not_written(request: Request, raised: Exception) -> Response:
    message = f"The ledger's directory cannot be written: {raised}"
    return JSONResponse({"message": message, "param": None}, 503, _OURS)


async def _failed(request: Request, raised: Exception) -> Response:
    assert isinstance(raised, SwitchyardError)
    return JSONResponse({"message": raised.message, "param": None}, raised.status, _OURS)
