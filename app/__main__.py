"""The router alone, on uvicorn, in front of deployments that have a `url`: development without Ray.

python -m app --config FILE --port N
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from app.config.base import ConfigError
from app.config.serve_file import load
from app.config.urls import is_loopback
from app.server.application import Router
from app.telemetry.logs import log_to_stderr
from app.upstream.target import RuntimeEnvironment


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until interrupted; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m app", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--serve-url",
        default="http://127.0.0.1:8000",
        help="the Serve ingress, for deployments that have an `app`",
    )
    arguments = parser.parse_args(argv)
    log_to_stderr()
    try:
        loopback = is_loopback(arguments.host)
        router = Router(RuntimeEnvironment.from_environment(arguments.serve_url, loopback=loopback))
        router.reconfigure(load(arguments.config))
    except ConfigError as error:
        sys.stderr.write(f"{arguments.config} is refused:\n{error}\n")
        return 1
    uvicorn.run(router.app, host=arguments.host, port=arguments.port, log_level="warning", access_log=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
