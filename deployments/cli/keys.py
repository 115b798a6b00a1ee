"""`switchyard keys`: callers' API keys, created and rotated here, printed once, kept only as a hash; internal keys."""

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from app.access.keys import KeyRecord, append, create, replace, rotated
from app.config.access import Limits
from app.config.base import ConfigError
from app.internal_api import INTERNAL_KEY_VARIABLE
from app.internal_keys import Purpose, derived, listed
from app.moments import minute, read, shown
from deployments.cli.options import CommandError, ExitCode, Key, RouterClient, Url, router_client, table
from deployments.invocation import argument, command

app = typer.Typer(help="API keys for callers.", rich_markup_mode=None)

Count = Annotated[int | None, typer.Option(min=1)]


@app.command("create")
def create_key(
    name: Annotated[str, typer.Option(help="Who gets the key: for logs and limits.")],
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="The keys file; the record is appended.")] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="An endpoint that it may use; repeatable. Default: all.")
    ] = None,
    expires: Annotated[str | None, typer.Option(metavar="WHEN", help="A date, a time, or days: 90d.")] = None,
    prefix: Annotated[str, typer.Option(help="What the key starts with, such as dapi or flp_.")] = "sk-sy-",
    group: Annotated[
        str | None, typer.Option(help="The group that experiments count it in, one of `access.groups`.")
    ] = None,
    requests_per_minute: Count = None,
    tokens_per_minute: Count = None,
    concurrent_requests: Count = None,
) -> None:
    """Create an API key and print it, once.

    Only a line with its hash is stored, in the keys file. A lost key cannot be recovered: create another.

    \b
    Examples:
      switchyard keys create --name team-search --file keys.yaml --expires 90d
      switchyard keys create --name team-search --endpoint chat --tokens-per-minute 20000
    """
    end = expiry(expires, datetime.now(UTC)) if expires is not None else None
    numbers = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "concurrent_requests": concurrent_requests,
    }
    limits = {limit: number for limit, number in numbers.items() if number is not None}
    with _errors(file):
        created, record = create(
            name,
            prefix=prefix,
            endpoints=endpoint or [],
            expires=end,
            limits=Limits(**limits) if limits else None,
            group=group,
        )
        if file is not None:
            append(file, record.line)
    typer.echo(created)
    if file is not None:
        typer.echo(f"The key is shown only this once; {file} has its hash, under the id {record.id}.", err=True)
        return
    typer.echo(record.line, nl=False)
    typer.echo("The first line is the key, shown only this once; add the second line to the keys file.", err=True)


@app.command("rotate")
def rotate_key(
    name: Annotated[str, typer.Option(help="Whose key it is, as in the file.")],
    file: Annotated[Path, typer.Option(metavar="FILE", help="The keys file; the record is changed in place.")],
    overlap: Annotated[
        str, typer.Option(metavar="WHEN", help="Until when the old key works, too: a date, a time, or days; 0d: not.")
    ] = "7d",
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="The new key's end. Default: as the old one's.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="What the key starts with, such as dapi or flp_.")] = "sk-sy-",
) -> None:
    """Replace an API key and print the new one, once.

    Both keys are valid during the overlap, and are the same caller: with one id, the same endpoints, limits and rights.
    `keys list` says when each of them was used last.

    \b
    Example:
      switchyard keys rotate --name team-search --file keys.yaml --overlap 14d
    """
    now = datetime.now(UTC)
    until = now if overlap == "0d" else expiry(overlap, now, "--overlap")
    end = expiry(expires, now) if expires is not None else None
    made: list[tuple[str, KeyRecord]] = []

    def change(record: KeyRecord) -> KeyRecord:
        made.append(rotated(record, now=now, until=until, expires=end, prefix=prefix))
        return made[0][1]

    with _errors(file):
        replace(file, name, change)
    key, record = made[0]
    typer.echo(key)
    old = record.previous.expires if record.previous is not None else None
    state = f"the old key works until {shown(old.timestamp())}" if old is not None else "the old key has ended"
    typer.echo(f"The key is shown only this once; {state}.", err=True)


