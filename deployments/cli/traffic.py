"""`switchyard traffic`: show an endpoint's split, plan a change, make it and wait until every router has it.

- Plans of an endpoint's traffic: temporary changes, dry runs, history, rollback.
- What delivering a file changes in what runs, which `deploy` and `check` say, too.
- Running ramps that a change of the traffic would undo.

What reads configurations or the local run is imported where it is used, so that `--help` is instant.
"""

import json
import re
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.config.base import ConfigError
from app.moments import shown
from deployments.cli.options import CommandError, ExitCode, Key, RouterClient, Url, router_client, table

if TYPE_CHECKING:
    from app.config.schema import Config

_USAGE = "Name shares (with --dry-run, --ttl, --reason), --history, or --rollback (with --reason); one at a time"

POLL_S = 0.5

Shares = Mapping[str, int]
"""Deployment name to percentage."""


Plan = Mapping[str, Any]
"""An endpoint's traffic, as `GET /api/endpoints/{endpoint}/traffic` returns it."""


@dataclass(frozen=True)
class SplitChange:
    """The split of `endpoint` before and after. Both have the same deployments, 0 for those without traffic."""

    endpoint: str
    before: Shares
    after: Shares

    def table(self) -> str:
        """The change for a terminal."""
        return _table(self.endpoint, {name: f"{self.before[name]} % → {share} %" for name, share in self.after.items()})


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
    actions = [bool(shares), history, rollback is not None]
    if sum(actions) > 1 or (not shares and (dry_run or ttl)) or (reason and not shares and rollback is None):
        raise CommandError(_USAGE, ExitCode.USAGE)
    wanted = parse_shares(shares) if shares else None
    ttl_s = seconds(ttl) if ttl is not None else None
    client = router_client(url, key)
    if history:
        typer.echo(history_table(client.traffic("GET", endpoint, "/history")["plans"]))
        return
    before = current(client, endpoint)
    present = client.traffic("GET", endpoint)
    _warn_of_ramps(client, endpoint, is_change=wanted is not None or rollback is not None)
    if rollback is not None:
        change = _rolled_back(client, present, before, rollback, reason)
    elif wanted is None:
        _show(endpoint, before, present)
        return
    else:
        change = split_change(endpoint, before, wanted)
        if dry_run:
            check(client, change, local=url is None)
            _show_dry_run(client, present, change, document(present, change, ttl_s, reason))
            return
        client.traffic("PUT", endpoint, body=document(present, change, ttl_s, reason), tag=present["plan"])
        change = delivered(client, change)
    typer.echo(change.table())
    typer.echo(f"Every router has it. {_restored(ttl)}", err=True)


def _restored(ttl: str | None) -> str:
    if ttl is not None:
        return f"After {ttl}, the previous split is restored."
    return "The next deploy restores the split of the configuration file."


def _show(endpoint: str, shares: Shares, present: Plan) -> None:
    typer.echo(split_table(endpoint, shares))
    if (text := described(present)) is not None:
        typer.echo(text, err=True)


def _show_dry_run(client: RouterClient, present: Plan, change: SplitChange, document: Mapping[str, Any]) -> None:
    moves = moves_of(client, present, document)
    typer.echo(change.table())
    if moves is not None:
        typer.echo(moves)
    typer.echo("Dry run: nothing is changed.", err=True)


def _rolled_back(
    client: RouterClient, present: Plan, before: Shares, generation: int, reason: str | None
) -> SplitChange:
    """Restores the split of an earlier plan; returns the change as it is in force."""
    body = {"generation": generation, "reason": reason}
    endpoint = present["endpoint"]
    made = client.traffic("POST", endpoint, "/rollback", body=body, tag=present["plan"])
    return delivered(client, split_change(endpoint, before, made["weights"]))


def _warn_of_ramps(client: RouterClient, endpoint: str, *, is_change: bool) -> None:
    for name in ramps_of(client, endpoint) if is_change else ():
        typer.echo(f"warning: the ramp of '{name}' moves this traffic; a change by hand pauses it", err=True)


def split_table(endpoint: str, shares: Shares) -> str:
    """A split for a terminal."""
    return _table(endpoint, {name: f"{share} %" for name, share in shares.items()})


def _table(endpoint: str, cells: Mapping[str, str]) -> str:
    return table([endpoint, ""], [[f"  {name}", cell] for name, cell in cells.items()])


def parse_shares(arguments: Sequence[str]) -> dict[str, int]:
    """`["blue=90", "green=10%"]` as a mapping. Raises CommandError unless the shares are whole and sum to 100."""
    shares: dict[str, int] = {}
    for argument in arguments:
        name, separator, text = argument.partition("=")
        number = text.removesuffix("%")
        if not name or not separator or not (number.isascii() and number.isdigit()) or int(number) > 100:
            message = f"'{argument}': expected NAME=SHARE with a whole percentage from 0 to 100, such as blue=90"
            raise CommandError(message, ExitCode.USAGE)
        if name in shares:
            raise CommandError(f"'{name}' has two shares; remove one", ExitCode.USAGE)
        shares[name] = int(number)
    if (total := sum(shares.values())) != 100:
        fix = f"add {100 - total}" if total < 100 else f"take away {total - 100}"
        raise CommandError(f"The shares sum to {total}, they must sum to 100: {fix}", ExitCode.USAGE)
    return shares


