"""The section `access` of the configuration: authentication and limits."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from app.config.base import Section, is_safe

ANONYMOUS = "anonymous"
"""The name of callers without credentials, if they are admitted."""

Count = Annotated[int, Field(strict=True, ge=1)]


def _said_in_words(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        raise ValueError("must have 1 to 200 printable ASCII characters, and no space at its ends") from None


CallerName = Annotated[str, StringConstraints(pattern=r"^[!-~]([ -~]{0,198}[!-~])?$"), WrapValidator(_said_in_words)]
"""Printable, for log lines."""

Principal = CallerName
"""A caller among the roles: `key:` and a key's name, or `oidc:` and a token's principal. Without either it is of the
one kind of credentials that is configured; where both are, it would be ambiguous, and is refused."""

GroupName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
"""A group of callers that experiments tell apart; no name of a caller, since the ledger holds it."""

MOST_GROUPS = 16

KEY, TOKEN = "key:", "oidc:"


class Limits(Section):
    """The limits of one caller on one endpoint. Default: the wider limit. null: no limit."""

    requests_per_minute: Count | None = Field(
        default=None, description="What is used fades out over the minute after its own."
    )
    tokens_per_minute: Count | None = Field(
        default=None,
        description="Prompt and completion. A prompt is estimated first and settled with the engine's count.",
    )
    concurrent_requests: Count | None = Field(default=None, description="Running at the same time.")

    def within(self, wider: "Limits") -> "Limits":
        """These limits, completed by `wider`'s."""
        if not self.model_fields_set:  # in most configurations, and for every request
            return wider
        return Limits(**{**wider.model_dump(exclude_unset=True), **self.model_dump(exclude_unset=True)})


class StoreSettings(Section):
    """The Redis or Valkey in which several routers count together. Exactly one of the keys is set."""

    url: str | None = Field(default=None, description="redis://host:6379/0, or rediss:// for TLS; without a password.")
    url_env: str | None = Field(default=None, description="The environment variable with the URL.")
    url_file: Path | None = Field(default=None, description="The file with the URL.")

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
        description="For every caller of the endpoint, also if it names a deployment behind it.",
    )
    callers: dict[CallerName, Limits] = Field(
        default_factory=dict,
        description=f"By a key's name or a token's principal; '{ANONYMOUS}' for callers without credentials.",
    )
    store: StoreSettings | None = Field(
        default=None, description="Where to count. Default: in memory, which only a single router may do."
    )
    on_store_failure: Literal["allow", "refuse"] = Field(
        default="allow", description="Whether requests pass or get a 503 while the store does not answer."
    )

    def limits_for(self, caller: str, endpoint: str, own: Limits | None) -> Limits:
        """The limits of `caller` on `endpoint`; `own` are those of its key."""
        limits = self.default
        for narrower in (self.endpoints.get(endpoint), self.callers.get(caller), own):
            if narrower is not None:
                limits = narrower.within(limits)
        return limits

    @property
    def has_limits(self) -> bool:
        """Whether any number is set."""
        every = (self.default, *self.endpoints.values(), *self.callers.values())
        return any(limits != Limits() for limits in every)


ProtocolWord = Annotated[str, StringConstraints(pattern=r"^[!#-\[\]-~]{1,200}$")]
"""A scope or a parameter's name (RFC 6749, appendix A.4): visible ASCII without quotes and backslashes."""

_OWN_PARAMETERS = {
    "client_id",
    "client_secret",
    "code_challenge",
    "code_challenge_method",
    "nonce",
    "redirect_uri",
    "response_mode",
    "response_type",
    "scope",
    "state",
}


