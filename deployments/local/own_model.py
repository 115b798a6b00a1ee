"""The configuration of a model that the command line names, with comments: `switchyard serve MODEL`, `switchyard init`.

Pure: what the model is (`weights.sources`) and what the machine has (`accelerator`) is given.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from app.internal_api import PACKAGE_PREFIX
from deployments.local.accelerator import KV_AND_WEIGHTS
from deployments.weights.sources import HUB_ID, is_hub_id

VARIANT_SHARE = 10
"""The percentage of the traffic that each variant gets besides the first."""

MOST_VARIANTS = 9

TAKEN = ("router", "experiments")
"""Names of applications that every configuration has."""

GENERATES = ("chat", "completions", "responses")

_COLUMN = 62
"""Where comments begin, unless the line is longer."""

Line = tuple[str, str]
"""A line of YAML, and its comment."""


@dataclass(frozen=True)
class Variant:
    """One deployment of the endpoint. `source`: as `model_source`. `arguments`: vLLM's engine arguments."""

    name: str
    source: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """The number of processors that one replica takes."""
        sizes = (self.arguments.get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline"))
        return math.prod(size if isinstance(size, int) and size > 0 else 1 for size in sizes)


@dataclass(frozen=True)
class Placement:
    """The processors of all engines. `kind`: cpu or gpu. `gpu_type`: Ray's name for it, or "" for any. `gpus`: how many
    the machine has."""

    kind: str = "cpu"
    gpu_type: str = ""
    gpus: int = 1

    def share(self, variants: Sequence[Variant]) -> float:
        """The part of a GPU for each variant: 1 if there are enough, or if one of them needs several."""
        if self.kind == "cpu" or any(variant.devices > 1 for variant in variants):
            return 1.0
        together = math.ceil(len(variants) / max(1, self.gpus))
        return 1.0 if together == 1 else int(1000 / together) / 1000


@dataclass(frozen=True)
class OwnModel:
    """An endpoint and its variants. `model_id`: the name under which vLLM, and a client who does not know the
    endpoint's name, know the model. `tasks`: of the endpoint."""

    endpoint: str
    model_id: str
    variants: Sequence[Variant]
    placement: Placement
    tasks: Sequence[str] = GENERATES

    @property
    def traffic(self) -> dict[str, int]:
        """The percentages: `VARIANT_SHARE` for each variant, and the rest for the first."""
        first, *others = (variant.name for variant in self.variants)
        return {first: 100 - VARIANT_SHARE * len(others), **dict.fromkeys(others, VARIANT_SHARE)}

    def as_yaml(self, heading: Sequence[str] = ()) -> str:
        """The file's text. `heading`: the lines of its first comment."""
        body = ["applications:", *_text(self._router()), *_text(_EXPERIMENTS)]
        for variant in self.variants:
            body += _text(self._engine(variant))
        return "\n".join([*(f"# {line}" for line in heading), *([""] if heading else []), *body])

    def _router(self) -> Iterator[Line]:
        yield "  - name: router", ""
        yield "    route_prefix: /", ""
        yield "    import_path: deployments.router:build", ""
        yield "    args: {}", ""
        yield "    deployments:", ""
        yield "      - name: Router", ""
        yield "        num_replicas: 1", ""
        yield "        ray_actor_options: {num_cpus: 0.5}", ""
        yield "        user_config:", ""
        yield "          endpoints:", "the names that clients put into `model`"
        yield f"            {_value(self.endpoint)}:", ""
        yield f"              tasks: {_value(list(self.tasks))}", ""
        yield f"              traffic: {_value(self.traffic)}", "percentages, sum 100"
        yield (
            f"          defaults: {_value(dict.fromkeys(self.tasks, self.endpoint))}",
            "for clients that name no model",
        )
        yield "          # access: {keys_file: keys.yaml}", "who may call, how much: docs/operate/access.md"
        first, *others = (variant.name for variant in self.variants)
        if others and "chat" in self.tasks:
            yield "          experiments:", "which variant is better: docs/split/tutorial.md"
        for name in others if "chat" in self.tasks else ():
            yield f"            {_value(name)}:", ""
            yield "              state: draft", "`running` starts it"
            yield f"              endpoint: {_value(self.endpoint)}", ""
            yield f"              control: {_value(first)}", ""
            yield f"              treatments: {_value([name])}", ""
            yield "              primary: [{metric: ttft, minimal_effect: 0.05}]", ""
        yield "          deployments:", ""
        tasks = {} if tuple(self.tasks) == GENERATES else {"tasks": list(self.tasks)}
        for variant in self.variants:
            section = {"app": variant.name, "model": self.model_id, **tasks}
            yield f"            {_value(variant.name)}: {_value(section)}", ""

    def _engine(self, variant: Variant) -> Iterator[Line]:
        share, generates = self.placement.share(self.variants), set(self.tasks) <= set(GENERATES)
        yield f"  - name: {_value(variant.name)}", ""
        yield f"    route_prefix: /deployments/{variant.name}", "always /deployments/<name>: the router finds it there"
        yield f"    import_path: deployments.{'llm' if generates else 'embedding'}:build", ""
        yield "    args:", ""
        yield "      llm_config:", ""
        yield "        model_loading_config:", ""
        yield f"          model_id: {_value(self.model_id)}", "the name that vLLM answers to"
        yield f"          model_source: {_value(variant.source)}", "a hub's id, a folder, or `package:` and a name"
        yield f"        accelerator_config: {{kind: {self.placement.kind}}}", ""
        if self.placement.gpu_type:
            yield f"        accelerator_type: {self.placement.gpu_type}", "only on this type of GPU"
        if share < 1:
            shared = f"        placement_group_config: {{bundle_per_worker: {{GPU: {share:g}}}}}"
            yield shared, "the variants share a GPU"
        defaults = self._defaults(share, generates=generates)
        arguments = {name: value for name, (value, _) in defaults.items()} | dict(variant.arguments)
        yield "        engine_kwargs:", "vLLM's engine arguments"
        for name, value in arguments.items():
            comment = defaults[name][1] if name in defaults and name not in variant.arguments else ""
            yield f"          {name}: {_value(value)}", comment
        if self.placement.kind == "cpu":
            yield "        runtime_env:", ""
            yield "          env_vars:", ""
            yield f'            VLLM_CPU_KVCACHE_SPACE: "{2 if generates else 1}"', "GiB of the machine's memory"
        yield "        deployment_config:", ""
        yield "          ray_actor_options: {num_cpus: 0.5}", "for Ray's bookkeeping, not a limit"
        at_once = arguments["max_num_seqs"] if isinstance(arguments["max_num_seqs"], int) else 16
        yield "    deployments:", ""
        yield "      - name: Engine", ""
        yield "        num_replicas: 1", "or autoscaling_config: docs/operate/models.md#autoscaling"
        yield f"        max_ongoing_requests: {2 * at_once}", "running and waiting in vLLM"
        yield f"        max_queued_requests: {4 * at_once}", "waiting before vLLM; more are refused with 503"

    def _defaults(self, share: float, *, generates: bool) -> dict[str, tuple[object, str]]:
        """Engine arguments that the command line need not name, with the reason for each."""
        defaults: dict[str, tuple[object, str]] = {}
        on_cpu = self.placement.kind == "cpu"
        if on_cpu:
            defaults["dtype"] = "float32", "the fastest on most CPUs; bfloat16 halves the memory"
            defaults["enforce_eager"] = True, "compiles nothing, and needs no compiler"
        if share < 1:
            memory = round(KV_AND_WEIGHTS * share, 3)
            defaults["gpu_memory_utilization"] = memory, f"of the whole GPU, {share:g} of which is this engine's"
        if generates:
            defaults["max_model_len"] = -1, "prompt and answer in tokens; -1: what the model and the memory allow"
        defaults["max_num_seqs"] = 16 if on_cpu else 256, "answers in one batch"
        return defaults


_EXPERIMENTS: Sequence[Line] = (
    ("  - name: experiments", "keeps and judges what routers record"),
    ("    route_prefix: /deployments/experiments", ""),
    ("    import_path: deployments.experiments:build", ""),
    ("    args: {}", ""),
    ("    deployments:", ""),
    ("      - name: Experiments", ""),
    ("        num_replicas: 1", "must stay 1: the experiment service is a singleton"),
    ("        ray_actor_options: {num_cpus: 0.2}", ""),
)


def name_of(source: str) -> str:
    """What a model is called, from its source: a hub's id as it is, else the last part of a folder, URL or package."""
    if source.startswith(PACKAGE_PREFIX):
        return source.removeprefix(PACKAGE_PREFIX)
    if is_hub_id(source) and HUB_ID.fullmatch(source) is not None:
        return source
    return source.rstrip("/").rpartition("/")[2] or "model"


def tasks_of(config: Mapping[str, Any], runner: object = None, *, embeds: bool = False) -> tuple[str, ...]:
    """The tasks of a model with this `config.json`, or an empty one. `runner`: vLLM's argument. `embeds`: whether it is
    one of Sentence Transformers."""
    architecture = str((config.get("architectures") or [""])[0])
    generates = not embeds and (not architecture or architecture.endswith(_GENERATING))
    if runner == "generate" or (runner != "pooling" and generates):
        return GENERATES
    if not architecture.endswith("ForSequenceClassification"):
        return ("embeddings", "rerank")
    labels = config.get("num_labels") or len(config.get("id2label") or {}) or 2
    return ("rerank",) if labels == 1 else ("classify",)


_GENERATING = ("ForCausalLM", "CausalLM", "ForConditionalGeneration", "LMHeadModel", "ChatModel")
"""How the names of architectures end that write text."""


def endpoint_name(model_id: str) -> str:
    """A name for an endpoint, from a model's: `Qwen3-8B` for `Qwen/Qwen3-8B`."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model_id.rpartition("/")[2])[:60].strip("._-")
    return name or "model"


def deployment_name(model_id: str, taken: Sequence[str] = ()) -> str:
    """A name for the first variant, which no other thing has: `qwen3-8b`."""
    name = endpoint_name(model_id).lower()
    return name if name not in (*taken, *TAKEN) else f"{name[:55]}-base"


def _text(lines: Iterator[Line] | Sequence[Line]) -> list[str]:
    """The lines with their comments in one column, and an empty line."""
    return [*(f"{text:<{_COLUMN}}  # {comment}" if comment else text for text, comment in lines), ""]


def _value(value: object) -> str:
    """A value in YAML's flow style, in one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf, sort_keys=False).removesuffix("...\n").strip()
