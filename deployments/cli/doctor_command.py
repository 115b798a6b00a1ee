"""`switchyard doctor`: arguments and printing."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deployments.cli.errors import ExitCode

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
    from deployments.doctor.finding import Level
    from deployments.doctor.installation import installation

    findings = list(examine(installation(config)))
    if as_json:
        typer.echo(json.dumps([it.as_json() for it in findings], indent=2))
    else:
        for finding in findings:
            if verbose or finding.level is not Level.OK:
                _print(finding)
        typer.echo(summary(findings))
    if any(it.level is Level.PROBLEM for it in findings):
        raise typer.Exit(ExitCode.WRONG)


def _print(finding: "Finding") -> None:
    typer.echo(f"{_MARKS[finding.level]}{finding.area}: {finding.message}")
    if finding.fix:
        typer.echo(f"        -> {finding.fix}")


def summary(findings: "list[Finding]") -> str:
    """The last line of the report."""
    problems, warnings, passed = (sum(it.level == level for it in findings) for level in ("problem", "warning", "ok"))
    if not problems and not warnings:
        return f"All {passed} checks passed."
    return f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}, {passed} passed."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