class ConsoleSignIn(Section):
    """People sign in to the console with the issuer: authorization code with PKCE, as a public client.

    Register `<where people open it>/ui` as redirect URI, and allow that origin to call the token endpoint (CORS).
    """

    client_id: Annotated[str, StringConstraints(pattern=r"^[ -~]{1,200}$")] = Field(
        description="The console's id at the issuer, as a public client (single-page application): it has no secret."
    )
    scopes: tuple[ProtocolWord, ...] = Field(
        default=("openid",), min_length=1, description="What the console asks for. With `openid` a nonce is checked."
    )
    token: Literal["access_token", "id_token"] = Field(
        default="access_token",
        description="Which token of the answer is the credential: it must be a JWT whose `aud` holds `audience`.",
    )
    parameters: dict[ProtocolWord, Annotated[str, StringConstraints(min_length=1, max_length=1000)]] = Field(
        default_factory=dict,
        description="More parameters of the authorization request, as some issuers need them: `audience`, `resource`.",
    )

    @model_validator(mode="after")
    def _fits_the_protocol(self) -> Self:
        if own := sorted(self.parameters.keys() & _OWN_PARAMETERS):
            raise ValueError(f"`parameters` may not set {', '.join(own)}: the console sets it itself, or has none")
        if self.token == "id_token" and "openid" not in self.scopes:
            raise ValueError("`token: id_token` needs the scope `openid`; add it to `scopes`")
        return self


class Oidc(Section):
    """Bearer tokens (JWT) of an OpenID Connect issuer."""

    issuer: str = Field(description="The claim `iss`, and the base URL for discovery.")
    audience: str = Field(min_length=1, description="The claim `aud` must contain it.")
    jwks_url: str | None = Field(
        default=None, description="The issuer's keys. Default: from `<issuer>/.well-known/openid-configuration`."
    )
    principal_claim: str = Field(default="sub", min_length=1, description="The claim that names the caller.")
    endpoints_claim: str | None = Field(
        default=None,
        min_length=1,
        description="The claim with the endpoints that the caller may use: a list, or words separated by spaces. "
        "Default: all endpoints.",
    )
    groups_claim: str | None = Field(
        default=None,
        min_length=1,
        description="The claim with the caller's groups: a list, or words separated by spaces. The first that `groups` "
        "lists counts.",
    )
    leeway_s: float = Field(default=30.0, ge=0, le=300, description="How far clocks may differ, in seconds.")
    console: ConsoleSignIn | None = Field(
        default=None, description="Sign-in at the console's page, `/ui`. Default: keys and tokens are pasted there."
    )

    @model_validator(mode="after")
    def _urls_are_safe(self) -> Self:
        for name, url in (("issuer", self.issuer), ("jwks_url", self.jwks_url)):
            if url is not None and not is_safe(url):
                raise ValueError(
                    f"`{name}` '{url}' must be an https:// URL; anyone who can alter its response can forge tokens"
                )
        return self


