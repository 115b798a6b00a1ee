"""Several replicas that share one engine: `python -m benchmarks.affinity.fronts ENGINE PORT...`.

Each port is a replica. Each has its own `cache_salt`, so that the engine's prefix cache has a separate part for each;
they share the engine's time. So one engine is enough to count the cache hits of a balancing policy.
"""

import asyncio
import json
import sys

from aiohttp import ClientSession, ClientTimeout, web

from benchmarks.load import HOST

REQUESTS = "vllm:request_success_total"


class Front:
    """One replica. The first one also serves the engine's metrics."""

    def __init__(self, engine: str, index: int, session: ClientSession) -> None:
        self._engine, self._index, self._session = engine, index, session
        self._served = 0

    def application(self) -> web.Application:
        """The routes that the comparison needs."""
        application = web.Application()
        application.router.add_post("/v1/chat/completions", self._chat)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_route("*", "/{path:.*}", self._other)
        return application

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        body["cache_salt"] = f"replica-{self._index}"
        self._served += 1
        async with self._session.post(f"{self._engine}/v1/chat/completions", json=body) as upstream:
            response = web.StreamResponse(status=upstream.status)
            response.content_type = upstream.content_type
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = [f'{REQUESTS}{{replica="{self._index}"}} {self._served}']
        if self._index == 0:
            async with self._session.get(f"{self._engine}/metrics") as upstream:
                text = await upstream.text()
            lines += [line for line in text.splitlines() if line.startswith("vllm:prefix_cache_")]
        return web.Response(text="\n".join([*lines, ""]))

    async def _other(self, request: web.Request) -> web.Response:
        body, headers = await request.read(), {"content-type": request.content_type}
        url = f"{self._engine}{request.path_qs}"
        async with self._session.request(request.method, url, data=body, headers=headers) as upstream:
            return web.Response(status=upstream.status, body=await upstream.read(), content_type=upstream.content_type)


async def serve(engine: str, ports: list[int]) -> None:
    """Until the process ends."""
    async with ClientSession(timeout=ClientTimeout(total=None)) as session:
        for index, port in enumerate(ports):
            runner = web.AppRunner(Front(engine, index, session).application(), access_log=None)
            await runner.setup()
            await web.TCPSite(runner, HOST, port).start()
        print(json.dumps(ports), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], [int(port) for port in sys.argv[2:]]))
