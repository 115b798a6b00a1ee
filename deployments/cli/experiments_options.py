"""Options that several commands of `switchyard experiments` take."""

from typing import Annotated, Literal

import typer

Format = Annotated[Literal["text", "markdown", "json"], typer.Option("--format", help="How it is printed.")]
Ledger = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Read a ledger's directory (or s3://, gs://, abfs://), without a server."),
]
Name = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="The experiment, as in the configuration.")]
Metric = Annotated[
    str | None, typer.Option(metavar="METRIC", help="As in the report: ttft, ttft.p95. Default: the first primary.")
]
Treatment = Annotated[str | None, typer.Option(metavar="NAME", help="Default: the first treatment.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
