"""Commands for who runs a server: `switchyard doctor`, `switchyard k8s` and `switchyard mirror`.

Imports are inside, so that `--help` is instant.
"""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.config.base import ConfigError
from deployments.cli.options import CommandError, ExitCode, Key, Url, router_client
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
