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
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration.", show_default=True)] = Path(
        "serve_config.yaml"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print what is well, too.")] = False,
) -> None:
    """Say what is wrong with this installation, and what to do.

    Looks at the configuration, the environment, packages, HAProxy, ports, keys, the issuer, the store of limits,
    weights, memory, GPUs, and at what runs: applications, missing replicas, the last errors of their logs. On a
    cluster, run it in the head's pod. It changes nothing. The exit code is 1 if there is a problem.

    \\b
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
        typer.echo(_summary(findings))
    if any(it.level is Level.PROBLEM for it in findings):
        raise typer.Exit(ExitCode.WRONG)


def _print(finding: "Finding") -> None:
    typer.echo(f"{_MARKS[finding.level]}{finding.area}: {finding.message}")
    if finding.fix:
        typer.echo(f"        -> {finding.fix}")


def _summary(findings: "list[Finding]") -> str:
    counts = {level: sum(it.level == level for it in findings) for level in _MARKS}
    if not counts["problem"] and not counts["warning"]:
        return f"All {counts['ok']} checks are well."
    return f"{counts['problem']} problems, {counts['warning']} warnings, {counts['ok']} well."
