"""`switchyard experiments decide` and `watch`. Imports are inside the commands, so that `--help` is instant."""

import json
from typing import Annotated, Literal

import typer

from deployments.cli.experiments_options import AsJson, Name
from deployments.cli.options import CommandError, Key, Url, router_client


def decide(
    name: Name,
    action: Annotated[
        Literal["promote", "advance", "pause", "resume", "rollback", "stop"],
        typer.Argument(metavar="ACTION", help="promote, advance, pause, resume, rollback or stop."),
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for the journal.")],
    treatment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which one to promote, if there are several.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Decide about an experiment, as a manager.

    Shows the present state and the decision's effect, and asks for confirmation. If the experiment has changed
    meanwhile, nothing is done; with --yes, pause, rollback and stop are done all the same. To promote a treatment
    that the report does not say to ship, type its name; with --yes, give it as --treatment.

    \b
    Actions:
      promote   a treatment gets all the traffic that the holdout leaves, and it is over
      advance   the ramp's next step, without waiting for it
      pause     no step is taken until it is resumed; the traffic stays
      resume    it continues
      rollback  control gets the treatments' traffic at once, and a ramp pauses
      stop      nothing acts on it any more; the traffic stays

    \b
    Examples:
      switchyard experiments decide no-prefix-cache pause --reason "users complain"
      switchyard experiments decide no-prefix-cache promote --reason "faster, as good" --yes
    """
    from deployments.cli import experiments_decisions

    client = router_client(url, key)
    summary = experiments_decisions.seen(client, name)
    typer.echo(experiments_decisions.described(summary), err=True)
    moves = experiments_decisions.foreseen(client, summary, action, reason, treatment)
    typer.echo(f"{action}: {experiments_decisions.consequence(summary, action, treatment)}", err=True)
    if moves:
        typer.echo(moves, err=True)
    doubted = experiments_decisions.doubted(summary, treatment) if action == "promote" else None
    if doubted is not None:
        typer.echo(f"{doubted} {experiments_decisions.doubt(summary, doubted)}", err=True)
        if yes and treatment is None:
            raise CommandError(f"No decision was made. To promote it all the same: add --treatment {doubted}")
    if not (yes or _confirmed(doubted)):
        raise CommandError("No decision was made. Without a terminal: add --yes")
    typer.echo(
        experiments_decisions.described(
            experiments_decisions.decide(client, summary, action, reason, treatment, anyway=yes)
        )
    )


def watch(
    name: Annotated[
        str | None, typer.Argument(metavar="EXPERIMENT", help="Only this one, and its endpoint's plans. Default: all.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="First what happened since a date, a time (UTC), Unix seconds.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Follow what happens, until Ctrl-C.

    Prints verdicts, alarms, stops, steps, decisions and plans.

    \b
    Examples:
      switchyard experiments watch
      switchyard experiments watch no-prefix-cache --since 2026-11-12
    """
    from deployments.cli.experiments_client import moment, path_of
    from deployments.cli.experiments_decisions import follow, is_about, line_of

    client = router_client(url, key)
    endpoint = json.loads(client.ask("GET", path_of(name)))["endpoint"] if name is not None else ""
    begin = str(moment(since, "--since")) if since is not None else None
    try:
        for event in follow(client, begin, lambda text: typer.echo(text, err=True)):
            if name is None or is_about(event, name, endpoint):
                typer.echo(json.dumps(event) if as_json else line_of(event))
    except KeyboardInterrupt:
        return


def _confirmed(name: str | None) -> bool:
    """Asks, or has `name` typed."""
    try:
        if name is not None:
            return bool(typer.prompt(f"Type {name} to promote it", err=True) == name)
        return typer.confirm("Do it?", err=True)
    except typer.Abort:  # no terminal to ask on
        return False
