"""The programs that `benchmarks/peers.py` compares: one vLLM process, and gateways in front of it, each run as its
users run it.

Every gateway gets the same request, for the same model, and none authenticates, logs to a database or caches. Beyond
that they run with their defaults: Switchyard's router counts tokens and keeps metrics, and so does vllm-router.
"""

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks import programs, serving
from benchmarks.load import HOST, post
from deployments.local import processes
from deployments.local.environment import DEFAULTS
from deployments.weights.cache import default_cache, prepare, prepare_tiny

ENGINE, SWITCHYARD = "vLLM directly", "Switchyard's router"
VLLM_ROUTER, LITELLM = "vllm-router", "LiteLLM proxy"
FLOOR = "canned chunks"
SERVED, SERVED_BY_THREE = "Switchyard, as served", "Switchyard, as served, three routers"
PEERS = (VLLM_ROUTER, LITELLM)

MODEL = "bench"
"""The name of the engine's model on every path."""


@dataclass(frozen=True)
class Workload:
    """A kind of request, and the engine's arguments for it."""

    name: str
    unit: str
    """What is counted."""
    units: int
    """In an answer."""
    task: str
    path: str
    body: Mapping[str, Any]
    end: bytes
    """Part of the last bytes of an answer."""
    requests: Mapping[int, int]
    """The number of requests in a turn, by how many run at once."""
    weights: Callable[[], Path]
    options: Sequence[str]
    """vLLM's."""
    ours: str = SWITCHYARD
    """The path that is compared with the peers'."""
    peers: Sequence[str] = PEERS

    def request(self) -> bytes:
        """The HTTP request."""
        return post(self.path, self.body)


CHAT = Workload(
    name="Chat, streamed",
    unit="tokens",
    units=serving.TOKENS,
    task="chat",
    path="/v1/chat/completions",
    body=serving.asking(MODEL, serving.TOKENS),
    end=b"[DONE]",
    requests={1: 8, 16: 32, 64: 64},
    weights=lambda: prepare_tiny(default_cache()),
    options=("--dtype=bfloat16", "--max-model-len=2048", "--max-num-seqs=64"),
)
EMBEDDINGS = Workload(
    name="Embeddings",
    unit="embeddings",
    units=1,
    task="embeddings",
    path="/v1/embeddings",
    body={"model": MODEL, "input": "Tell me a story.", "encoding_format": "float"},
    end=b"}}",
    requests={1: 40, 16: 160, 64: 256},
    # One random layer of MiniLM's shape: an answer has its 384 numbers, and costs the engine little.
    weights=lambda: prepare("all-MiniLM-L6-v2", default_cache()),
    options=("--load-format=dummy", '--hf-overrides={"num_hidden_layers": 1}', "--max-num-seqs=64"),
)
MOST_SEQUENCES = 160


