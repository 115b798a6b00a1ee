"""LoRA adapters: models that share the engine, and the weights, of another one.

An engine's application lists them as vLLM does: `engine_kwargs.lora_modules: [{name: french, path: /models/french}]`
below its `llm_config`; `path` is a directory or a model hub's id. The router's deployments name the application as
`app`, an adapter as `model`, and as `parent` the deployment of the model that is adapted.

Problems are lines, ``path: what; the fix``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from app.config.base import DeploymentFields
from app.config.meant import nearest

_KNOWN = frozenset({"name", "path", "base_model_name", "is_3d_lora_weight"})
"""vLLM's fields of a module."""


class Adapter(NamedTuple):
    """`path`: a directory, or a model hub's id."""

    name: str
    path: str


def adapters_of(llm_config: Mapping[str, Any]) -> list[Adapter]:
    """The adapters that are declared correctly, in their order."""
    modules = _modules(llm_config)
    return [
        Adapter(module["name"], module["path"])
        for module in (modules if isinstance(modules, list) else [])
        if isinstance(module, Mapping) and all(_is_text(module.get(key)) for key in ("name", "path"))
    ]


def is_on_cpu(llm_config: Mapping[str, Any]) -> bool:
    """Whether the engine runs on CPUs only."""
    return bool(_part(llm_config, "accelerator_config").get("kind") == "cpu")


def engine_problems(llm_config: Mapping[str, Any]) -> Iterator[str]:
    """Every reason why an engine cannot serve its adapters. The paths begin at `llm_config`."""
    kwargs, path = _part(llm_config, "engine_kwargs"), "llm_config.engine_kwargs"
    if llm_config.get("lora_config") is not None:
        yield f"llm_config.lora_config: only Ray's own ingress loads adapters by it; list them in {path}.lora_modules"
    modules = _modules(llm_config)
    if not isinstance(modules, list):
        yield f"{path}.lora_modules: expected a list of {{name, path}}"
        return
    yield from _module_problems(f"{path}.lora_modules", llm_config, modules)
    adapted = bool(modules) or bool(kwargs.get("enable_lora"))
    if modules and kwargs.get("enable_lora") is False:
        yield f"{path}.enable_lora: false, and there are lora_modules; leave it out"
    if adapted and kwargs.get("enable_prompt_embeds"):
        yield f"{path}.enable_prompt_embeds: vLLM crashes on such a prompt if it has adapters; leave it out"
    slots = kwargs.get("max_loras")
    if modules and is_on_cpu(llm_config) and isinstance(slots, int) and slots <= len(modules):
        yield (
            f"{path}.max_loras: {slots} for {len(modules)} adapters; on a CPU, vLLM gives requests without an adapter "
            f"the one in the last slot: leave it out, or set {len(modules) + 1}"
        )


def model_problems(
    deployments: Mapping[str, DeploymentFields], llm_configs: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Deployments whose model their application does not serve. `llm_configs`: by application."""
    for name, deployment in deployments.items():
        config = llm_configs.get(deployment.app or "", {})
        base = _part(config, "model_loading_config").get("model_id")
        if not isinstance(base, str):
            continue
        adapters = [adapter.name for adapter in adapters_of(config)]
        if deployment.model not in (base, *adapters):
            models = [base, *adapters]
            fix = nearest(deployment.model, models) or "; correct it, or add an adapter to engine_kwargs.lora_modules"
            yield (
                f"deployments.{name}.model: the application '{deployment.app}' does not serve '{deployment.model}', "
                f"only {', '.join(models)}{fix}"
            )
        elif deployment.parent is not None and deployment.model == base:
            yield f"deployments.{name}.parent: '{base}' is the application's own model, no adapter; remove it"


def parent_problems(deployments: Mapping[str, DeploymentFields]) -> Iterator[str]:
    """Problems with the parents of adapters."""
    for name, deployment in deployments.items():
        if deployment.parent is None:
            continue
        path, parent = f"deployments.{name}.parent", deployments.get(deployment.parent)
        if parent is None:
            remedy = nearest(deployment.parent, deployments) or "; declare it under deployments"
            yield f"{path}: unknown deployment '{deployment.parent}'{remedy}"
        elif (parent.app, parent.url) != (deployment.app, deployment.url):
            yield f"{path}: '{deployment.parent}' belongs to another engine; an adapter has its parent's `app` or `url`"
        elif parent.parent is not None or parent.model == deployment.model:
            yield f"{path}: '{deployment.parent}' is not a model that '{name}' adapts; name the base model's deployment"


def _module_problems(path: str, llm_config: Mapping[str, Any], modules: Sequence[Any]) -> Iterator[str]:
    seen = {_part(llm_config, "model_loading_config").get("model_id")}
    for number, module in enumerate(modules):
        here = f"{path}[{number}]"
        if not isinstance(module, Mapping) or not all(_is_text(module.get(key)) for key in ("name", "path")):
            yield f"{here}: expected `name` and `path` (a directory, or a model hub's id)"
            continue
        if unknown := sorted(map(str, module.keys() - _KNOWN)):
            yield f"{here}.{unknown[0]}: unknown key; remove it or correct its spelling (known: name, path)"
        if module["name"] in seen:
            yield f"{here}.name: '{module['name']}' is another model of this engine; rename one"
        seen.add(module["name"])


def _modules(llm_config: Mapping[str, Any]) -> Any:
    return _part(llm_config, "engine_kwargs").get("lora_modules") or []


def _part(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = mapping.get(key)
    return part if isinstance(part, Mapping) else {}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
