"""Copies of requests: `mirror` sends some to another deployment, `record` writes some down for a replay."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from app.config.base import Name, Section


def _is_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    return text


Expression = Annotated[str, AfterValidator(_is_expression)]
Share = Annotated[float, Field(gt=0, le=100)]
"""Percent."""


class Mirror(Section):
    """Shadow copies: after an answer is complete, the request goes to another deployment, too. Clients never see it."""

    deployment: Name = Field(description="The deployment that gets the copies; it need not be in the traffic.")
    percent: Share = Field(description="Percent of the units whose requests are copied: all of a unit's, or none.")
    tokens_per_minute: int | None = Field(
        default=None,
        ge=1,
        description="Tokens that copies may cost per minute, on each router; the rest is skipped. Default: no limit.",
    )
    max_concurrent: int = Field(default=4, ge=1, le=256, description="Copies at once, on each router.")


class Recording(Section):
    """Requests written down as they arrive, in `recordings/` of the ledger's directory, to be replayed later."""

    percent: Share = Field(default=100.0, description="Percent of the units whose requests are recorded.")
    text: Literal["none", "full"] = Field(
        default="none", description="`none`: arrival times, sizes and parameters; `full`: prompts, too."
    )
    redact: tuple[Expression, ...] = Field(
        default=(),
        description="Python regular expressions; what matches in any text of the request becomes `[redacted]`.",
    )