@app.command("list")
def list_keys(url: Url = None, key: Key = None) -> None:
    """Show when each API key ends, and when it was used last.

    For managers and viewers. One router answers, and knows only what it has served since it started.

    \b
    Example:
      switchyard keys list --url https://models.example.com
    """
    from deployments.local import processes

    if keys := keys_of(router_client(url, key)):
        typer.echo(keys_table(keys))
        return
    typer.echo(NO_KEYS, err=True)
    if url is None:
        config = argument(Path(processes.running().config))
        typer.echo(f"The file is {config}; to apply a change: {command(f'deploy {config}')}", err=True)


@app.command("internal")
def internal() -> None:
    """Print the internal keys for a cluster's Secret.

    The master, for routers and the controller, and the key derived from it that engines verify: a new pair, or the one
    of the masters in the variable SWITCHYARD_INTERNAL_KEY, where several are separated by commas.

    \b
    Examples:
      switchyard keys internal
      SWITCHYARD_INTERNAL_KEY=old,new switchyard keys internal
    """
    for line in internal_keys(os.environ.get(INTERNAL_KEY_VARIABLE)):
        typer.echo(line)


@contextmanager
def _errors(file: Path | None) -> Iterator[None]:
    """Turns errors of a record or its file into a CommandError."""
    try:
        yield
    except ConfigError as error:
        raise CommandError("\n".join(error.problems)) from None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None


NO_KEYS = (
    "The server has no keys. It reads them from a file that its configuration names: `access: {keys_file: FILE}` "
    "in the router's `user_config`"
)


def keys_of(router: RouterClient) -> list[dict[str, Any]]:
    """The keys that a router knows, as `GET /api/callers` has them. Raises CommandError."""
    known: list[dict[str, Any]] = json.loads(router.ask("GET", "/callers"))["keys"]
    return known


def keys_table(keys: Sequence[Mapping[str, Any]]) -> str:
    """The keys for a terminal, with their ends and last uses."""
    header = ("NAME", "ENDPOINTS", "EXPIRES", "LAST USED", "PREVIOUS KEY")
    return table(header, [_row(key) for key in keys])


def _row(key: Mapping[str, Any]) -> tuple[str, ...]:
    previous = key["previous"]
    old = f"until {_end(previous['expires'])}, used {_use(previous['last_used'])}" if previous else ""
    endpoints = "all" if key["endpoints"] is None else ",".join(key["endpoints"])
    return key["caller"], endpoints, _end(key["expires"]), _use(key["last_used"]), old


def _end(at: float | None) -> str:
    return shown(at) if at is not None else "never"


def _use(at: float | None) -> str:
    return minute(at) if at is not None else "never"


def internal_keys(masters: str | None) -> Iterator[str]:
    """The entries of a cluster's Secret that concern the internal keys, one `name=value` a line: for the given masters
    in their order, or for a new one. Raises CommandError."""
    keys = listed(masters) if masters is not None else (secrets.token_hex(32),)
    if not keys:
        raise CommandError(f"{INTERNAL_KEY_VARIABLE} is empty; unset it for a new key", ExitCode.USAGE)
    yield f"internal-key={','.join(keys)}"
    yield f"engine-key={','.join(derived(key, Purpose.ENGINE) for key in keys)}"


def expiry(text: str, now: datetime, option: str = "--expires") -> datetime:
    """`90d`, a date, or a time (UTC unless it has a zone). Raises CommandError for anything else and for the past."""
    if days := re.fullmatch(r"(\d{1,5})d", text):
        return (now + timedelta(days=int(days[1]))).replace(microsecond=0)
    try:
        moment = read(text)
    except ValueError:
        message = f"{option} '{text}': expected a number of days, a date or a time: 90d, 2030-01-31"
        raise CommandError(message, ExitCode.USAGE) from None
    if moment <= now:
        raise CommandError(f"{option} '{text}' has passed; name a later date", ExitCode.USAGE)
    return moment
