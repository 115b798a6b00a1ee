"""python -m app.access create-key --name NAME [--file FILE]: makes an API key and prints it, once.

What is kept of it is a line for the keys file, with a hash and without the key: appended to FILE, which running
routers reread, or printed after the key. Who loses the key makes another.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app.access.api_keys import DEFAULT_PREFIX, create
from app.access.key_file import append
from app.config.access import Limits
from app.config.base import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    numbers = ("requests_per_minute", "tokens_per_minute", "concurrent_requests")
    given = {name: value for name in numbers if (value := getattr(arguments, name)) is not None}
    try:
        key, record = create(
            arguments.name,
            prefix=arguments.prefix,
            endpoints=arguments.endpoint,
            expires=arguments.expires,
            limits=Limits(**given) if given else None,
        )
        if arguments.file is not None:
            append(arguments.file, record.line)
    except ConfigError as error:
        sys.stderr.write("\n".join(error.problems) + "\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{arguments.file}: {error.strerror}\n")
        return 1
    sys.stdout.write(f"{key}\n")
    if arguments.file is None:
        sys.stdout.write(record.line)
        sys.stderr.write("The first line is the key; it is not shown again. Add the second line to the keys file.\n")
    else:
        sys.stderr.write(f"This key is shown only here; {arguments.file} has its hash, under the id {record.id}.\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app.access")
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("create-key", help="make an API key and print it once", description=__doc__)
    make.add_argument("--name", required=True, help="who gets it: for log lines and limits")
    make.add_argument("--file", type=Path, help="the keys file; its record is appended")
    make.add_argument("--endpoint", action="append", default=[], help="one that it may use; repeat it. Default: all")
    make.add_argument("--expires", type=_moment, help="a date, a time with its zone, or days from now: 90d")
    make.add_argument(
        "--prefix", default=DEFAULT_PREFIX, help=f"what it begins with, as dapi or flp_; {DEFAULT_PREFIX}"
    )
    make.add_argument("--requests-per-minute", type=_count)
    make.add_argument("--tokens-per-minute", type=_count)
    make.add_argument("--concurrent-requests", type=_count)
    return parser


def _moment(text: str) -> datetime:
    now = datetime.now(UTC)
    if days := re.fullmatch(r"(\d{1,5})d", text):
        return (now + timedelta(days=int(days[1]))).replace(microsecond=0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no date, time or number of days") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if moment <= now:
        raise argparse.ArgumentTypeError(f"'{text}' has passed")
    return moment


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError("a number of 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
