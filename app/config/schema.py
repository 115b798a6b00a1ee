"""The router's configuration: its schema, and every reason to reject it.

It is the `user_config` of the application `router` in `serve_config.yaml`, or a separate file (`switchyard router`). A
constructed `Config` is always valid: anything that cannot be served is rejected here, with the path and the fix.

    switchyard check FILE     reports every problem of FILE and starts nothing; exit code 1 if there are any
    switchyard schema         prints the JSON Schema of `serve_config.yaml` for editors
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, StringConstraints, ValidationError, model_validator

from app.config.access import AccessSettings
from app.config.adapters import parent_problems
from app.config.base import ConfigError, HostName, Name, Origin, is_http, problems_of
from app.config.base import Section as _Model
from app.config.endpoints import (
    Affinity,
    Continuation,
    Mirror,
    Override,
    PlanSettings,
    Recording,
    Tracing,
    Weights,
    mirror_problems,
)
from app.config.experiments import Experiment, LedgerSettings, experiment_problems
from app.config.meant import nearest
from app.internal_api import APP_PREFIX

Task = Literal["chat", "completions", "responses", "embeddings", "rerank", "classify"]
TASKS: tuple[Task, ...] = get_args(Task)
EngineParam = Literal[
    "kv_transfer_params",
    "ec_transfer_params",
    "priority",
    "logprob_token_ids",
    "mm_processor_kwargs",
    "media_io_kwargs",
]
ENGINE_PARAMS: tuple[EngineParam, ...] = get_args(EngineParam)
Seconds = Annotated[float, Field(gt=0)]

IMAGES_BODY_BYTES = 32 * 1024 * 1024
"""The largest body for an endpoint with images, unless the configuration says otherwise."""


class Sticky(_Model):
    """The same key always reaches the same deployment."""

    by: Literal["header", "user", "api_key", "conversation"] = Field(
        description="Where the key comes from. `conversation`: the header x-session-id, else the caller with the first "
        "system texts and the first user message."
    )
    name: str | None = Field(default=None, description="The header's name, with `by: header`.")

    @model_validator(mode="after")
    def _header_has_a_name(self) -> Self:
        if (self.by == "header") != (self.name is not None):
            raise ValueError("`by: header` needs `name: <header>`; the others take no name")
        return self


class ContentFilter(_Model):
    """Requests whose text matches a pattern are rejected with a 400."""

    patterns: tuple[re.Pattern[str], ...] = Field(
        min_length=1, description="Python regular expressions, searched in all texts of a request."
    )


class Admission(_Model):
    """The number of requests that an endpoint serves at a time, per router replica."""

    max_concurrent: int = Field(ge=1, description="Requests that run at the same time.")
    max_queued: int = Field(default=0, ge=0, description="Requests that wait for a slot; more are rejected at once.")
    max_wait_s: Seconds = Field(default=30.0, description="The longest wait; then the request is rejected.")


_NO_PLAN = PlanSettings()
_AFFINITY = Affinity()
_CONTINUATION = Continuation()


class Endpoint(_Model):
    """A name that clients put into `model`, and the deployments behind it."""

    tasks: tuple[Task, ...] = Field(
        min_length=1, description="What callers may use; every deployment must support all of them."
    )
    traffic: Weights = Field(description="Percentage per deployment; the sum is 100.")
    sticky: Sticky | None = None
    content_filter: ContentFilter | None = None
    admission: Admission | None = Field(
        default=None, description="Limits on concurrent requests. Default: only the deployments' own."
    )
    fallback: tuple[str, ...] | None = Field(
        default=None,
        description="Deployments to try after a failure before the first byte, in order. Default: the others with "
        "traffic, the largest share first. `[]` is none.",
    )

    allow_engine_params: tuple[EngineParam, ...] = Field(
        default=(),
        description="Parameters of vLLM that callers may set. The transfer parameters name hosts that an engine with a "
        "connector contacts; `priority` matters only to an engine with the priority scheduler. `logprob_token_ids` "
        "replaces the log-probabilities of others in the same batch, too (vLLM 0.29). The last two set how images, "
        "audio and videos are read: also to sizes that take all memory.",
    )

    isolate_cache: Literal["caller", "endpoint", "none"] | None = Field(
        default=None,
        description="Who shares the engines' cached prompts: each caller only with itself, all callers of this "
        "endpoint, or everyone. Sharing saves time, and lets callers find out what others have sent. Default: `caller` "
        "if `access` has `keys_file` or `oidc`, else `none`.",
    )

    unsupported_tools: Literal["drop", "refuse"] = Field(
        default="drop",
        description="Tools other than functions (`web_search`, `mcp`, `custom` …) in a Responses request that has "
        "functions too, as agents send them: left out, which the answer's `tools` show, or a 400. Without functions, "
        "or where `tool_choice` demands one, they are always a 400.",
    )
    ledger: Literal["experiments", "always"] = Field(
        default="experiments",
        description="Whether exposures are recorded only while an experiment runs (or with a mirror), or always.",
    )
    pin_s: float = Field(
        default=1800.0,
        ge=0,
        description="Seconds after a change of traffic in which running conversations keep their deployment. "
        "Needs `sticky`.",
    )
    mirror: Mirror | None = Field(default=None, description="Shadow copies for another deployment.")
    record: Recording | None = Field(default=None, description="Requests that are written down for a replay.")
    max_body_bytes: int | None = Field(
        default=None,
        ge=1024,
        description="A larger request for the endpoint gets a 413. Default: the router's `max_body_bytes`, at least "
        "32 MiB if one of its deployments has `images`.",
    )
    plan: PlanSettings = Field(default_factory=lambda: _NO_PLAN)  # pydantic copies a `default` for each endpoint

    @property
    def records_texts(self) -> bool:
        """Whether what its clients ask is written down, so that what may quote it may be kept, too."""
        return self.record is not None and self.record.text == "full"


class Price(_Model):
    """The price of a million tokens, in any currency."""

    input_per_million: float = Field(ge=0, description="Tokens of prompts.")
    output_per_million: float = Field(ge=0, description="Tokens of answers.")


_ONLY_WITH: Mapping[str, tuple[str, object, str]] = {
    "tokenizer_dir": ("url", None, "an `app` provides its own tokenizer"),
    "trace_context": ("url", False, "an `app` gets the trace context anyway"),
    "cache_salt": ("url", False, "an `app` gets the salt anyway"),
    "affinity": ("app", _AFFINITY, "the load balancer of a `url` does not use keys"),
    "continuation": ("app", _CONTINUATION, "a server elsewhere does not continue streams"),
}
"""Where a deployment must be to have these fields, their default, and why."""


class Deployment(_Model):
    """One model variant: a Serve application of this cluster, or an OpenAI-compatible server elsewhere."""

    app: Name | None = Field(default=None, description=f"The Serve application, at {APP_PREFIX}<app>.")
    url: str | None = Field(default=None, description="Base URL of a server elsewhere, without /v1.")
    model: str = Field(min_length=1, description="The name under which that server knows the model.")
    parent: str | None = Field(
        default=None, description="For a LoRA adapter: the deployment of the model that it adapts, on the same server."
    )
    tasks: tuple[Task, ...] = Field(
        default=("chat", "completions", "responses"), min_length=1, description="What the model can do."
    )
    api_key_env: str | None = Field(default=None, description="The environment variable with the key for `url`.")
    api_key_file: Path | None = Field(default=None, description="The file with the key for `url`.")
    trace_context: bool = Field(
        default=False,
        description="For `url`: whether that server gets `traceparent` and `tracestate`; an `app` always does.",
    )
    cache_salt: bool = Field(
        default=False,
        description="For `url`: whether that server takes vLLM's field `cache_salt`, by which `isolate_cache` keeps "
        "callers' prompts apart; an `app` always gets it.",
    )
    tokenizer_dir: Path | None = Field(
        default=None,
        description="For `url`: the directory with the model's tokenizer.json, for TGI's and Friendli's clients.",
    )
    instruction_template: str = Field(
        default="{instruction} {input}",
        description="For embeddings: how an instruction and the text are joined, as the model's card says.",
    )
    images: bool = Field(
        default=False, description="Whether the model reads images: the console's playground then offers to attach one."
    )
    price: Price | None = Field(default=None, description="For the metric `cost` of experiments.")
    space_id: str | None = Field(
        default=None, description="For embeddings: deployments with the same id embed into the same space."
    )
    affinity: Affinity = Field(
        default_factory=lambda: _AFFINITY,  # pydantic copies a `default` for each deployment
        description="For an `app` with several replicas: which of them a conversation reaches.",
    )
    continuation: Continuation = Field(
        default_factory=lambda: _CONTINUATION,
        description="For an `app`: how long a stream waits for a replica that continues it when its own one dies.",
    )

    @model_validator(mode="after")
    def _is_in_one_place(self) -> Self:
        if (self.app is None) == (self.url is None):
            raise ValueError("set either `app` (a Serve application of this cluster) or `url` (an external server)")
        if self.url is None and (self.api_key_env or self.api_key_file):
            raise ValueError("`api_key_env` and `api_key_file` need `url`; an `app` uses the internal key")
        for name, (place, default, why) in _ONLY_WITH.items():
            if getattr(self, place) is None and getattr(self, name) != default:
                raise ValueError(f"`{name}` needs `{place}`: {why}")
        if self.api_key_env and self.api_key_file:
            raise ValueError("set either `api_key_env` or `api_key_file`, not both")
        if self.url is not None and not is_http(self.url):
            raise ValueError(f"`url` '{self.url}' must be a server's address, as in http://HOST:PORT or https://HOST")
        if self.url is not None and self.url.rstrip("/").endswith("/v1"):
            raise ValueError(f"`url` '{self.url}': leave out /v1, the router adds it")
        if any(self.instruction_template.count(name) != 1 for name in ("{instruction}", "{input}")):
            raise ValueError("`instruction_template` needs {instruction} and {input}, once each")
        return self


class Timeouts(_Model):
    """Timeouts in seconds. When one expires, the engine's work ends."""

    body_s: Seconds = Field(default=60.0, description="For the client to send its whole request.")
    connect_s: Seconds = Field(default=5.0, description="To connect to the deployment.")
    first_byte_s: Seconds = Field(default=300.0, description="From the request to the answer's first byte.")
    idle_s: Seconds = Field(default=120.0, description="Between two chunks of an answer.")
    total_s: Seconds = Field(default=3600.0, description="For the whole request.")


