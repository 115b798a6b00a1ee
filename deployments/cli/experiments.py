"""`switchyard experiments`: arguments and printing."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from deployments.cli.experiments_decisions import decide, watch
from deployments.cli.options import (
    AsJson,
    CommandError,
    ExitCode,
    Format,
    Key,
    LedgerOption,
    Metric,
    Name,
    Treatment,
    Url,
    experiment_path,
    router_client,
)
from deployments.invocation import pasteable

if TYPE_CHECKING:
    from deployments.cli.experiments_client import Source

app = typer.Typer(help="Which deployment is better, and how sure that is.", rich_markup_mode=None)


@app.command("list")
def list_(form: Format = "text", ledger: LedgerOption = None, url: Url = None, key: Key = None) -> None:
    """List the experiments: state, split, units, decision.

    \b
    Examples:
      switchyard experiments list
      switchyard experiments list --ledger .run/ledger
    """
    _print(_shown(_source(url, key, ledger).ask("GET", "/experiments", {"format": form}), form, url))


@app.command()
def report(
    name: Name,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --ledger: as of a date, a time (UTC), or Unix seconds.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit by the decision, see above.")] = False,
    form: Format = "text",
    ledger: LedgerOption = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Report verdicts, guardrails, the split, and what was lost.

    \b
    Exit codes with --check, besides those of errors (1 to 4):
      0   ship
      10  do not ship
      11  keep going: not decided yet
      12  invalid: no verdict can be trusted, the report says why

    \b
    Examples:
      switchyard experiments report no-prefix-cache
      switchyard experiments report no-prefix-cache --check
      switchyard experiments report no-prefix-cache --format json
      switchyard experiments report no-prefix-cache --format markdown > report.md
      switchyard experiments report no-prefix-cache --ledger .run/ledger --at 2026-11-12T16:00
    """
    from deployments.cli.experiments_client import check_of

    path = experiment_path(name, "/report")
    source = _source(url, key, ledger, at)
    shown = _shown(source.ask("GET", path, {"format": form}), form, url)
    decision = json.loads(shown if form == "json" else source.ask("GET", path))["decision"] if check else ""
    _print(shown)
    if check:
        raise typer.Exit(check_of(decision))


@app.command()
def history(
    name: Name,
    metric: Metric = None,
    treatment: Treatment = None,
    form: Format = "text",
    ledger: LedgerOption = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Show how a metric's interval narrowed.

    One look a minute, at most 500.

    \b
    Example:
      switchyard experiments history no-prefix-cache --metric ttft
    """
    query = _given(format=form, metric=metric, treatment=treatment)
    _print(_source(url, key, ledger).ask("GET", experiment_path(name, "/history"), query))


@app.command()
def planner(
    name: Name,
    metric: Metric = None,
    effect: Annotated[
        float | None, typer.Option(min=0.0, help="0.05 is 5 %. Default: the metric's minimal effect.")
    ] = None,
    power: Annotated[float, typer.Option(min=0.0, max=1.0, help="The chance to find it.")] = 0.8,
    treatment: Treatment = None,
    form: Format = "text",
    ledger: LedgerOption = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Show how many units an effect needs, and for how long.

    The time follows from the present rate of new units.

    \b
    Examples:
      switchyard experiments planner no-prefix-cache
      switchyard experiments planner no-prefix-cache --metric ttft --effect 0.03 --power 0.9
    """
    query = _given(format=form, metric=metric, effect=effect, power=power, treatment=treatment)
    _print(_source(url, key, ledger).ask("GET", experiment_path(name, "/planner"), query))


@app.command()
def aa(
    name: Name,
    runs: Annotated[int, typer.Option(min=1, max=10_000, help="How often the recorded units are labelled.")] = 1000,
    form: Format = "text",
    ledger: LedgerOption = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Give the recorded units random labels, and count false verdicts.

    For comparison: the false verdicts of t-tests that are repeated at every look.

    \b
    Examples:
      switchyard experiments aa no-prefix-cache
      switchyard experiments aa no-prefix-cache --runs 200 --ledger .run/ledger
    """
    from deployments.cli.experiments_client import false_verdicts

    _print(false_verdicts(_source(url, key, ledger), name, runs, form))


app.command()(decide)
app.command()(watch)


@app.command()
def explain(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="The endpoint, as in the configuration.")],
    sticky_key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="A user, a header's value, a session: what it is sticky by.")
    ] = None,
    caller: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose key it is, with a role. Default: one of your own.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Show which deployment a sticky key reaches, and why.

    \b
    Example:
      switchyard experiments explain chat session-4711
    """
    from urllib.parse import quote

    from deployments.cli.experiments_client import explanation

    path = f"/endpoints/{quote(endpoint, safe='')}/assignment"
    answer = _source(url, key).ask("GET", path, _given(key=sticky_key, caller=caller))
    typer.echo(answer.decode() if as_json else explanation(json.loads(answer)))


@app.command()
def request(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="The header x-request-id, or the answer's id.")],
    url: Url = None,
    key: Key = None,
) -> None:
    """Show what was recorded of a request, as JSON.

    \b
    Example:
      switchyard experiments request chatcmpl-3f1c
    """
    from urllib.parse import quote

    request = json.loads(_source(url, key).ask("GET", f"/requests/{quote(request_id, safe='')}"))
    typer.echo(json.dumps(request["exposures"], indent=2))


