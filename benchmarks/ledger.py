"""What recording the exposures of an experiment costs the router: CPU time, with the ledger on and off in one run.

One router has two endpoints in front of the same canned upstream (`benchmarks.relay`): one with an experiment that is
sticky by conversation, and one without anything. Rounds on either alternate, so that what else the machine does meets
both; the figures are medians of the rounds' differences. The controller is one that acknowledges and keeps nothing.

    python -m benchmarks.ledger       prints what recording adds per request and per chunk; exit code 1 above the bounds
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import uvicorn
import uvloop
import yaml

from app.config.serve_file import load
from app.ledger.controller_client import Answer
from app.ledger.wire import Acknowledgement, encode
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from benchmarks.relay import ROUTER_PORT, UPSTREAM_PORT, cpu_us, running
from benchmarks.serving import HOST, TOKENS

MOST_PER_REQUEST_US, MOST_PER_CHUNK_US = 20.0, 0.3

_EVERYTHING = encode(Acknowledgement(2**62, 2**62))
_AFTER_ROUND_S = 1.2
"""Until the round's last batch is sent: it counts for the round that filled it."""


class Acknowledging:
    """A controller that takes everything at once."""

    async def send(self, batch: bytes) -> bytes:
        return _EVERYTHING

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        return Answer(404, b"")


def document() -> dict[str, Any]:
    """The configuration: `off` is a plain endpoint, `on` the same with an experiment."""
    endpoint = {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}}
    upstream = {"url": f"http://{HOST}:{UPSTREAM_PORT}", "model": "tiny-llama"}
    experiment = {
        "endpoint": "on",
        "control": "blue",
        "treatments": ["green"],
        "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
    }
    return {
        "endpoints": {"off": endpoint, "on": {**endpoint, "sticky": {"by": "conversation"}}},
        "deployments": {"blue": upstream, "green": upstream},
        "experiments": {"recorded": experiment},
    }


def serve(config: Path) -> None:
    """Runs the router until the process ends."""
    router = Router(RuntimeEnvironment(internal_key="benchmark"), random=Random(1), controller=Acknowledging())
    router.reconfigure(load(config))
    uvicorn.run(router.app, host=HOST, port=ROUTER_PORT, log_level="warning", access_log=False)


async def measure(process: Any, *, streams: int, rounds: int) -> tuple[float, float]:
    """What recording adds to a request and to a chunk, in microseconds of CPU time."""
    differences: dict[int, list[float]] = {1: [], TOKENS: []}
    for number in range(-1, rounds):
        for tokens in differences:
            spent = {}
            for endpoint in ("on", "off") if number % 2 else ("off", "on"):
                spent[endpoint] = await cpu_us(process, streams=streams, tokens=tokens, endpoint=endpoint)
                await asyncio.sleep(_AFTER_ROUND_S)
            print(tokens, spent, flush=True)
            if number >= 0:  # the first one warms up
                differences[tokens].append(spent["on"] - spent["off"])
    short, long = statistics.median(differences[1]), statistics.median(differences[TOKENS])
    per_chunk = (long - short) / (TOKENS - 1)
    return short - per_chunk, per_chunk


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger")
    parser.add_argument("--router", type=Path, metavar="FILE", help="be the router (the benchmark starts it)")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    if arguments.router is not None:
        serve(arguments.router)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "ledger.yaml"
        config.write_text(yaml.safe_dump(document()))
        with (
            running(UPSTREAM_PORT, "benchmarks.relay", "--upstream"),
            running(ROUTER_PORT, "benchmarks.ledger", "--router", str(config)) as process,
        ):
            request, chunk = uvloop.run(measure(process, streams=arguments.streams, rounds=arguments.rounds))
    print(f"Recording adds {request:.1f} us of CPU per request, {chunk:.2f} us per chunk", end=" ")
    print(f"(at most {MOST_PER_REQUEST_US:g} and {MOST_PER_CHUNK_US:g})")
    return 0 if request <= MOST_PER_REQUEST_US and chunk <= MOST_PER_CHUNK_US else 1


if __name__ == "__main__":
    sys.exit(main())