def served_chat(kilobytes: int, tokens: int, requests: Mapping[int, int]) -> Workload:
    """A chat with a prompt of so many kB. The engine reads all of it and computes its last tokens: what is compared is
    the way to the engine."""
    prompt = ("Tell me a story. " * (kilobytes * 1000 // 17 + 1))[: kilobytes * 1000]
    return Workload(
        name=f"{kilobytes} kB, {tokens} tokens",
        unit="tokens",
        units=tokens,
        task="chat",
        path="/v1/chat/completions",
        body={**serving.asking(MODEL, tokens, prompt), "truncate_prompt_tokens": 16},
        end=b"[DONE]",
        requests=requests,
        weights=CHAT.weights,
        options=("--dtype=bfloat16", "--max-model-len=2048", f"--max-num-seqs={MOST_SEQUENCES}"),
        ours=SERVED,
        peers=(VLLM_ROUTER,),
    )


SERVED_CHATS = (
    served_chat(2, 64, {1: 8, 20: 60, 150: 150}),
    served_chat(2, 512, {1: 2, 20: 20, 150: 150}),
    served_chat(220, 64, {1: 8, 20: 60, 150: 150}),
    served_chat(220, 512, {1: 2, 20: 20, 150: 150}),
)


@dataclass(frozen=True)
class Way:
    """One path to the engine."""

    name: str
    port: int
    pids: Callable[[], Sequence[int]] = field(default=lambda: ())
    """The gateway's processes; of what is served, the engine's, too."""


@contextmanager
def engine(workload: Workload, folder: Path) -> Iterator[Way]:
    """A vLLM process that answers `workload`."""
    environment = {
        **{name: value for name, value in DEFAULTS.items() if not name.startswith("RAY_")},
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",  # one layer has no work for more threads, and idle OpenMP threads spin
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"),
        *("--model", str(workload.weights().absolute()), "--served-model-name", MODEL),
        *("--disable-uvicorn-access-log", *workload.options),
    ]
    with _running(
        ENGINE, workload, folder, environment, lambda port: [*command, f"--host={HOST}", f"--port={port}"]
    ) as running:
        yield running


@contextmanager
def gateways(workload: Workload, upstream: Way, peers: Path, folder: Path) -> Iterator[list[Way]]:
    """The gateways in front of `upstream`; the peers' programs are in `peers`."""
    url = f"http://{HOST}:{upstream.port}"
    with ExitStack() as running:
        router = folder / "router.yaml"
        router.write_text(yaml.safe_dump(switchyard(workload, url)))
        litellm = folder / "litellm.yaml"
        litellm.write_text(yaml.safe_dump(litellm_proxy(url)))
        commands: Mapping[str, tuple[Mapping[str, str], Callable[[int], Sequence[str]]]] = {
            SWITCHYARD: (
                {},
                lambda port: [sys.executable, "-m", "deployments", "router", str(router), f"--port={port}"],
            ),
            VLLM_ROUTER: (
                {},
                # With one worker there is no choice, so use the cheapest policy. The default keeps a tree of prompts.
                lambda port: [
                    *(str(peers / "vllm-router"), "--policy=round_robin", "--worker-urls", url),
                    *(f"--host={HOST}", f"--port={port}", f"--prometheus-port={programs.free_ports(1)[0]}"),
                ],
            ),
            LITELLM: (
                # Without a master key it starts only with this setting. The list of prices would be downloaded.
                {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
                lambda port: [str(peers / "litellm"), f"--config={litellm}", f"--host={HOST}", f"--port={port}"],
            ),
        }
        yield [
            running.enter_context(_running(name, workload, folder, *command))
            for name, command in commands.items()
            if name in (workload.ours, *workload.peers)
        ]


def switchyard(workload: Workload, url: str) -> dict[str, Any]:
    """The router's part of a configuration."""
    return {
        "endpoints": {MODEL: {"tasks": [workload.task], "traffic": {"engine": 100}}},
        "deployments": {"engine": {"url": url, "model": MODEL, "tasks": [workload.task]}},
    }


def litellm_proxy(url: str) -> dict[str, Any]:
    """LiteLLM's configuration."""
    parameters = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"}
    return {"model_list": [{"model_name": MODEL, "litellm_params": parameters}]}


@contextmanager
def clusters(workload: Workload, folder: Path) -> Iterator[list[Way]]:
    """What `make serve` runs, each with an engine of its own: HAProxy, one or three routers, a replica."""
    llm_config = serving.engine(workload.weights().absolute(), MOST_SEQUENCES)
    with ExitStack() as running:
        ways = []
        for name, routers in ((SERVED, 1), (SERVED_BY_THREE, 3)):
            applications = serving.one_endpoint(llm_config, MODEL, routers)
            [port] = programs.free_ports(1)
            run = running.enter_context(
                serving.ours({"applications": applications}, secrets.token_urlsafe(16), folder / name, port)
            )
            ways.append(Way(name, port, partial(processes.processes_of, run.run_id)))
        yield ways


@contextmanager
def canned(folder: Path) -> Iterator[Way]:
    """No engine: a process sends chunks as fast as it can. This shows the load generator's own limit."""
    command = [sys.executable, "-m", "benchmarks.relay", "--upstream", "--step-s=0"]
    with _running(FLOOR, CHAT, folder, {}, lambda port: [*command, f"--port={port}"]) as running:
        yield running


@contextmanager
def _running(
    name: str,
    workload: Workload,
    folder: Path,
    environment: Mapping[str, str],
    command: Callable[[int], Sequence[str]],
) -> Iterator[Way]:
    """Starts a program on a free port, which is passed to `command`; yields once it answers `workload`."""
    [port] = programs.free_ports(1)
    process = programs.launch(
        command(port),
        folder / f"{name}.log",
        lambda: programs.answers(port, workload.path, workload.body),
        environment={**os.environ, **environment},
        cwd=serving.ROOT,
    )
    try:
        pids = programs.family(process.pid)
        yield Way(name, port, lambda: pids)
    finally:
        programs.end(process)
