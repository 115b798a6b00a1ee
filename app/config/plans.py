"""The section `plan`, which the traffic API writes next to an endpoint's weights. Files leave it out.

Ray Serve keeps it with the rest of the routers' configuration: a plan needs no other store to survive a restart.
"""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from app.config.base import Section
from app.config.experiments import Percent

MAX_OVERRIDES = 1000
MAX_EARLIER = 16
MAX_REASON = 500
"""Characters."""

UnitHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
UnixTime = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Generation = Annotated[int, Field(strict=True, ge=0)]


class Override(Section):
    """One unit is answered by one deployment, regardless of the weights."""

    unit: UnitHash = Field(description="The hash of the unit's sticky key, as exposures have it.")
    deployment: str = Field(description="One of the endpoint's traffic.")
    until: UnixTime | None = Field(default=None, description="Unix seconds. Default: as long as the plan.")


Overrides = Annotated[tuple[Override, ...], Field(max_length=MAX_OVERRIDES)]


class Expiry(Section):
    """The end of a temporary plan, and the plan in force after it."""

    at: UnixTime = Field(description="Unix seconds.")
    generation: Generation = Field(description="The generation that is restored, as a new one.")
    weights: dict[str, Percent] = Field(min_length=1, description="Its percentages.")
    overrides: Overrides = Field(default=(), description="Its overrides.")

    @model_validator(mode="after")
    def _percentages_sum_to_100(self) -> Self:
        if (total := sum(self.weights.values())) != 100:
            raise ValueError(f"weights sums to {total}, it must be 100")
        return self


class EarlierWeights(Section):
    """Weights that a later plan replaced, while running conversations follow them."""

    weights: dict[str, Percent] = Field(min_length=1, description="Percentages.")
    until: UnixTime = Field(description="Unix seconds: when the endpoint's `pin_s` after the change is over.")
    withdrawn: dict[str, str] = Field(
        default={},
        description="Deployments that had been withdrawn before they got traffic again, each with the one that got "
        "their conversations.",
    )


class PlanSettings(Section):
    """The present version of the endpoint's traffic. The traffic API writes it; leave it out of files."""

    generation: Generation = Field(default=0, description="Counts the versions. 0: it came with a file.")
    overrides: Overrides = Field(default=(), description="Units with a deployment of their own.")
    expires: Expiry | None = Field(default=None, description="For a temporary plan.")
    by: str | None = Field(default=None, description="The caller who made it.")
    reason: Annotated[str, StringConstraints(max_length=MAX_REASON)] | None = Field(
        default=None, description="The reason that the caller gave."
    )
    since: UnixTime | None = Field(default=None, description="When it was made, in Unix seconds.")
    earlier: Annotated[tuple[EarlierWeights, ...], Field(max_length=MAX_EARLIER)] = Field(
        default=(), description="Earlier weights that running conversations follow, the oldest first."
    )
    withdrawn: dict[str, str] = Field(
        default={},
        description="Deployments that running conversations leave at once, each with the one that takes them over.",
    )
