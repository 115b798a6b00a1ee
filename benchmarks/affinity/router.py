"""The comparison's router, in a separate process: `python -m benchmarks.affinity.router PORT INGRESS REPLICA…`."""

import sys
from typing import Any

import uvicorn

from app.server.application import Router
from app.upstream.balancer import Address, Balancer
from app.upstream.target import RuntimeEnvironment
from benchmarks.affinity.processes import BEHIND, MODEL
from benchmarks.load import HOST

OURS = "ours"


def main() -> None:
    """All endpoints have the same replicas; requests of `to-least` have no key. The router knows the replicas of two
    deployments, and calls them; the third one's it reaches through the ingress.
    """
    port, serve_url, *replicas = sys.argv[1:]
    behind: dict[str, dict[str, Any]] = {
        name: {"app": app, "model": MODEL, "affinity": {"by": by}}
        for name, app, by in (("ours", OURS, "prefix"), ("least", OURS, "none"), ("ingress", BEHIND, "none"))
    }
    balancer = Balancer()
    balancer.update({OURS: [Address(url, url, "") for url in replicas]})
    router = Router(RuntimeEnvironment(serve_url, internal_key="none"), balancer=balancer)
    router.reconfigure(
        {
            "endpoints": {f"to-{name}": {"tasks": ["chat"], "traffic": {name: 100}} for name in behind},
            "deployments": behind,
        }
    )
    uvicorn.run(router.app, host=HOST, port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
