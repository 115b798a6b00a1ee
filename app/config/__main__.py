import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from app.config.json_schema import schema
from app.config.serve_file import check_file


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m app.config")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="say what is wrong with FILE").add_argument("file", type=Path)
    commands.add_parser("schema", help="print the JSON Schema of serve_config.yaml")
    arguments = parser.parse_args(argv)
    if arguments.command == "schema":
        sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
        return 0
    problems = check_file(arguments.file)
    sys.stdout.write("\n".join(problems or [f"{arguments.file}: OK"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
