"""`switchyard experiments decide`: the present state, the effect of a decision, and the decision itself.

`switchyard experiments watch`: the events of a running server, as they happen, one line each.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import typer

from app.moments import shown
from deployments.cli.options import (
    AsJson,
    CommandError,
    ExitCode,
    Key,
    Name,
    RouterClient,
    Url,
    experiment_path,
    router_client,
)
from deployments.invocation import command

Summary = Mapping[str, Any]
"""An experiment, as `GET /api/experiments/{name}` returns it."""

_CAREFUL = ("pause", "rollback", "stop")
"""Decisions that give no treatment more traffic: they are right regardless of what the ramp has done in the meantime.
"""


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
    client = router_client(url, key)
    summary = seen(client, name)
    typer.echo(described(summary), err=True)
    moves = foreseen(client, summary, action, reason, treatment)
    typer.echo(f"{action}: {consequence(summary, action, treatment)}", err=True)
    if moves:
        typer.echo(moves, err=True)
    unready = doubted(summary, treatment) if action == "promote" else None
    if unready is not None:
        typer.echo(f"{unready} {doubt(summary, unready)}", err=True)
        if yes and treatment is None:
            raise CommandError(f"No decision was made. To promote it all the same: add --treatment {unready}")
    if not (yes or _confirmed(unready)):
        raise CommandError("No decision was made. Without a terminal: add --yes")
    typer.echo(described(decided(client, summary, action, reason, treatment, anyway=yes)))


def _confirmed(name: str | None) -> bool:
    """Asks, or has `name` typed."""
    try:
        if name is not None:
            return bool(typer.prompt(f"Type {name} to promote it", err=True) == name)
        return typer.confirm("Do it?", err=True)
    except typer.Abort:  # no terminal to ask on
        return False


def seen(client: RouterClient, name: str) -> Summary:
    """The experiment as it is. Raises CommandError, also if nothing acts on it."""
    summary: Summary = json.loads(client.ask("GET", experiment_path(name)))
    if summary["acting"] is None:
        raise CommandError(f"Nothing acts on '{name}': it is an A/A test, or its state is {summary['state']}")
    return summary


def described(summary: Summary) -> str:
    """The present state, a line for each fact."""
    acting = summary["acting"]
    lines = [summary["headline"], f"Now: {acting['state']}, {_share(summary)}.", summary["next"]]
    troubles = [f"Warning: {trouble}." for trouble in summary.get("service", [])]
    return "\n".join(line for line in (*lines, *troubles) if line)


def consequence(summary: Summary, action: str, treatment: str | None) -> str:
    """The consequence of the decision, in a sentence. It is refused if it is not applicable."""
    control, treatments, next_share = summary["control"], summary["treatments"], summary["acting"]["next_share"]
    share = f"{next_share} %" if next_share is not None else "the next step's share"
    get = "gets" if len(treatments) == 1 else "get"
    chosen = treatment or " or ".join(treatments)
    what = "the ramp" if _has_ramp(summary) else "the experiment"
    return {
        "promote": f"{chosen} gets all the traffic that the holdout leaves, and the experiment is over.",
        "advance": f"{_names(treatments)} {get} {share} of the traffic, without waiting.",
        "pause": "No step is taken until it is resumed. The traffic stays as it is, and guardrails stay on.",
        "resume": _resumption(summary),
        "rollback": f"{control} gets the traffic of {_names(treatments)} at once, and {what} pauses.",
        "stop": "Nothing acts on it any more, permanently. The traffic stays as it is.",
    }[action]


def _has_ramp(summary: Summary) -> bool:
    return summary["acting"]["step"] is not None or summary["acting"]["next_share"] is not None


def _resumption(summary: Summary) -> str:
    clears = summary["acting"]["cause"] == "alarm" or "standing" in summary["alarm_kinds"]
    return _continuation(summary) + (" That clears the guardrails' alarms." if clears else "")


def _continuation(summary: Summary) -> str:
    treatments, acting = summary["treatments"], summary["acting"]
    if _has_ramp(summary):
        return "It continues. A ramp whose treatment has no traffic begins at its first step."
    if acting["share"] > 0:
        return "It continues. The traffic stays as it is."
    control, treatment = summary["control"], treatments[0]
    stay = "stays" if len(treatments) == 1 else "stay"
    by_hand = command(f"traffic {summary['endpoint']} {control}=90 {treatment}=10")
    return f"It continues, but has no ramp: {_names(treatments)} {stay} at 0 % until you move traffic, as in: {by_hand}"


DOUBTS = {
    "do_not_ship": "is worse, or exceeds a guardrail: the report says not to ship it.",
    "keep_going": "is not known to be better: there is no decision on it yet.",
    "invalid": "cannot be judged: no verdict of this run can be trusted.",
}


def doubted(summary: Summary, treatment: str | None) -> str | None:
    """The treatment that a promotion is about, if the report does not say to ship it. Of several one must be named."""
    name = treatment or (summary["treatments"][0] if len(summary["treatments"]) == 1 else None)
    return name if name is not None and _decision(summary, name) != "ship" else None


def doubt(summary: Summary, treatment: str) -> str:
    """The reason, as the rest of a sentence about it."""
    return DOUBTS.get(_decision(summary, treatment), DOUBTS["keep_going"])


def _decision(summary: Summary, treatment: str) -> str:
    return str(summary.get("decisions", {}).get(treatment, summary["decision"]))


def foreseen(client: RouterClient, summary: Summary, action: str, reason: str, treatment: str | None) -> str:
    """The traffic that the decision moves, a line each; empty if it moves none now. Raises CommandError if it is not
    applicable."""
    path = experiment_path(summary["experiment"], "/decision")
    answer = json.loads(client.ask("POST", path, {"dry_run": "true"}, _body(action, reason, treatment)))
    if answer["before"] == answer["after"]:
        return ""
    lines = [f"  {name}  {share} % → {answer['after'][name]} %" for name, share in answer["before"].items()]
    recent = answer["moves"]["recent_keys"]
    if recent["keys"]:
        lines.append(
            f"  of {recent['keys']:,} keys that this router saw last, {100 * recent['share']:.1f} % would move"
        )
    return "\n".join(lines)


def _body(action: str, reason: str, treatment: str | None) -> dict[str, str]:
    return {"action": action, "reason": reason} | ({"treatment": treatment} if treatment is not None else {})


def decided(
    client: RouterClient, summary: Summary, action: str, reason: str, treatment: str | None, *, anyway: bool
) -> Summary:
    """Makes the decision if the experiment is still as it was `seen`; `anyway`: makes a decision that adds no traffic
    in any case.

    Raises CommandError.
    """
    path, body = experiment_path(summary["experiment"], "/decision"), _body(action, reason, treatment)
    tag = "*" if anyway and action in _CAREFUL else str(summary["acting"]["revision"])
    made: Summary = json.loads(client.ask("POST", path, body=body, tag=tag))
    return made


def _share(summary: Summary) -> str:
    treatments, acting = summary["treatments"], summary["acting"]
    step = f" (step {acting['step'] + 1})" if acting["step"] is not None else ""
    return f"{_names(treatments)} {'has' if len(treatments) == 1 else 'have'} {acting['share']} % of the traffic{step}"


def _names(treatments: list[str]) -> str:
    return " and ".join(treatments)


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
    from deployments.cli.experiments_client import moment

    client = router_client(url, key)
    endpoint = json.loads(client.ask("GET", experiment_path(name)))["endpoint"] if name is not None else ""
    begin = str(moment(since, "--since")) if since is not None else None
    try:
        for event in follow(client, begin, lambda text: typer.echo(text, err=True)):
            if name is None or is_about(event, name, endpoint):
                typer.echo(json.dumps(event) if as_json else line_of(event))
    except KeyboardInterrupt:
        return


RETRY_S = 2.0
"""The delay before a server that did not answer is asked again."""


class Frame(NamedTuple):
    """One frame of the stream. `data` is empty for comments, whose words are `comment`."""

    id: str
    data: str
    comment: str


def follow(
    client: RouterClient, since: str | None, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> Iterator[dict[str, Any]]:
    """Yields the data of each event, forever. Streams end, and the next one resumes after the last event.

    `since`: an event's id or Unix seconds; None: from now on. `say` gets other messages, each once. Raises
    CommandError if the first stream cannot be opened.
    """
    last, is_first, said = since, True, ""
    while True:
        is_empty = True
        try:
            for frame in frames(client.lines("/api/events", last)):
                is_first = is_empty = False
                last = frame.id or last
                if frame.data:
                    said = ""
                    yield json.loads(frame.data)
                elif "does not answer" in frame.comment and said != frame.comment:
                    said = frame.comment
                    say(frame.comment)
        except CommandError as error:
            # A router that is being replaced comes back; one that refuses will refuse again.
            if is_first or error.exit_code != ExitCode.UNREACHABLE:
                raise
            if said != error.message:
                said = error.message
                say(f"{error.message}; trying again")
        if is_empty:  # no server, or one that ends streams at once
            sleep(RETRY_S)


def frames(lines: Iterable[str]) -> Iterator[Frame]:
    """The frames of a stream of events; one that is cut off is none."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        yield Frame(fields.get("id", ""), fields.get("data", ""), fields.get("", ""))
        fields = {}


def is_about(event: dict[str, Any], name: str, endpoint: str) -> bool:
    """Whether an event is about the experiment `name`, or about the plans of its endpoint."""
    return (event.get("experiment", name), event.get("endpoint", endpoint)) == (name, endpoint)


def line_of(event: dict[str, Any]) -> str:
    """``2026-11-12 14:02:11 UTC  no-prefix-cache: smollm2-green exceeds the guardrail error``"""
    about = event.get("experiment") or event.get("endpoint")
    return f"{shown(event['at'])}  {f'{about}: ' if about else ''}{event['text']}"