class Cors(_Model):
    """Scripts of other origins, in browsers, that may call this server. Left out: none."""

    origins: tuple[Origin, ...] = Field(
        min_length=1, description='As browsers send them, like "https://app.example.com"; "*" for every origin.'
    )
    max_age_s: int = Field(default=600, ge=0, description="How long a browser may keep a preflight's answer.")


class Console(_Model):
    """What the page `/ui` shows besides this server's own data. Browsers follow its links, the server does not."""

    environment: Annotated[str, StringConstraints(pattern=r"^\S(.{0,28}\S)?$")] | None = Field(
        default=None, description="This installation's name, like `production`, at the top of every page."
    )
    docs_url: str | None = Field(default=None, description="Your copy of this documentation.")
    grafana_url: str | None = Field(default=None, description="Grafana, or one of its dashboards.")
    trace_url: str | None = Field(
        default=None,
        description="A trace, with `{trace_id}` for its id: `https://jaeger.example.com/trace/{trace_id}`.",
    )

    @model_validator(mode="after")
    def _are_links(self) -> Self:
        for name in ("docs_url", "grafana_url", "trace_url"):
            url = getattr(self, name)
            if url is not None and not url.startswith(("https://", "http://")):
                raise ValueError(f"`{name}` '{url}' must begin with https:// or http://")
        if self.trace_url is not None and "{trace_id}" not in self.trace_url:
            raise ValueError(f"`trace_url` '{self.trace_url}' lacks {{trace_id}}, the place of a trace's id")
        return self