def current(client: RouterClient, endpoint: str) -> dict[str, int]:
    """The split that is in force. Raises CommandError with the known endpoints for an unknown one."""
    known = client.endpoints()
    if endpoint not in known:
        raise CommandError(f"There is no endpoint '{endpoint}'; known: {', '.join(known) or 'none'}")
    routes = client.endpoint(endpoint)["config"]["traffic_config"]["routes"]
    return {route["served_entity_name"]: route["traffic_percentage"] for route in routes}


def split_change(endpoint: str, before: Shares, wanted: Shares) -> SplitChange:
    """The change from `before` to `wanted`: a deployment that `wanted` leaves out gets 0."""
    names = dict.fromkeys([*before, *wanted], 0)
    return SplitChange(endpoint, {**names, **before}, {**names, **wanted})


def check(client: RouterClient, change: SplitChange, *, local: bool) -> None:
    """Raises CommandError if the router would reject the change. `local`: it is that of this installation's run, whose
    whole configuration can be read; of another one, only the deployments that some endpoint has are known.
    """
    config = None
    if local:
        from deployments.local import dashboard, processes

        config = dashboard.read(processes.running()).router_config
    if config is not None:
        from app.config.schema import parse
        from app.control_plane import with_traffic

        try:
            parse(with_traffic(config, change.endpoint, change.after))
        except (ConfigError, KeyError) as error:
            raise CommandError(f"The router would reject this: {error}") from None
        return
    entities = [item for name in client.endpoints() for item in client.endpoint(name)["config"]["served_entities"]]
    known = dict.fromkeys(item["name"] for item in entities)
    if unknown := [name for name in change.after if name not in known]:
        raise CommandError(f"No endpoint has a deployment '{unknown[0]}'; known: {', '.join(known)}")


def delivered(client: RouterClient, change: SplitChange) -> SplitChange:
    """Waits for a change that was made, and returns it as it is in force once every router replica has it. Raises
    CommandError.
    """
    from deployments.local.readiness import DELIVERY_S

    deadline = time.monotonic() + DELIVERY_S
    while (state := client.endpoint(change.endpoint)["state"]["config_update"]) != "NOT_UPDATING":
        if state == "UPDATE_FAILED":
            raise CommandError("The routers rejected the change and keep the old split; see their logs")
        if time.monotonic() > deadline:
            late = f"Not every router has the change after {DELIVERY_S:.0f} s"
            raise CommandError(f"{late}. Check with: {client.command('status')}", ExitCode.UNREACHABLE)
        time.sleep(POLL_S)
    return split_change(change.endpoint, change.before, current(client, change.endpoint))


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> int:
    """``30m`` as seconds. Raises CommandError on anything but a whole number of s, m, h or d."""
    match = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    if match is None:
        raise CommandError(f"--ttl '{text}': expected a number and s, m, h or d, such as 30m", ExitCode.USAGE)
    return int(match[1]) * _UNITS[match[2]]


def document(plan: Plan, change: SplitChange, ttl_s: int | None, reason: str | None) -> dict[str, Any]:
    """The change as a whole plan: the overrides of `plan` stay."""
    named = {"weights": dict(change.after), "overrides": list(plan["overrides"])}
    return {**named, "ttl_s": ttl_s, "reason": reason}


def moves_of(client: RouterClient, plan: Plan, wanted: Mapping[str, Any]) -> str | None:
    """The keys that `wanted` would move, one line for each kind of key; None if the endpoint is not sticky."""
    if plan["sticky"] is None:
        return None
    moves = client.traffic("PUT", plan["endpoint"], "?dry_run=true", body=wanted, tag=plan["plan"])["moves"]
    made_up = _moved("made-up keys", moves["made_up_keys"])
    return "\n".join([made_up, _moved("keys that this router saw last", moves["recent_keys"])])


def _moved(keys: str, moves: Mapping[str, Any]) -> str:
    pairs = ", ".join(f"{pair['from']} → {pair['to']} {100 * pair['share']:.1f} %" for pair in moves["pairs"])
    return f"of {moves['keys']:,} {keys}, {100 * moves['share']:.1f} % would move" + (f": {pairs}" if pairs else "")


def described(plan: Plan) -> str | None:
    """A plan's generation, author, end and reason in one line; None if it came with a file."""
    if plan["generation"] == 0:
        return None
    ends = f", until {moment(plan['expires']['at'])}" if plan["expires"] is not None else ""
    count = len(plan["overrides"])
    overrides = f", {count} override{'s' * (count > 1)}" if count else ""
    by = f" by {plan['by']}" if plan["by"] else ""
    reason = f": {plan['reason']}" if plan["reason"] else ""
    return f"Generation {plan['generation']}, since {moment(plan['since'])}{by}{ends}{overrides}{reason}"


