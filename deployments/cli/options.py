"""Options that several commands share, and the router that they name."""

from typing import TYPE_CHECKING, Annotated

import typer

from deployments.invocation import URL_VARIABLE

if TYPE_CHECKING:
    from deployments.cli.router_client import RouterClient

Url = Annotated[
    str | None,
    typer.Option(
        envvar=URL_VARIABLE, metavar="URL", help="The server. Default: the one that this installation started."
    ),
]
Key = Annotated[
    str | None,
    typer.Option(envvar="SWITCHYARD_API_KEY", metavar="KEY", help="An API key, if the server requires one."),
]


def router_client(url: str | None, key: str | None) -> "RouterClient":
    """The router at `url`, or of this installation's run."""
    from deployments.cli.router_client import RouterClient

    if url is not None:
        return RouterClient(url, key)
    from deployments.local import processes
    from deployments.local.ports import HOST

    return RouterClient(f"http://{HOST}:{processes.running().port}", key, is_local_run=True)
