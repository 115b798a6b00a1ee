"""The comparison's router, in a separate process: `python -m benchmarks.affinity.router PORT INGRESS [REPLICA…]`."""

import sys
from typing import Any

import uvicorn

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from benchmarks.affinity.processes import MODEL, OURS
from benchmarks.load import HOST


def main() -> None:
    """All endpoints have the same replicas behind the same backend; requests of `to-least` have no key. `to-direct`
    calls the replicas, a random one for each request, without the ingress.
    """
    port, serve_url, *replicas = sys.argv[1:]
    behind: dict[str, dict[str, Any]] = {
        name: {"app": OURS, "model": MODEL, "affinity": {"by": by}}
        for name, by in (("ours", "prefix"), ("least", "none"))
    }
    direct = {f"direct-{number}": {"url": url, "model": MODEL} for number, url in enumerate(replicas)}
    traffic = {f"to-{name}": {name: 100} for name in behind}
    if direct:
        traffic["to-direct"] = {name: 100 // len(direct) for name in direct}
    router = Router(RuntimeEnvironment(serve_url, internal_key="none"))
    router.reconfigure(
        {
            "endpoints": {name: {"tasks": ["chat"], "traffic": shares} for name, shares in traffic.items()},
            "deployments": behind | direct,
        }
    )
    uvicorn.run(router.app, host=HOST, port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
