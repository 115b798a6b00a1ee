"""The router of the comparison, in a separate process: `python -m benchmarks.affinity.router PORT INGRESS`."""

import sys

import uvicorn

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from benchmarks.affinity.processes import MODEL, OURS
from benchmarks.load import HOST


def main() -> None:
    """Both endpoints have the same replicas behind the same backend; requests of `least` have no key."""
    router = Router(RuntimeEnvironment(sys.argv[2], internal_key="none"))
    deployments = {"ours": {"by": "prefix"}, "least": {"by": "none"}}
    router.reconfigure(
        {
            "endpoints": {f"to-{it}": {"tasks": ["chat"], "traffic": {it: 100}} for it in deployments},
            "deployments": {
                name: {"app": OURS, "model": MODEL, "affinity": affinity} for name, affinity in deployments.items()
            },
        }
    )
    uvicorn.run(router.app, host=HOST, port=int(sys.argv[1]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