class Tgi(_Model):
    """The behaviour of the TGI dialect where its two descriptions differ."""

    profile: Literal["mindie", "tgi"] = Field(
        default="mindie",
        description="Which description applies: MindIE's (and TGI 0.9's), or TGI 3's. It sets the defaults: output "
        "length (20 tokens, or the rest of the context), the prompt in the text, an object or a list at `POST /`, "
        "sampling, the seed of greedy answers.",
    )


class Config(_Model):
    """Endpoints, deployments and traffic. One immutable snapshot; a change is a new one."""

    endpoints: dict[Name, Endpoint] = Field(min_length=1)
    deployments: dict[Name, Deployment] = Field(min_length=1)
    defaults: dict[Task, str] = Field(
        default_factory=dict, description="The endpoint for each task, for clients that name no model."
    )
    access: AccessSettings = AccessSettings()
    experiments: dict[Name, Experiment] = Field(
        default_factory=dict, description="Comparisons of an endpoint's deployments."
    )
    ledger: LedgerSettings = LedgerSettings()
    timeouts: Timeouts = Timeouts()
    tgi: Tgi = Tgi()
    cors: Cors | None = None
    hosts: tuple[HostName, ...] = Field(
        default=(),
        description="Names of this server, besides `localhost` and addresses. Others are refused without `access`, to "
        "callers without credentials, and to all once one is listed.",
    )
    tracing: Tracing | None = None
    console: Console = Console()
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        description="A larger request gets a 413, unless its endpoint takes larger ones.",
    )
    max_bodies_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=64 * 1024 * 1024,
        description="The memory for the bodies of all requests under way in one router, as read and as parsed; more "
        "get a 503. Several requests of one caller have half of it, and more get a 429.",
    )
    max_json_values: int = Field(
        default=400_000,
        ge=1000,
        description="The values in a request's JSON, where an object, array or member of an object counts as eight, "
        "and 19 digits of a number as sixteen; more get a 413. It bounds the length of a prompt in token ids.",
    )
    max_header_bytes: int = Field(default=32 * 1024, ge=1024, description="All headers together; more get a 431.")
    max_messages: int = Field(
        default=4096,
        ge=1,
        description="In one conversation or batch; more get a 400, and so do more choices of several prompts together.",
    )

    def body_limit(self, endpoint: str) -> int:
        """The largest body for an endpoint, in bytes; for a name that is none, a deployment's own."""
        if (section := self.endpoints.get(endpoint)) is None:
            behind: Sequence[str] = [endpoint]
        elif section.max_body_bytes is not None:
            return section.max_body_bytes
        else:
            behind = [*section.traffic, *(section.fallback or ())]
        has_images = any(name in self.deployments and self.deployments[name].images for name in behind)
        return max(self.max_body_bytes, IMAGES_BODY_BYTES if has_images else 0)

    def endpoint_of(self, model: object, task: Task) -> Endpoint | None:
        """The endpoint that a client's `model` names, itself or by a deployment of only that one; without a name, the
        task's default."""
        name = self.defaults.get(task) if model is None else model
        if not isinstance(name, str):
            return None
        if name in self.endpoints:
            return self.endpoints[name]
        having = [endpoint for endpoint in self.endpoints.values() if name.partition(":")[0] in endpoint.traffic]
        return having[0] if len(having) == 1 else None

    @model_validator(mode="after")
    def _names_refer_to_something(self) -> Self:
        problems = [
            *self._ambiguous(),
            *self._endpoint_problems(),
            *self._default_problems(),
            *self._access_problems(),
            *parent_problems(self.deployments),
            *experiment_problems(self.experiments, self.endpoints, self.deployments),
            *mirror_problems(self.endpoints),
        ]
        if problems:
            raise ConfigError(problems)
        return self

    def _ambiguous(self) -> list[str]:
        both = sorted(set(self.endpoints) & set(self.deployments))
        return [
            f"endpoints.{name}: a deployment has the same name; rename one, `model` could mean either" for name in both
        ]

    def _endpoint_problems(self) -> list[str]:
        problems: list[str] = []
        for name, endpoint in self.endpoints.items():
            path = f"endpoints.{name}"
            for listed in (*endpoint.traffic, *(endpoint.fallback or ())):
                where = f"{path}.traffic" if listed in endpoint.traffic else f"{path}.fallback"
                problems += self._cannot_serve(where, listed, endpoint.tasks)
            if endpoint.mirror is not None:
                problems += self._cannot_serve(f"{path}.mirror.deployment", endpoint.mirror.deployment, endpoint.tasks)
            problems += self._cannot_isolate(path, endpoint)
            if endpoint.sticky is None and endpoint.pin_s not in (0, Endpoint.model_fields["pin_s"].default):
                problems.append(f"{path}.pin_s: has no effect without `sticky`; add `sticky: {{by: conversation}}`")
            problems += _outside(f"{path}.plan.overrides", endpoint.plan.overrides, endpoint.traffic)
            if (expires := endpoint.plan.expires) is not None:
                for listed in expires.weights:
                    problems += self._cannot_serve(f"{path}.plan.expires.weights", listed, endpoint.tasks)
                problems += _outside(f"{path}.plan.expires.overrides", expires.overrides, expires.weights)
        return problems

    def _cannot_isolate(self, path: str, endpoint: Endpoint) -> list[str]:
        """The deployments whose cache stays shared although the endpoint says otherwise."""
        if endpoint.isolate_cache in (None, "none"):
            return []
        mirror = (endpoint.mirror.deployment,) if endpoint.mirror is not None else ()
        return [
            f"{path}.isolate_cache: deployment '{name}' is a server elsewhere; set `cache_salt: true` there if it is a "
            "vLLM, or leave out `isolate_cache`"
            for name in dict.fromkeys((*endpoint.traffic, *(endpoint.fallback or ()), *mirror))
            if (section := self.deployments.get(name)) is not None
            and section.url is not None
            and not section.cache_salt
        ]

    def _cannot_serve(self, where: str, name: str, tasks: Sequence[Task]) -> list[str]:
        deployment = self.deployments.get(name)
        if deployment is None:
            remedy = nearest(name, self.deployments) or f"; declare it under deployments ({_known(self.deployments)})"
            return [f"{where}: unknown deployment '{name}'{remedy}"]
        missing = [task for task in tasks if task not in deployment.tasks]
        if missing:
            return [
                f"{where}: deployment '{name}' does {', '.join(deployment.tasks)}, the endpoint promises "
                f"{', '.join(tasks)}; remove it or give it its own endpoint"
            ]
        return []

    def _default_problems(self) -> list[str]:
        problems: list[str] = []
        for task, name in self.defaults.items():
            endpoint = self.endpoints.get(name)
            if endpoint is None:
                meant = nearest(name, self.endpoints) or f"; {_known(self.endpoints)}"
                problems.append(f"defaults.{task}: unknown endpoint '{name}'{meant}")
            elif task not in endpoint.tasks:
                problems.append(f"defaults.{task}: endpoint '{name}' does {', '.join(endpoint.tasks)} only")
        return problems

    def _access_problems(self) -> list[str]:
        known = {*self.endpoints, *self.deployments}
        unknown = [("limits.endpoints", name) for name in self.access.limits.endpoints if name not in known]
        unknown += [("operators", name) for name in self.access.operators if name not in self.endpoints]
        return [
            f"access.{section}.{name}: unknown endpoint{nearest(name, self.endpoints) or f'; {_known(self.endpoints)}'}"
            for section, name in unknown
        ]


def _known(names: Iterable[str]) -> str:
    return f"known: {', '.join(names)}"


def _outside(path: str, overrides: Sequence[Override], traffic: Mapping[str, int]) -> list[str]:
    known = ", ".join(traffic)
    return [
        f"{path}[{number}].deployment: '{override.deployment}' is not in the traffic; choose one of {known}"
        for number, override in enumerate(overrides)
        if override.deployment not in traffic
    ]


def parse(data: object) -> Config:
    """A Config from plain data (a `user_config`). Raises ConfigError with every problem found."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(list(problems_of(error, Config))) from None
