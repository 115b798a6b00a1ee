"""`switchyard audit`: arguments and printing."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deployments.cli.options import Key, Url, router_client

if TYPE_CHECKING:
    from deployments.cli.options import RouterClient

_PAGE = 1000


def audit(
    since: Annotated[str | None, typer.Option(metavar="TIME", help="A date, a time (UTC), or Unix seconds.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="The same; not included.")] = None,
    action: Annotated[str | None, typer.Option(help="put_traffic, roll_back_traffic, decide, update_config …")] = None,
    outcome: Annotated[Literal["accepted", "refused", "failed"] | None, typer.Option(help="What came of it.")] = None,
    caller: Annotated[str | None, typer.Option(help="A key's name, or a token's principal.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="What was changed.")] = None,
    experiment: Annotated[str | None, typer.Option(help="What was decided about.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most records: the latest ones.")] = 50,
    form: Annotated[
        Literal["text", "json"], typer.Option("--format", help="`json`: a line for each record, with every field.")
    ] = "text",
    url: Url = None,
    key: Key = None,
) -> None:
    """Show who changed or exported what, and who was refused.

    Changes of traffic, decisions about experiments, exports; the latest calls come first.

    \b
    Examples:
      switchyard audit
      switchyard audit --outcome refused --since 2026-11-12
      switchyard audit --limit 1000000 --format json > audit.jsonl
    """
    wanted = {
        "since": since,
        "until": until,
        "action": action,
        "outcome": outcome,
        "caller": caller,
        "endpoint": endpoint,
        "experiment": experiment,
    }
    query = {name: value for name, value in wanted.items() if value is not None}
    records = _records(router_client(url, key), query, limit)
    if form == "json":
        for record in records:
            typer.echo(json.dumps(record, ensure_ascii=False))
        return
    from deployments.cli.options import table
    from deployments.cli.traffic import moment

    rows = [
        [
            moment(record["at"]),
            record["action"],
            record["error"] or record["outcome"],
            record["caller"] or "-",
            _source(record),
            _what(record),
        ]
        for record in records
    ]
    typer.echo(table(["TIME", "ACTION", "OUTCOME", "CALLER", "FROM", "WHAT"], rows))


def _records(client: "RouterClient", query: Mapping[str, str], limit: int) -> Iterator[dict[str, Any]]:
    """The latest records, page by page."""
    before: dict[str, str] = {}
    while limit > 0:
        page = json.loads(client.ask("GET", "/audit", {**query, **before, "limit": str(min(limit, _PAGE))}))
        yield from page["records"]
        limit -= len(page["records"])
        if page["before"] is None:
            return
        before = {"before": page["before"]}


def _source(record: Mapping[str, Any]) -> str:
    """The address that the last proxy saw, else the peer's."""
    return str(record["forwarded_for"].rpartition(",")[2].strip() or record["address"])


def _what(record: Mapping[str, Any]) -> str:
    """The change in one line."""
    changed = (record["after"] or {}).get("changed", [])
    name = record["experiment"] or record["endpoint"] or record["call"] or ", ".join(changed)
    shares = [
        " ".join(f"{deployment}={share}" for deployment, share in (record[side] or {}).get("weights", {}).items())
        for side in ("before", "after")
    ]
    change = f" {shares[0]} → {shares[1]}" if all(shares) else f" {(record['after'] or {}).get('action', '')}".rstrip()
    reason = f": {record['reason']}" if record["reason"] else ""
    times = f" ({record['count']} times)" if record["count"] > 1 else ""
    return f"{name}{change}{reason}{times}"
