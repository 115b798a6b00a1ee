import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deployments.weights.cache import default_cache, prepare
from deployments.weights.errors import WeightsError
from deployments.weights.recipes import MODELS, RECIPES


def main(argv: Sequence[str] | None = None) -> int:
    """Prepares the named models, or the default ones, and prints their folders; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deployments.weights", description="Prepare models.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(RECIPES)}")
    parser.add_argument("--cache", type=Path, default=default_cache(), metavar="DIR")
    arguments = parser.parse_args(argv)
    try:
        for name in arguments.names or MODELS:
            sys.stdout.write(f"{prepare(name, arguments.cache)}\n")
    except WeightsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
