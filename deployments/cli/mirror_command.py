"""`switchyard mirror`: arguments and printing."""

from typing import Annotated, Literal

import typer

from deployments.cli.options import Key, Url, router_client


def mirror(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="The endpoint, as in the configuration.")],
    form: Annotated[Literal["text", "markdown", "json"], typer.Option("--format", help="How it is printed.")] = "text",
    url: Url = None,
    key: Key = None,
) -> None:
    """Show how an endpoint's shadow answers copies of requests.

    \b
    Examples:
      switchyard mirror chat
      switchyard mirror chat --format json
    """
    from urllib.parse import quote

    path = f"/endpoints/{quote(endpoint, safe='')}/mirror"
    typer.echo(router_client(url, key).ask("GET", path, {"format": form}).decode().rstrip("\n"))
