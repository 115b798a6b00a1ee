"""The section `affinity`: the choice of the replica that serves a conversation.

- The section `continuation`: streams outlive their engine.
- Copies of requests: `mirror` sends some to another deployment, `record` writes some down for a replay.
- Checks of mirrors that need the deployments: problems refuse a configuration, warnings are printed by `switchyard
  check`. Both are lines, ``path: what; the fix``.
- The section `tracing` of the configuration.
- The section `plan`, which the traffic API writes next to an endpoint's weights. Files leave it out.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Protocol, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from app.config.base import DeploymentFields, EndpointFields, Name, Section
from app.config.experiments import Percent


class Affinity(Section):
    """The turns of a conversation reach the replica that has its prefix in its cache, as long as that has room."""

    by: Literal["prefix", "session", "none"] = Field(
        default="prefix",
        description="`prefix`: the request's `prompt_cache_key`; without one, the sticky key of an endpoint that is "
        "sticky by something else than `api_key`, or else the beginning of the conversation (system prompt, tools, "
        "first user message; the first KiB of a completion's prompt). `session`: the sticky key, else the header "
        "x-session-id. `none`: the replica with the least work.",
    )
    bound: float = Field(
        default=2.0,
        ge=0,
        le=16,
        description="How far above the mean of all replicas the work of the conversation's replica may lie, in square "
        "roots of that mean; half of it for a first turn. Beyond it the conversation's next replica takes the request.",
    )


class Continuation(Section):
    """Streams outlive their engine: another replica of the deployment continues them."""

    wait_s: float = Field(
        default=30.0,
        gt=0,
        description="Seconds that a stream waits for a replica that can continue it. With one replica, more than Serve "
        "takes to replace it, such as 180. Those that are full are waited for, too, within the request's time limit.",
    )
    keep_alive_s: float = Field(
        default=15.0,
        gt=0,
        description="Seconds of silence between two signs of life to a stream's client. Less than the shortest time "
        "for which proxies and clients bear silence.",
    )


def _is_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    return text


Expression = Annotated[str, AfterValidator(_is_expression)]
Share = Annotated[float, Field(gt=0, le=100)]
"""Percent."""


def _sums_to_100(weights: dict[str, int]) -> dict[str, int]:
    if (total := sum(weights.values())) != 100:
        parts = " + ".join(f"{name} {weight}" for name, weight in weights.items())
        fix = f"add {100 - total}" if total < 100 else f"take away {total - 100}"
        raise ValueError(f"sums to {total} ({parts}), it must be 100: {fix}")
    return weights


Weights = Annotated[dict[str, Percent], Field(min_length=1), AfterValidator(_sums_to_100)]
"""Percentages by deployment."""


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


_EMBEDDINGS = "embeddings"


class MirroredEndpoint(EndpointFields, Protocol):
    """The fields of `schema.Endpoint` that the checks of mirrors read."""

    @property
    def mirror(self) -> Mirror | None: ...


def mirror_problems(endpoints: Mapping[str, MirroredEndpoint]) -> Iterator[str]:
    """Every reason to refuse the mirrors. That the shadows exist and do the tasks is checked with the endpoints."""
    for name, endpoint in endpoints.items():
        if (mirror := endpoint.mirror) is not None and endpoint.traffic.get(mirror.deployment) == 100:
            yield (
                f"endpoints.{name}.mirror.deployment: '{mirror.deployment}' answers all of the traffic, and copies "
                "would be compared with themselves; name another deployment, or remove the mirror"
            )


def mirror_warnings(
    endpoints: Mapping[str, MirroredEndpoint], deployments: Mapping[str, DeploymentFields]
) -> Iterator[str]:
    """Warnings about settings of a valid configuration that are rarely intended."""
    for name, endpoint in endpoints.items():
        if (mirror := endpoint.mirror) is None:
            continue
        path, shadow = f"endpoints.{name}.mirror.deployment", mirror.deployment
        if share := endpoint.traffic.get(shadow, 0):
            yield (
                f"{path}: '{shadow}' has {share} % of the traffic, too; the requests that it answers are not copied, "
                "and copies add to its load. To compare deployments that answer clients, declare an experiment"
            )
        if _EMBEDDINGS in endpoint.tasks:
            yield from _other_space(path, shadow, endpoint, deployments)


def _other_space(
    path: str, shadow: str, endpoint: MirroredEndpoint, deployments: Mapping[str, DeploymentFields]
) -> Iterator[str]:
    """Vectors of different spaces have no direction in common: their cosine is near 0 however good both models are."""
    space = deployments[shadow].space_id
    for primary in endpoint.traffic:
        other = deployments[primary].space_id
        if primary != shadow and None not in (space, other) and space != other:
            yield (
                f"{path}: '{shadow}' embeds into the space '{space}', '{primary}' into '{other}'; the cosine of the "
                "copies shows whether that is so, and nothing about their quality"
            )


class Tracing(Section):
    """Spans of requests, for an OpenTelemetry collector (OTLP over HTTP). Left out: none are made."""

    endpoint: str | None = Field(
        default=None,
        description="The collector's base URL, such as http://collector:4318; spans go to /v1/traces below it. "
        "Default: as OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT says, else http://localhost:4318.",
    )
    percent: float | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Percent of the requests that are traced, where the caller's `traceparent` does not decide. "
        "Default: as OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say, else 10.",
    )
    follow_per_s: float = Field(
        default=10.0,
        ge=0,
        description="How many requests a second, on each router, are traced because the caller's `traceparent` says "
        "so. Above it `percent` decides.",
    )

    @model_validator(mode="after")
    def _endpoint_is_a_url(self) -> Self:
        if self.endpoint is None:
            return self
        try:
            parts = urlsplit(self.endpoint)
            host = parts.hostname
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
            raise ValueError("`endpoint` must be a URL such as http://collector:4318")
        if parts.username is not None or parts.password is not None:
            raise ValueError("`endpoint` holds credentials; put them into the variable OTEL_EXPORTER_OTLP_HEADERS")
        if parts.path.rstrip("/").endswith("/v1/traces"):
            raise ValueError("`endpoint`: leave out /v1/traces, the router adds it")
        return self


# Ray Serve keeps it with the rest of the routers' configuration: a plan needs no other store to survive a restart.

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
    weights: Weights = Field(description="Its percentages.")
    overrides: Overrides = Field(default=(), description="Its overrides.")


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
