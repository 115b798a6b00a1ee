"""`switchyard k8s`: arguments and printing. Imports are inside, so that `--help` is instant."""

from pathlib import Path
from typing import Annotated

import typer

from deployments.cli.errors import CommandError
from deployments.invocation import argument, command

app = typer.Typer(help="The cluster's manifests.", rich_markup_mode=None)


@app.callback()
def k8s() -> None:
    """Makes `render` a subcommand although it is the only one."""


@app.command()
def render(
    overlays: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR", help="Directories with a serve_config.yaml. Default: all in k8s/overlays."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is not current.")] = False,
) -> None:
    """Write what a cluster's manifests need for what it serves.

    From the serve_config.yaml in a kustomize overlay's directory, generated.yaml next to it.

    \b
    Examples:
      switchyard k8s render
      switchyard k8s render k8s/overlays/gpu --check
    """
    from app.config.base import ConfigError
    from deployments.kubernetes.generated import GENERATED, SERVED, generate, is_current

    for overlay in overlays or sorted(path.parent for path in Path("k8s/overlays").glob(f"*/{SERVED}")):
        file = overlay / GENERATED
        try:
            if is_current(overlay):
                continue
            if check:
                fix = command(f"k8s render {argument(overlay)}")
                raise CommandError(f"{file} is out of date with {SERVED}; run: {fix}")
            file.write_text(generate(overlay))
        except ConfigError as error:
            raise CommandError("\n".join([f"{overlay / SERVED} is invalid:", *error.problems])) from None
        typer.echo(f"Wrote {file}")
