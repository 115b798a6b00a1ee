"""The cost of open consoles for a router: its CPU time with and without ten pages that poll like the page Traffic. The
router runs on uvicorn in this process with the given number of deployments, each of which has answered requests in
several dialects. The consoles are another process. There is no other traffic, so the difference is the consoles' share.

    python -m benchmarks.console      prints the CPU share of one core; exit code 1 if consoles add 2 % or more
"""

import argparse
import asyncio
import subprocess
import sys
import time
from random import Random
from typing import Any

import uvicorn

from app.engine.output import Usage
from app.server.application import Router
from app.telemetry.logs import Record
from app.telemetry.metrics import Telemetry
from app.upstream.target import RuntimeEnvironment

MOST = 0.02
"""The share of a core that all consoles together may add."""

POLL_S = 2.0

_CONSOLES = """
import http.client, sys, threading, time
port, consoles, seconds, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])

def console(number):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    end = time.monotonic() + seconds
    time.sleep(pause * number / consoles)  # they were not opened at the same moment
    while time.monotonic() < end:
        connection.request("GET", "/api/overview")
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read()
        time.sleep(pause)

threads = [threading.Thread(target=console, args=(number,)) for number in range(consoles)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--consoles", type=int, default=10)
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    without, with_them = asyncio.run(_measured(given.consoles, given.deployments, given.seconds))
    added = with_them - without
    print(f"{given.deployments} deployments, {given.consoles} consoles, {given.seconds:g} s each:")
    print(f"  without {without:.2%} of a core, with them {with_them:.2%}: they add {added:.2%} (bound: {MOST:.0%})")
    return int(added >= MOST)


async def _measured(consoles: int, deployments: int, seconds: float) -> tuple[float, float]:
    """The router's share of a core without consoles, and with them."""
    router = Router(RuntimeEnvironment(internal_key="internal"), random=Random(7))
    router.reconfigure(_config(deployments))
    _answer(router.state.telemetry, deployments)
    server = uvicorn.Server(uvicorn.Config(router.app, host="127.0.0.1", port=0, log_level="error", access_log=False))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    await _run([str(port), "1", "0.5", "0.1"])  # what is created on first use is not a console's cost
    without = await _share(asyncio.sleep(seconds))
    arguments = [str(port), str(consoles), str(seconds), str(POLL_S)]
    with_them = await _share(_run(arguments))
    server.should_exit = True
    await serving
    return without, with_them


async def _run(arguments: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _CONSOLES, *arguments, stderr=subprocess.PIPE)
    _, problems = await process.communicate()
    assert process.returncode == 0, problems.decode()


async def _share(work: Any) -> float:
    """This process's CPU time divided by the wall time while `work` is awaited."""
    begun, cpu = time.monotonic(), time.process_time()
    await work
    return (time.process_time() - cpu) / (time.monotonic() - begun)


def _config(deployments: int) -> dict[str, Any]:
    """One endpoint for every ten deployments."""
    names = [f"deployment-{number}" for number in range(deployments)]
    groups = [names[at : at + 10] for at in range(0, deployments, 10)]
    return {
        "endpoints": {
            f"endpoint-{number}": {
                "tasks": ["chat"],
                "traffic": {name: 100 // len(group) + (index < 100 % len(group)) for index, name in enumerate(group)},
            }
            for number, group in enumerate(groups)
        },
        "deployments": {name: {"url": "http://127.0.0.1:1", "model": name} for name in names},
    }


def _answer(telemetry: Telemetry, deployments: int) -> None:
    """Requests that each deployment has answered: streams of two dialects, and failures."""
    for number in range(deployments):
        for dialect in ("openai", "anthropic"):
            for status in (200, 502):
                record = Record(dialect, "chat", "id", endpoint=f"endpoint-{number // 10}", reason="traffic")
                record.deployment, record.status, record.error = (
                    f"deployment-{number}",
                    status,
                    "" if status == 200 else "unavailable",
                )
                record.streamed, record.first_byte, record.usage = True, record.started + 0.1, Usage(20, 100)
                telemetry.finish(record)


if __name__ == "__main__":
    sys.exit(main())
