"""The section `access` of the configuration: who may call, and how much."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, StringConstraints, model_validator

from app.config.base import Section
from app.config.urls import is_safe

ANONYMOUS = "anonymous"
"""The name of callers without credentials, if these are allowed."""

Count = Annotated[int, Field(strict=True, ge=1)]

CallerName = Annotated[str, StringConstraints(pattern=r"^[!-~]([ -~]{0,198}[!-~])?$")]
"""Printable: it appears in log lines."""


class Limits(Section):
    """What one caller may use of one endpoint. Left out: the wider limit applies. null: no limit."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = Field(
        default=None,
        description="Prompt and completion; the prompt is estimated, then settled with the actual count.",
    )
    concurrent_requests: Count | None = None

    def within(self, wider: "Limits") -> "Limits":
        """These limits, completed with `wider`'s."""
        return Limits(**{**wider.model_dump(exclude_unset=True), **self.model_dump(exclude_unset=True)})


class StoreSettings(Section):
    """A Redis or Valkey that several routers count in. Exactly one of the three is set."""

    url: str | None = Field(default=None, description="redis://host:6379/0, or rediss:// for TLS; without a password.")
    url_env: str | None = Field(default=None, description="The environment variable that holds the URL.")
    url_file: Path | None = Field(default=None, description="The file that holds the URL.")

    @model_validator(mode="after")
    def _is_in_one_place(self) -> Self:
        if [self.url, self.url_env, self.url_file].count(None) != 2:
            raise ValueError("set exactly one of `url`, `url_env` and `url_file`")
        if self.url is not None:
            if urlsplit(self.url).scheme not in ("redis", "rediss", "valkey", "valkeys"):
                raise ValueError("`url` must begin with redis://, rediss://, valkey:// or valkeys://")
            if urlsplit(self.url).password is not None or "password" in parse_qs(urlsplit(self.url).query):
                raise ValueError("`url` holds a password; put the whole URL into `url_env` or `url_file` instead")
        return self

    def read(self) -> str:
        """The URL. Raises KeyError or OSError if it cannot be read."""
        if self.url_env is not None:
            return os.environ[self.url_env]
        return self.url_file.read_text().strip() if self.url_file is not None else str(self.url)


class Limiting(Section):
    """Limits per caller and endpoint. The narrower wins, number by number: a key's own, `callers`, `endpoints`,
    `default`."""

    default: Limits = Limits()
    endpoints: dict[str, Limits] = Field(
        default_factory=dict,
        description="For every caller of an endpoint, addressed by its name or by one of its deployments'.",
    )
    callers: dict[CallerName, Limits] = Field(
        default_factory=dict,
        description=f"For a key's name or a token's principal; '{ANONYMOUS}' without credentials.",
    )
    store: StoreSettings | None = Field(
        default=None, description="Left out: counted in memory, which only a single router may do."
    )
    on_store_failure: Literal["allow", "refuse"] = Field(
        default="allow", description="What happens to requests while the store does not answer."
    )

    def of(self, caller: str, endpoint: str, own: Limits | None) -> Limits:
        """The limits of `caller` on `endpoint`; `own` are those of its key."""
        widest = self.endpoints.get(endpoint, Limits()).within(self.default)
        return (own or Limits()).within(self.callers.get(caller, Limits()).within(widest))

    @property
    def is_set(self) -> bool:
        """Whether any number is set."""
        every = (self.default, *self.endpoints.values(), *self.callers.values())
        return any(limits != Limits() for limits in every)


class Oidc(Section):
    """Bearer tokens (JWT) of an OpenID Connect issuer."""

    issuer: str = Field(description="The claim `iss`, and the base URL of the issuer's metadata.")
    audience: str = Field(min_length=1, description="The claim `aud` must contain it.")
    jwks_url: str | None = Field(
        default=None,
        description="The URL of the issuer's keys. Default: from <issuer>/.well-known/openid-configuration.",
    )
    principal_claim: str = Field(default="sub", min_length=1, description="The claim that names the caller.")
    endpoints_claim: str | None = Field(
        default=None,
        min_length=1,
        description="The claim with the endpoints that the caller may use: a list, or a string separated by "
        "spaces. Left out: all endpoints.",
    )
    leeway_s: float = Field(default=30.0, ge=0, le=300, description="The tolerated clock skew, in seconds.")

    @model_validator(mode="after")
    def _urls_are_safe(self) -> Self:
        for name, url in (("issuer", self.issuer), ("jwks_url", self.jwks_url)):
            if url is not None and not is_safe(url):
                raise ValueError(
                    f"`{name}` '{url}' must be an https:// URL; whoever can alter its response can forge tokens"
                )
        return self


class AccessSettings(Section):
    """Who may call. With neither `keys_file` nor `oidc` everyone may, but only on the loopback interface."""

    keys_file: Path | None = Field(
        default=None,
        description="API keys, as `python -m app.access create-key` writes them; reloaded on change.",
    )
    oidc: Oidc | None = None
    allow_anonymous: bool = Field(default=False, description="Serve callers without credentials, on any interface.")
    managers: tuple[CallerName, ...] = Field(
        default=(),
        description="The callers (a key's name, a token's principal) that may change traffic over the management API. "
        "On loopback without credentials everyone may.",
    )
    metrics: Literal["open", "restricted"] = Field(
        default="open",
        description="restricted: metrics need credentials, which scrapers usually lack, and cover the reader's "
        "endpoints only.",
    )
    limits: Limiting = Limiting()

    @model_validator(mode="after")
    def _settings_are_usable(self) -> Self:
        if self.metrics == "restricted" and not self.knows_callers:
            raise ValueError("`metrics: restricted` needs `keys_file` or `oidc`; without them nobody can read metrics")
        if ANONYMOUS in self.managers:
            raise ValueError(f"`managers` names '{ANONYMOUS}'; anyone who reaches the server could change traffic")
        return self

    @property
    def knows_callers(self) -> bool:
        """Whether credentials are checked."""
        return self.keys_file is not None or self.oidc is not None

    @property
    def may_be_exposed(self) -> bool:
        """Whether a server with these settings may listen beyond the loopback interface."""
        return self.knows_callers or self.allow_anonymous


def exposure_problems(access: AccessSettings, *, loopback: bool) -> Iterator[str]:
    """A server that other machines can reach must not serve everyone by accident."""
    if not loopback and not access.may_be_exposed:
        yield (
            "access: the server would be reachable from other machines without authentication; set "
            "`keys_file` or `oidc`, or `allow_anonymous: true` if everyone may call"
        )


def sharing_problems(limiting: Limiting, *, several_routers: bool, keys_have_limits: bool = False) -> Iterator[str]:
    """Several routers cannot count in memory: each would admit the full limit."""
    if several_routers and limiting.store is None and (limiting.is_set or keys_have_limits):
        yield (
            "access.limits: several routers cannot count limits in memory, each would admit the full limit; "
            "set `store`, or run one router"
        )
