"""A model application without Ray: the engine and its routes, as one replica has them, on a loopback port.

python -m tests.support.engine.model_application PORT NAME '{"llm_config": {...}}'
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from app.internal_api import APP_PREFIX, INTERNAL_KEY_HEADER, INTERNAL_KEY_VARIABLE, MODEL_PATH, MODELS_VARIABLE
from app.internal_keys import Purpose, derived
from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port
from tests.support.waiting import wait_until

KEY = "internal"
ENGINE_KEY = derived(KEY, Purpose.ENGINE)

ENGINE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_WAIT_POLICY": "PASSIVE"}
"""The environment of the engine, as a local run has it."""

_OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Ray's least: the engine puts nothing there."""

_START_WITHIN_S = 1500.0
"""It may get only the time that other engines leave."""


@contextmanager
def model_application(name: str, args: Mapping[str, Any], log: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Runs `deployments.llm` with `args`, or an application with `runner: pooling`, and yields the URL that is
    `serve_url` to a router. Its master is `KEY`.

    `environment` is added to this process's own.
    """
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", __name__, str(port), name, json.dumps(args)]
    variables = {INTERNAL_KEY_VARIABLE: KEY, MODELS_VARIABLE: str(ROOT / ".models"), **ENGINE, **environment}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **variables}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_until_ready(f"{url}{APP_PREFIX}{name}{MODEL_PATH}", process, log)
        yield url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    def logged() -> str:
        return log.read_text(errors="replace")[-4000:]

    def answers() -> bool:
        assert process.poll() is None, logged()
        with suppress(httpx.TransportError):
            return httpx.get(url, headers={INTERNAL_KEY_HEADER: ENGINE_KEY}).status_code == 200
        return False

    wait_until(answers, logged, within_s=_START_WITHIN_S)


def _start_ray() -> None:
    """Ray waits for its own node for 30 s, which is short while other engines and applications start."""
    import ray

    until = time.monotonic() + _START_WITHIN_S / 2
    while True:
        try:
            ray.init(
                address="local",
                num_cpus=2,
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                _node_ip_address="127.0.0.1",
            )
            return
        except Exception as error:
            if time.monotonic() > until or "timed out during startup" not in str(error):
                raise
            ray.shutdown()


async def _serve(port: int, name: str, args: Mapping[str, Any]) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from deployments import llm
    from deployments.engine.application import EngineArgs, engine_config

    given = EngineArgs.model_validate(args)
    is_pooling = given.llm_config["engine_kwargs"].get("runner") == "pooling"  # as of `deployments.embedding`
    config = engine_config(given, **({} if is_pooling else llm.engine_kwargs(given)))
    os.environ |= config.runtime_env["env_vars"]  # as Ray does, before anything imports vLLM
    from deployments.engine.server import EngineServer

    _start_ray()
    # Serve starts a replica in a placement group that is ready. Here Ray's code makes one, and reads its node at once.
    config.get_or_create_callback().ctx.placement_group.wait(_START_WITHIN_S / 2)
    server = EngineServer.sync_init(config)
    await server.start()
    try:
        app = Starlette(routes=[Mount(f"{APP_PREFIX}{name}", await server.__serve_build_asgi_app__())])
        await uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")).serve()
    finally:
        server.engine._engine_client.shutdown()
        os._exit(0)  # the engine's process has ended; this one's threads would take a quarter of a minute


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])))
