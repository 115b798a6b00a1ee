"""The report on an endpoint's shadow: returned as JSON by the API, rendered as Markdown and as words."""

from typing import Literal

import msgspec
from msgspec.structs import force_setattr

from app.experiments.report import Effect

Side = Literal["higher", "lower", "undecided"]
"""The shadow's position relative to the primary, once the interval excludes 0 (or the evidence suffices)."""


class PairedValue(msgspec.Struct, frozen=True, kw_only=True):
    """A number of each pair, and its mean. `interval` is a confidence sequence: it holds whenever one looks."""

    metric: str
    kind: Literal["difference", "ratio", "share", "mean"]
    """Shadow minus primary; shadow by primary, less 1; the share of pairs; the mean of a number."""
    pairs: int
    units: int
    value: Effect
    side: Side | None = None
    """None where there is no value to compare with."""


class PairedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A 0/1 event, in pairs. Pairs with it on one side alone are evidence of a difference."""

    event: str
    pairs: int
    both: int
    shadow_only: int
    primary_only: int
    log_e_value: float
    """The largest evidence for a difference so far: each unit counts once."""
    ln_e: float | None = None
    """Deprecated: `log_e_value`."""
    side: Side

    def __post_init__(self) -> None:
        force_setattr(self, "ln_e", self.log_e_value)


class ShadowOf(msgspec.Struct, frozen=True, kw_only=True):
    """The shadow against one primary. `failed`: copies without an answer, by the failure."""

    primary: str
    compared: int
    failed: dict[str, int]
    values: list[PairedValue]
    events: list[PairedEvent]


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint's shadow, since it became one. Times are Unix seconds."""

    endpoint: str
    shadow: str
    percent: float
    since: float
    at: float
    alpha: float
    """The error rate of each interval, and of each event's evidence."""
    copies: int
    """Copies that were sent."""
    tokens: int
    """Tokens that they cost, as far as the engine reported them."""
    skipped: dict[str, int]
    """Requests that were drawn and not copied, by the reason."""
    primaries: list[ShadowOf]
    """The one with most copies first."""
    headline: str
    warnings: list[str] = []
