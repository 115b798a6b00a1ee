"""The processes of the comparison: vLLM engines, HAProxy with this project's script in front of them, a router, a
peer."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.load import HOST
from benchmarks.programs import SMALL_ENGINE
from deployments.haproxy import write_script
from deployments.weights.cache import default_cache, prepare_tiny
from tests.support.processes.servers import free_port

MODEL = "tiny"
STARTS_WITHIN_S = 900.0

ENVIRONMENT = {
    **SMALL_ENGINE,
    "VLLM_SERVER_DEV_MODE": "1",  # for `POST /reset_prefix_cache`
}

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
"""The engines' model, with random weights: large enough that computing an uncached prompt dominates a request."""

NATIVE = {"native-125": 125, "native-200": 200}
"""Backends with HAProxy's own bounded-load hashing, with their factors in percent."""

BEHIND = "behind"
"""The backend as Ray writes it, with the script's additions."""


@contextmanager
def _process(arguments: Sequence[object], log: Path, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    with log.open("wb") as output:
        started = subprocess.Popen(
            [str(argument) for argument in arguments],
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield
    finally:
        started.terminate()
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def wait_for(url: str, log: Path) -> None:
    """Returns once the URL answers with 200."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    raise RuntimeError(f"{url} does not answer:\n{log.read_text(errors='replace')[-2000:]}")


@contextmanager
def engines(number: int, directory: Path) -> Iterator[Sequence[str]]:
    """Their base URLs."""
    weights = prepare_tiny(default_cache())
    with ExitStack() as started:
        urls = []
        for index in range(number):
            port, log = free_port(), directory / f"engine-{index}.log"
            options = [
                *("--host", HOST, "--port", port, "--served-model-name", MODEL, "--dtype", "bfloat16"),
                *("--max-model-len", 8192, "--max-num-seqs", 32, "--block-size", 32, "--enforce-eager"),
                *("--load-format", "dummy", "--hf-overrides", json.dumps(SHAPE), "--enable-prefix-caching"),
                "--disable-uvicorn-access-log",
            ]
            command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", weights, *options]
            started.enter_context(_process(command, log, ENVIRONMENT))
            urls.append(f"http://{HOST}:{port}")
        for index, url in enumerate(urls):
            wait_for(f"{url}/health", directory / f"engine-{index}.log")
        yield urls


@contextmanager
def replicas_of_one(number: int, directory: Path) -> Iterator[Sequence[str]]:
    """The base URLs of replicas that share one engine (`fronts`)."""
    with engines(1, directory) as (engine,):
        ports, log = [free_port() for _ in range(number)], directory / "fronts.log"
        with _process([sys.executable, "-m", "benchmarks.affinity.fronts", engine, *ports], log):
            urls = [f"http://{HOST}:{port}" for port in ports]
            wait_for(f"{urls[-1]}/health", log)
            yield urls


@contextmanager
def ingress(urls: Sequence[str], directory: Path) -> Iterator[str]:
    """HAProxy with the configuration that Ray writes, and one more backend for each of `NATIVE`."""
    from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
    from ray.serve.config import HTTPOptions

    port = free_port()
    settings = HAProxyConfig(
        http_options=HTTPOptions(host=HOST, port=port, keep_alive_timeout_s=120),
        stats_port=free_port(),
        metrics_port=free_port(),
        nbthread=1,
        socket_path=str(directory / "admin.sock"),
        server_state_base=str(directory),
        server_state_file=str(directory / "state"),
    )
    servers = [ServerConfig(f"replica-{number}", HOST, int(url.rpartition(":")[2])) for number, url in enumerate(urls)]
    names = (BEHIND, *NATIVE)
    backends = {name: BackendConfig(name, f"/deployments/{name}", app_name=name, servers=servers) for name in names}
    path = directory / "haproxy.cfg"
    HAProxyApi(settings, backends, config_file_path=str(path))._generate_config_file_internal()
    text = path.read_text().replace("httpchk GET /-/healthz", "httpchk GET /health")
    for name in names:
        more = [r"http-request replace-path /deployments/[^/]+(/.*) \1"]
        if name in NATIVE:
            more += ["balance hdr(x-key)", "hash-type consistent", f"hash-balance-factor {NATIVE[name]}"]
        text = text.replace(
            f"\nbackend {name}\n", "\n".join(("", f"backend {name}", *(f"    {line}" for line in more), ""))
        )
    path.write_text(text)
    log = directory / "haproxy.log"
    with _process([write_script(directory), "-db", "-f", path], log):
        url = f"http://{HOST}:{port}"
        wait_for(f"{url}/deployments/{BEHIND}/health", log)
        yield url


@contextmanager
def router(serve_url: str, directory: Path, replicas: Sequence[str]) -> Iterator[str]:
    """This project's router, with the endpoints `to-ours` and `to-least`, and `to-ingress` by way of the ingress."""
    port, log = free_port(), directory / "router.log"
    with _process([sys.executable, "-m", "benchmarks.affinity.router", port, serve_url, *replicas], log):
        url = f"http://{HOST}:{port}"
        wait_for(f"{url}/health", log)
        yield url


@contextmanager
def vllm_router(binary: Path, urls: Sequence[str], directory: Path) -> Iterator[str]:
    """The peer, with its own settings for `cache_aware`."""
    port, log = free_port(), directory / "vllm-router.log"
    options = ["--policy", "cache_aware", "--prometheus-port", free_port(), "--worker-urls", *urls]
    with _process([binary, "--host", HOST, "--port", port, *options], log):
        url = f"http://{HOST}:{port}"
        wait_for(f"{url}/health", log)
        yield url
