"""`switchyard traffic`: arguments and printing. Imports are inside, so that `--help` is instant."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deployments.cli.options import CommandError, ExitCode, Key, Url, router_client

if TYPE_CHECKING:
    from deployments.cli.options import RouterClient
    from deployments.cli.traffic import Shares, SplitChange

_USAGE = "Name shares (with --dry-run, --ttl, --reason), --history, or --rollback (with --reason); one at a time"


def traffic(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="The endpoint, as in the configuration.")],
    shares: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=SHARE", help="Percentages, sum 100; one left out gets 0."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change, change nothing.")] = False,
    ttl: Annotated[
        str | None, typer.Option(metavar="TIME", help="Restore the previous split after this time: 90s, 30m, 1h, 2d.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why, for the history.")] = None,
    history: Annotated[bool, typer.Option("--history", help="Print every plan that the endpoint has had.")] = False,
    rollback: Annotated[
        int | None, typer.Option(metavar="GENERATION", min=0, help="Make the split of an earlier plan again.")
    ] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Show an endpoint's split, or change it live.

    Returns when every router has the change. The configuration file stays as it is: the next deploy restores its split.

    \b
    Examples:
      switchyard traffic chat
      switchyard traffic chat smollm2-blue=50 smollm2-green=50
      switchyard traffic chat smollm2-green=100 --dry-run
      switchyard traffic chat smollm2-green=100 --ttl 1h --reason "load test"
      switchyard traffic chat --history
      switchyard traffic chat --rollback 3
    """
    from deployments.cli import traffic as plans
    from deployments.cli import traffic as splits

    actions = [bool(shares), history, rollback is not None]
    if sum(actions) > 1 or (not shares and (dry_run or ttl)) or (reason and not shares and rollback is None):
        raise CommandError(_USAGE, ExitCode.USAGE)
    wanted = splits.parse_shares(shares) if shares else None
    ttl_s = plans.seconds(ttl) if ttl is not None else None
    client = router_client(url, key)
    if history:
        typer.echo(plans.history_table(client.traffic("GET", endpoint, "/history")["plans"]))
        return
    before = splits.current(client, endpoint)
    plan = client.traffic("GET", endpoint)
    _warn_of_ramps(client, endpoint, is_change=wanted is not None or rollback is not None)
    if rollback is not None:
        change = _rolled_back(client, plan, before, rollback, reason)
    elif wanted is None:
        _show(endpoint, before, plan)
        return
    else:
        change = splits.plan(endpoint, before, wanted)
        if dry_run:
            _check_change(client, change, local=url is None)
            _show_dry_run(client, plan, change, plans.document(plan, change, ttl_s, reason))
            return
        change = _made(client, plan, change, ttl_s, reason)
    typer.echo(change.table())
    typer.echo(f"Every router has it. {_restored(ttl)}", err=True)


def _restored(ttl: str | None) -> str:
    if ttl is not None:
        return f"After {ttl}, the previous split is restored."
    return "The next deploy restores the split of the configuration file."


def _show(endpoint: str, shares: "Shares", plan: Mapping[str, Any]) -> None:
    from deployments.cli import traffic as plans
    from deployments.cli import traffic as splits

    typer.echo(splits.split_table(endpoint, shares))
    if (described := plans.described(plan)) is not None:
        typer.echo(described, err=True)


def _show_dry_run(
    client: "RouterClient", plan: Mapping[str, Any], change: "SplitChange", document: Mapping[str, Any]
) -> None:
    from deployments.cli import traffic as plans

    moves = plans.moves_of(client, plan, document)
    typer.echo(change.table())
    if moves is not None:
        typer.echo(moves)
    typer.echo("Dry run: nothing is changed.", err=True)


def _rolled_back(
    client: "RouterClient", plan: Mapping[str, Any], before: "Shares", generation: int, reason: str | None
) -> "SplitChange":
    """Restores the split of an earlier plan; returns the change as it is in force."""
    from deployments.cli import traffic as splits

    body = {"generation": generation, "reason": reason}
    endpoint = plan["endpoint"]
    made = client.traffic("POST", endpoint, "/rollback", body=body, tag=plan["plan"])
    return splits.delivered(client, splits.plan(endpoint, before, made["weights"]))


def _made(
    client: "RouterClient", plan: Mapping[str, Any], change: "SplitChange", ttl_s: int | None, reason: str | None
) -> "SplitChange":
    """Makes the change; returns it as it is in force."""
    from deployments.cli import traffic as plans
    from deployments.cli import traffic as splits

    plans.put(client, plan, plans.document(plan, change, ttl_s, reason))
    return splits.delivered(client, change)


def _warn_of_ramps(client: "RouterClient", endpoint: str, *, is_change: bool) -> None:
    from deployments.cli.traffic import ramps_of

    for name in ramps_of(client, endpoint) if is_change else ():
        typer.echo(f"warning: the ramp of '{name}' moves this traffic; a change by hand pauses it", err=True)


def _check_change(client: "RouterClient", change: "SplitChange", *, local: bool) -> None:
    from deployments.cli import traffic as splits

    config = None
    if local:
        from deployments.local import dashboard, processes

        config = dashboard.read(processes.running()).router_config
    splits.check(client, change, config)