class AccessSettings(Section):
    """The callers. With neither `keys_file` nor `oidc`, everyone on the loopback interface may call."""

    keys_file: Path | None = Field(
        default=None, description="API keys, as `switchyard keys create` writes them; reread when it changes."
    )
    oidc: Oidc | None = None
    issue_keys: bool = Field(
        default=False,
        description="Whether managers create, change and revoke keys at `/ui` and `/api/keys`, which the controller of "
        "experiments keeps in `ledger.url`.",
    )
    allow_anonymous: bool = Field(
        default=False, description="Whether callers without credentials are served, on any interface."
    )
    managers: tuple[Principal, ...] = Field(
        default=(),
        description="The callers that may change traffic, decide about experiments, score every answer, and read all "
        "that `viewers` read: `key:` and a key's name, `oidc:` and a token's principal. The prefix may be left out if "
        "only one of `keys_file` and `oidc` is set. Without keys and tokens, everyone on the machine may.",
    )
    operators: dict[str, tuple[Principal, ...]] = Field(
        default_factory=dict,
        description="By endpoint: the callers that may change its traffic and decide about its experiments.",
    )
    viewers: tuple[Principal, ...] = Field(
        default=(),
        description="The callers that may read every caller's use, every request's record, the audit log, and the "
        "exposures.",
    )
    metrics: Literal["open", "restricted"] = Field(
        default="open",
        description="`restricted`: metrics need credentials, and show only the reader's endpoints.",
    )
    limits: Limiting = Limiting()
    groups: tuple[GroupName, ...] = Field(
        default=(),
        max_length=MOST_GROUPS,
        description="Groups of callers that experiments tell apart: by a key's `group`, or `oidc.groups_claim`. The "
        "ledger records their names.",
    )

    @model_validator(mode="after")
    def _someone_can_issue_keys(self) -> Self:
        if self.issue_keys and self.keys_file is None and self.oidc is None:
            raise ValueError("`issue_keys` needs `keys_file` or `oidc`: otherwise no manager can create the first key")
        return self

    @model_validator(mode="after")
    def _groups_are_known(self) -> Self:
        if self.oidc is not None and self.oidc.groups_claim is not None and not self.groups:
            raise ValueError("`oidc.groups_claim` needs `groups`, which lists those that experiments tell apart")
        if self.groups and not self.knows_callers:
            raise ValueError("`groups` needs `keys_file` or `oidc`: otherwise no caller belongs to one")
        return self

    @model_validator(mode="after")
    def _roles_can_be_identified(self) -> Self:
        if self.metrics == "restricted" and not self.knows_callers:
            raise ValueError("`metrics: restricted` needs `keys_file` or `oidc`; otherwise no caller can read them")
        if problems := [problem for where, listed in self._roles() for problem in self._role_problems(where, listed)]:
            raise ValueError("; ".join(problems))
        return self

    def _roles(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield "managers", self.managers
        yield from ((f"operators.{endpoint}", listed) for endpoint, listed in self.operators.items())
        yield "viewers", self.viewers

    def _role_problems(self, where: str, listed: tuple[str, ...]) -> Iterator[str]:
        for name in listed:
            if name == ANONYMOUS:
                yield f"`{where}` names '{ANONYMOUS}'; anyone who reaches the server would have the role"
            elif name.startswith(KEY) and not self.has_keys:
                yield f"`{where}` names '{name}', but there are no keys; set `keys_file`, or remove it"
            elif name.startswith(TOKEN) and self.oidc is None:
                yield f"`{where}` names '{name}', but there are no tokens; set `oidc`, or remove it"
            elif not name.startswith((KEY, TOKEN)) and self.has_keys and self.oidc is not None:
                yield (
                    f"`{where}` names '{name}', which may be a key's name or a token's principal; "
                    f"write '{KEY}{name}' or '{TOKEN}{name}'"
                )

    def principals(self, listed: Iterable[str]) -> frozenset[str]:
        """The callers of a role, each with its prefix."""
        only = KEY if self.has_keys else TOKEN
        return frozenset(name if name.startswith((KEY, TOKEN)) else only + name for name in listed)

    @property
    def has_keys(self) -> bool:
        """Whether there may be API keys."""
        return self.keys_file is not None or self.issue_keys

    @property
    def knows_callers(self) -> bool:
        """Whether there are credentials to check."""
        return self.keys_file is not None or self.oidc is not None

    @property
    def requires_credentials(self) -> bool:
        """Whether nothing but open routes is served without them."""
        return self.knows_callers and not self.allow_anonymous

    @property
    def may_be_exposed(self) -> bool:
        """Whether a server with it may listen beyond the loopback interface."""
        return self.knows_callers or self.allow_anonymous


def exposure_problems(access: AccessSettings, *, loopback: bool) -> Iterator[str]:
    """The reasons why a server that other machines reach must not admit everyone."""
    if not loopback and not access.may_be_exposed:
        yield (
            "access: the server would be reachable from other machines without authentication; set "
            "`keys_file` or `oidc`, or `allow_anonymous: true` if everyone may call"
        )


def sharing_problems(limiting: Limiting, *, several_routers: bool, keys_have_limits: bool = False) -> Iterator[str]:
    """The reasons why several routers cannot count limits in memory: each would admit the whole limit."""
    if several_routers and limiting.store is None and (limiting.has_limits or keys_have_limits):
        yield (
            "access.limits: several routers cannot count limits in memory, each would admit the full limit; "
            "set `store`, or run one router"
        )