@app.command()
def feedback(
    request_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The header x-request-id, or the answer's id.")
    ] = None,
    metric: Annotated[str | None, typer.Argument(metavar="METRIC", help="As declared below `feedback`.")] = None,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="true, false or a number.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON lines with request_id, metric and value, instead of arguments."),
    ] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Score an answer, or many.

    \b
    Examples:
      switchyard experiments feedback chatcmpl-3f1c thumbs true
      switchyard experiments feedback --file scores.jsonl
    """
    from deployments.cli import experiments_client

    if (file is None) == (value is None):
        raise CommandError("Name either ID, METRIC and VALUE, or --file", ExitCode.USAGE)
    if file is not None:
        bodies: list[object] = list(experiments_client.read(file))
    else:
        bodies = [{"request_id": request_id, "metric": metric, "value": experiments_client.value_of(str(value))}]
    source = _source(url, key)
    typer.echo(experiments_client.summary([json.loads(source.ask("POST", "/feedback", body=body)) for body in bodies]))


@app.command()
def export(
    name: Annotated[
        str | None, typer.Argument(metavar="EXPERIMENT", help="Only the exposures of its last run. Default: all.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: standard output, not for Parquet.")
    ] = None,
    form: Annotated[
        Literal["csv", "jsonl", "parquet", "guidellm", "vllm-bench"],
        typer.Option("--format", help="The file's format; the last two are traces for benchmarks."),
    ] = "csv",
    endpoint: Annotated[str | None, typer.Option(help="Only this endpoint's requests.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="A date, a time (UTC), or Unix seconds.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="The same; not included.")] = None,
    ledger: LedgerOption = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Write the recorded exposures or a benchmark's trace to a file.

    Those of a server are for managers. One row for each request: hashes, times, sizes, outcomes; no text, no names
    of users. A server has what is on disk: the last minute may be missing. A trace has arrival times and token
    counts; it is made of the exposures of EXPERIMENT, or with --ledger of the directory's recordings, with their
    texts if they have some.

    \b
    Examples:
      switchyard experiments export no-prefix-cache > exposures.csv
      switchyard experiments export --format parquet --output exposures.parquet --since 2026-11-12
      switchyard experiments export --format vllm-bench --endpoint chat --ledger .run/ledger > trace.jsonl
    """
    from app.experiments.export import Selection
    from deployments.cli import experiments_export
    from deployments.cli.experiments_client import moment

    bounds = [moment(text, option) if text else None for text, option in ((since, "--since"), (until, "--until"))]
    wanted = Selection(name, endpoint, *bounds)
    exposures = (
        experiments_export.of_server(router_client(url, key))
        if ledger is None
        else experiments_export.of_directory(ledger)
    )
    match form:
        case "guidellm" | "vllm-bench":
            notes = experiments_export.write_trace(exposures, ledger, output, form, wanted)
        case _:
            notes = experiments_export.write_exposures(exposures, output, form, wanted)
    for note in notes:
        typer.echo(f"{note}.", err=True)


@app.command()
def replay(
    recording: Annotated[
        str, typer.Argument(metavar="FILE_OR_DIRECTORY", help="A recording, or a ledger's directory that has some.")
    ],
    arms: Annotated[str, typer.Option(metavar="NAMES", help="Deployments of the endpoint, control first: blue,green.")],
    endpoint: Annotated[str | None, typer.Option(metavar="NAME", help="Default: the recording's only one.")] = None,
    speed: Annotated[float, typer.Option(min=0.001, max=1000.0, help="2 sends twice as fast as recorded.")] = 1.0,
    requests: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N. Default: all.")] = None,
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, max=4096, help="Recorded requests under way at once, at most.")
    ] = 256,
    experiment: Annotated[str | None, typer.Option(metavar="NAME", help="Take the metrics of this experiment.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where --experiment is declared. Default: the ledger of the recording, then serve_config.yaml.",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Keep the replay's ledger in this new directory.")
    ] = None,
    form: Format = "text",
    url: Url = None,
    key: Key = None,
) -> None:
    """Send recorded requests again, to every arm, and report.

    The report is that of an experiment. Arrival times are kept. A request goes to all arms at the same moment, the
    first one drawn; it is one unit of the report. Recordings without texts are replayed with made-up prompts of the
    same length. Without --experiment, the report is about the time to the first token.

    \b
    Examples:
      switchyard experiments replay .run/ledger --arms blue,green
      switchyard experiments replay .run/ledger --arms blue,green --speed 4 --requests 2000
      switchyard experiments replay monday.jsonl.gz --arms blue,green --experiment no-prefix-cache --out replays/monday
    """
    from deployments.cli import experiments_export

    wanted = experiments_export.ReplayOptions(
        recording=recording,
        arms=experiments_export.arms_of(arms),
        endpoint=endpoint,
        requests=requests,
        speed=speed,
        concurrency=concurrency,
        experiment=experiment,
        config=config,
        out=out,
    )
    _print(experiments_export.run(wanted, router_client(url, key), key, form))


def _source(url: str | None, key: str | None, ledger: str | None = None, at: str | None = None) -> "Source":
    """The ledger's directory, if there is one, else the server."""
    from deployments.cli.experiments_client import Server

    if ledger is None:
        if at is not None:
            raise CommandError("--at needs --ledger: a running server reports the present", ExitCode.USAGE)
        return Server(router_client(url, key))
    from deployments.cli.experiments_client import moment, open_directory

    return open_directory(ledger, at=moment(at, "--at") if at is not None else None)


def _shown(answer: bytes, form: str, url: str | None) -> bytes:
    """An answer with commands that can be pasted into this terminal; Markdown and JSON are for readers elsewhere."""
    return pasteable(answer.decode(), url).encode() if form == "text" else answer


def _given(**query: object) -> dict[str, str]:
    return {name: str(value) for name, value in query.items() if value is not None}


def _print(text: bytes) -> None:
    typer.echo(text.decode().rstrip("\n"))
