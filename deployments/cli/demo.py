"""`switchyard demo`: simulated traffic, for a server without users."""

from typing import Annotated

import typer

from deployments.cli.options import Key, Url, router_client

app = typer.Typer(help="Simulated traffic.", rich_markup_mode=None)


@app.callback()
def demo() -> None:
    """Makes `traffic` a subcommand although it is the only one."""


@app.command()
def traffic(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="An endpoint for chat.")],
    minutes: Annotated[float, typer.Option(min=0.01, help="How long.")] = 10.0,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests per second, on average.")] = 3.0,
    users: Annotated[int, typer.Option(min=1, help="Simulated users; some ask far more often than others.")] = 200,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest answer.")] = 16,
    feedback: Annotated[
        str | None, typer.Option(metavar="METRIC", help="Also score answers, as a boolean feedback metric.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Repeat a run's users and questions; without it, every run has new ones."),
    ] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Send chat requests of simulated users to an endpoint.

    Each user has a separate session (the header x-session-id), so that `sticky: {by: conversation}` keeps it on one
    deployment. Ctrl-C ends it early. Prints a line every ten seconds, and at the end the outcomes by deployment.

    \b
    Examples:
      switchyard demo traffic chat
      switchyard demo traffic chat --minutes 2 --rate 5 --feedback thumbs
    """
    import asyncio
    import secrets
    from functools import partial

    from deployments.cli.demo_traffic import DemoTraffic, TrafficSender

    client = router_client(url, key)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    plan = DemoTraffic(
        endpoint=endpoint, users=users, rate=rate, seconds=minutes * 60, max_tokens=max_tokens, seed=seed
    )
    sender = TrafficSender(client.url, key, plan, say=partial(typer.echo, err=True), feedback=feedback)
    try:
        asyncio.run(sender.run())
    except KeyboardInterrupt:
        typer.echo("Stopped early.", err=True)
    if table := sender.table():
        typer.echo(table)
    sender.check()
