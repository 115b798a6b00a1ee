"""`python -m deployments serve`, and for what it runs: `deploy` and `stop`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deployments.local import launcher as local


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deployments")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="start everything on this machine, in the foreground")
    serve.add_argument("--config", type=Path, default=Path("serve_config.yaml"))
    serve.add_argument("--port", type=int, default=8000)
    deploy = commands.add_parser("deploy", help="deliver a changed configuration to what runs, live")
    deploy.add_argument("--config", type=Path, default=Path("serve_config.yaml"))
    commands.add_parser("stop", help="stop what an earlier `serve` left running")
    arguments = parser.parse_args(argv)
    if arguments.command == "stop":
        return local.stop()
    if arguments.command == "deploy":
        return local.deploy(arguments.config)
    return local.serve(arguments.config, arguments.port)


if __name__ == "__main__":
    sys.exit(main())