def history_table(plans: Sequence[Mapping[str, Any]]) -> str:
    """All plans for a terminal, the latest first."""
    rows = [
        [
            str(plan["generation"]),
            moment(plan["since"]),
            plan["by"] or "a file",
            ", ".join(f"{name} {share} %" for name, share in plan["weights"].items() if share),
            plan["reason"] or "",
        ]
        for plan in plans
    ]
    return table(["GENERATION", "SINCE", "BY", "SPLIT", "REASON"], rows)


def moment(at: float | None) -> str:
    """A time (Unix seconds) in UTC."""
    return shown(at) if at is not None else "-"


@dataclass(frozen=True)
class FileChanges:
    """What delivering a file changes in what runs."""

    superseded: Sequence[str] = ()
    """Warnings about running ramps that it would undo."""
    splits: Sequence[SplitChange] = ()
    starting: Sequence[str] = ()
    """The experiments that do not run, and do then, as far as the router can be asked about them."""


def changes_of(file: Path, key: str | None = None) -> FileChanges:
    """Empty if the file is invalid, or if nothing runs. `key`: with which the router is asked."""
    from app.config.loading import load, superseded
    from deployments.local.processes import LaunchError

    try:
        wanted, applied = load(file), _applied()
    except (ConfigError, LaunchError):
        return FileChanges()
    if applied is None:
        return FileChanges(starting=starting(wanted, key))
    splits = [
        split_change(name, applied.endpoints[name].traffic, endpoint.traffic)
        for name, endpoint in wanted.endpoints.items()
        if name in applied.endpoints
    ]
    return FileChanges(
        superseded(applied, wanted),
        [change for change in splits if change.before != change.after],
        starting(wanted, key, {name for name, old in applied.experiments.items() if old.state == "running"}),
    )


def _applied() -> "Config | None":
    """The router's configuration that runs. Raises ConfigError and LaunchError."""
    from app.config.schema import parse
    from deployments.local import dashboard, processes

    applied = dashboard.read(processes.running()).router_config
    return parse(applied) if applied is not None else None


def starting(wanted: "Config", key: str | None, running: Container[str] = ()) -> list[str]:
    """The experiments of a configuration that run with it at once, without those that are `running` already.

    None without the `key` that a router with this configuration requires: it would count the question about them among
    the requests without valid credentials, which an operator may take for an attack.
    """
    if wanted.access.requires_credentials and not key:
        return []
    return [
        name
        for name, experiment in wanted.experiments.items()
        if experiment.state == "running" and experiment.starts_at is None and name not in running
    ]


def earlier_runs(client: RouterClient, names: Sequence[str], before: float, patience_s: float = 10.0) -> list[str]:
    """A line for each of the started experiments that goes on with a run from before the Unix time `before`, or that
    stays paused.

    Empty if the controller does not answer: the file is delivered all the same.
    """
    deadline, known = time.monotonic() + patience_s, dict[str, Mapping[str, Any]]()
    while len(known) < len(names) and time.monotonic() < deadline:
        try:
            summaries = json.loads(client.ask("GET", "/experiments"))["experiments"]
        except (CommandError, ValueError, KeyError):
            return []
        known = {
            summary["experiment"]: summary
            for summary in summaries
            if summary["experiment"] in names
            and summary["started_at"] is not None
            and (summary["state"] == "running" or _stays_paused(summary))
        }
        if len(known) < len(names):
            time.sleep(POLL_S)
    return [line for name in names if name in known for line in _earlier_run(client, known[name], before)]


def _earlier_run(client: RouterClient, summary: Mapping[str, Any], before: float) -> Iterator[str]:
    name = summary["experiment"]
    anew = "To begin anew, give it another name in the file, and deploy that"
    if _stays_paused(summary):
        resume = client.command(f"experiments decide {name} resume --reason TEXT")
        yield f"The experiment {name} stays paused: {summary['acting']['text']}. To go on: {resume}. {anew}"
    elif summary["started_at"] < before:
        since = moment(summary["started_at"])
        yield f"The experiment {name} continues its run of {since}, whose requests count. {anew}"


def _stays_paused(summary: Mapping[str, Any]) -> bool:
    """Whether a finding or a person has paused it, which no file undoes."""
    acting = summary.get("acting")
    return acting is not None and acting["state"] == "paused" and acting["cause"] != "file"


def ramps_of(client: RouterClient, endpoint: str) -> list[str]:
    """The experiments whose ramp moves the endpoint's traffic now, and pauses after a change by anyone else.

    Empty if the controller does not answer: traffic can be moved without it.
    """
    try:
        experiments = json.loads(client.ask("GET", "/experiments"))["experiments"]
    except CommandError:
        return []
    return [
        experiment["experiment"]
        for experiment in experiments
        if experiment["endpoint"] == endpoint and _moves(experiment["acting"])
    ]


def _moves(acting: dict[str, object] | None) -> bool:
    if acting is None or acting["state"] != "running":
        return False
    return acting["step"] is not None or acting["next_share"] is not None
