"""`switchyard doctor`: arguments and printing.

- `switchyard k8s`: arguments and printing. Imports are inside, so that `--help` is instant.
- `switchyard mirror`: arguments and printing.
- API keys for callers: created and rotated here, printed once, kept only as a hash. And the internal keys.
"""

import json
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app.access.keys import KeyRecord, append, create, replace, rotated
from app.config.access import Limits
from app.config.base import ConfigError
from app.internal_api import INTERNAL_KEY_VARIABLE
from app.internal_keys import Purpose, derived, listed
from app.moments import read, shown
from deployments.cli.options import CommandError, ExitCode, Key, RouterClient, Url, router_client, table
from deployments.invocation import argument, command

if TYPE_CHECKING:
    from deployments.doctor.finding import Finding

_MARKS = {"ok": "ok      ", "warning": "warning ", "problem": "PROBLEM "}


def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="The configuration. Default: serve_config.yaml, or what Serve has deployed if there is no such file.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also print the checks that passed.")] = False,
) -> None:
    """Find what is wrong with this installation, and the fix.

    Checks the configuration, the environment, packages, HAProxy, ports, keys, the issuer, the limits store, weights,
    memory, GPUs, and what runs: applications, missing replicas, the last errors in their logs. On a cluster, run it
    in the head's pod. It changes nothing. The exit code is 1 if there is a problem.

    \b
    Examples:
      switchyard doctor
      switchyard doctor --verbose
      kubectl exec POD -c ray-head -- switchyard doctor
    """
    from deployments.doctor.examination import examine
    from deployments.doctor.finding import Level, installation

    findings = list(examine(installation(config)))
    if as_json:
        typer.echo(json.dumps([finding.as_json() for finding in findings], indent=2))
    else:
        for finding in findings:
            if verbose or finding.level is not Level.OK:
                _print(finding)
        typer.echo(summary(findings))
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(ExitCode.WRONG)


def _print(finding: "Finding") -> None:
    typer.echo(f"{_MARKS[finding.level]}{finding.area}: {finding.message}")
    if finding.fix:
        typer.echo(f"        -> {finding.fix}")


def summary(findings: "list[Finding]") -> str:
    """The last line of the report."""
    problems, warnings, passed = (
        sum(finding.level == level for finding in findings) for level in ("problem", "warning", "ok")
    )
    if not problems and not warnings:
        return f"All {passed} checks passed."
    return f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}, {passed} passed."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


app = typer.Typer(help="The cluster's manifests.", rich_markup_mode=None)


@app.command()
def new(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory, for your repository.")],
    values: Annotated[Path, typer.Option(metavar="FILE", help="What differs from the chart's values.yaml.")],
    serve_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A whole Serve configuration, in place of `models`.")
    ] = None,
    name: Annotated[str, typer.Option(help="All objects' names begin with it, as with a release of Helm.")] = (
        "switchyard"
    ),
    namespace: Annotated[str, typer.Option(help="The namespace.")] = "switchyard",
) -> None:
    """Write a cluster's manifests, for kustomize.

    Makes the objects that `helm install NAME k8s/chart --values FILE` makes, in DIR/objects; DIR/kustomization.yaml is
    yours. It needs neither Helm nor Ray. Change DIR/values.yaml and run `switchyard k8s render DIR` for new objects.

    \b
    Examples:
      switchyard k8s new cluster --values my-values.yaml
      kubectl apply -k cluster
    """
    from deployments.kubernetes import chart

    if directory.exists():
        raise CommandError(f"{directory} exists; for new values: {command(f'k8s render {argument(directory)}')}")
    try:
        directory.mkdir(parents=True)
        (directory / chart.VALUES).write_text(values.read_text())
        if serve_config is not None:
            (directory / chart.SERVED).write_text(serve_config.read_text())
        chart.write(directory, name=name, namespace=namespace)
    except (ConfigError, OSError) as error:
        shutil.rmtree(directory, ignore_errors=True)
        problems = error.problems if isinstance(error, ConfigError) else [f"{error.filename}: {error.strerror}"]
        raise CommandError("\n".join(problems)) from None
    typer.echo(f"Wrote {directory}; next: kubectl apply -k {argument(directory)}\n")
    typer.echo(chart.notes(chart.read(directory), name=name, namespace=namespace).rstrip("\n"))


@app.command()
def render(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR", help="Directories that `k8s new` has made.")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is not current.")] = False,
) -> None:
    """Write a cluster's objects again, from its values.yaml.

    \b
    Examples:
      switchyard k8s render cluster
      switchyard k8s render cluster --check
    """
    from deployments.kubernetes import chart

    for directory in directories:
        try:
            if check and not chart.current(directory):
                fix = command(f"k8s render {argument(directory)}")
                raise CommandError(f"{directory / chart.OBJECTS} is out of date with {chart.VALUES}; run: {fix}")
            for path in () if check else chart.write(directory):
                typer.echo(f"Wrote {path}" if path.exists() else f"Removed {path}")
        except ConfigError as error:
            raise CommandError("\n".join([f"{directory / chart.VALUES} is invalid:", *error.problems])) from None


def mirror(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="The endpoint, as in the configuration.")],
    form: Annotated[Literal["text", "markdown", "json"], typer.Option("--format", help="How it is printed.")] = "text",
    url: Url = None,
    key: Key = None,
) -> None:
    """Show how an endpoint's shadow answers copies of requests.

    \b
    Examples:
      switchyard mirror chat
      switchyard mirror chat --format json
    """
    from urllib.parse import quote

    path = f"/endpoints/{quote(endpoint, safe='')}/mirror"
    typer.echo(router_client(url, key).ask("GET", path, {"format": form}).decode().rstrip("\n"))


@dataclass(frozen=True)
class NewKey:
    """`key` is shown once; `line` is its record for a keys file, without the key."""

    key: str
    line: str
    record_id: str


def create_key(
    name: str,
    file: Path | None,
    *,
    prefix: str,
    endpoints: list[str],
    expires: datetime | None,
    limits: dict[str, int],
    group: str | None = None,
) -> NewKey:
    """Creates a key and appends its record to `file`, which running routers reread. Raises CommandError."""
    try:
        key, record = create(
            name,
            prefix=prefix,
            endpoints=endpoints,
            expires=expires,
            limits=Limits(**limits) if limits else None,
            group=group,
        )
        if file is not None:
            append(file, record.line)
    except ConfigError as error:
        raise CommandError("\n".join(error.problems)) from None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    return NewKey(key, record.line, record.id)


def rotate_key(
    name: str, file: Path, *, prefix: str, until: datetime, expires: datetime | None, now: datetime
) -> tuple[str, datetime | None]:
    """Gives `name` a new key in `file`; returns it, and the time until which the old one works, None if it does not.
    Raises CommandError."""
    made: list[tuple[str, KeyRecord]] = []

    def change(record: KeyRecord) -> KeyRecord:
        made.append(rotated(record, now=now, until=until, expires=expires, prefix=prefix))
        return made[0][1]

    try:
        replace(file, name, change)
    except ConfigError as error:
        raise CommandError("\n".join(error.problems)) from None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    key, record = made[0]
    return key, record.previous.expires if record.previous is not None else None


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
    old = f"until {_time(previous['expires'])}, used {_time(previous['last_used'])}" if previous else ""
    endpoints = "all" if key["endpoints"] is None else ",".join(key["endpoints"])
    return key["caller"], endpoints, _time(key["expires"]), _time(key["last_used"]), old


def _time(at: float | None) -> str:
    return shown(at) if at is not None else "never"


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
