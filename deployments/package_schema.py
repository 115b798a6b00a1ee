"""JSON Schema of what Ray Serve and vLLM take in `serve_config.yaml`, from the installed packages.

`app/config/packages.json` holds it, so that `switchyard check` imports neither: `make schema` writes the file, and a
test compares it with the installed versions. Unknown keys are problems here even where the packages ignore them.

    python -m deployments.package_schema app/config/packages.json
"""

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from app.config.file_check import WITHOUT_EFFECT
from deployments import embedding, experiments, llm, router
from deployments.engine.application import DEPLOYMENT as ENGINE

APPLICATIONS: Mapping[ModuleType, str] = {
    router: "Router",
    llm: ENGINE,
    embedding: ENGINE,
    experiments: "Experiments",
}
"""The modules whose `build` is an application of this project, and the name of its deployment."""

_BUNDLE = {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}}
_STRATEGIES = ["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
_PLACEMENT = {
    "type": "object",
    "properties": {
        "bundles": {"type": "array", "items": _BUNDLE},
        "bundle_per_worker": _BUNDLE,
        "strategy": {"enum": _STRATEGIES},
    },
    "additionalProperties": False,
}
"""Ray checks it when it places an engine, not in its schema: `LLMConfig.placement_group_config`."""

_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}

_DROPPED = ("title", "default")
"""Keywords that say nothing to who writes the file."""

_ELSEWHERE = {"lora_modules", "mm_processor_device", *WITHOUT_EFFECT}
"""Arguments of which only the name is checked: `app.config.adapters` knows modules, devices depend on the build, and no
value of others has an effect."""


def package_schema() -> dict[str, Any]:
    """The schema's definitions (`ServeDeploySchema`, `LLMConfig`, `EngineArguments`), `APPLICATIONS`, and the names of
    vLLM's environment variables.
    """
    from ray.llm._internal.serve.core.configs.llm_config import AcceleratorType, LLMConfig
    from ray.runtime_env import RuntimeEnv
    from ray.serve.config import AutoscalingConfig
    from ray.serve.schema import ServeDeploySchema
    from vllm.envs import environment_variables

    definitions: dict[str, Any] = {}
    for model in (ServeDeploySchema, LLMConfig, AutoscalingConfig):
        schema = model.model_json_schema(ref_template="#/$defs/{model}")
        definitions |= schema.pop("$defs", {})
        definitions[model.__name__] = schema
    definitions = {name: _strict(schema) for name, schema in definitions.items()}
    environment = {"env_vars": {"type": "object", "additionalProperties": {"type": "string"}}}
    for schema in definitions.values():
        if (runtime_env := schema.get("properties", {}).get("runtime_env")) is not None:
            known = {**{key: {} for key in sorted(RuntimeEnv.known_fields)}, **environment}
            schema["properties"]["runtime_env"] = {
                **_object(runtime_env),
                "properties": known,
                "additionalProperties": False,
            }
    deployment = definitions["DeploymentSchema"]["properties"]
    deployment["num_replicas"] = _or_null({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "auto"}]})
    llm_config = definitions["LLMConfig"]["properties"]
    llm_config["accelerator_type"] = _or_null({"enum": ["A10", *(str(kind.value) for kind in AcceleratorType)]})
    llm_config["placement_group_config"] = _or_null(_PLACEMENT)
    levels = logging.getLevelNamesMapping()
    logs = definitions["LoggingConfig"]["properties"]
    logs |= {"log_level": {"enum": [*levels, *sorted({*levels.values()})]}, "encoding": {"enum": ["TEXT", "JSON"]}}
    definitions["HTTPOptionsSchema"]["properties"]["port"] |= {"minimum": 1, "maximum": 65535}
    llm_config["engine_kwargs"] = {"$ref": "#/$defs/EngineArguments"}
    llm_config["deployment_config"] = {**definitions["DeploymentSchema"], "required": []}
    definitions["EngineArguments"] = {
        "type": "object",
        "properties": dict(_engine_arguments()),
        "additionalProperties": False,
        "allOf": list(_parsers()),
    }
    return {"applications": dict(_applications()), "$defs": definitions, "variables": sorted(environment_variables)}


def _applications() -> Iterator[tuple[str, dict[str, Any]]]:
    for module, name in APPLICATIONS.items():
        args = get_type_hints(module.build)["args"].model_json_schema(ref_template="#/$defs/{model}")
        yield f"{module.__name__}:build", {"deployment": name, "args": _strict(args)}


def _strict(schema: Any) -> Any:
    """The schema without unknown keys, and without what only describes defaults."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    branches = schema.get("anyOf", ())
    if any("$ref" in branch for branch in branches):  # "or any mapping" would hide the mistakes of the better one
        schema = {**schema, "anyOf": [branch for branch in branches if branch.get("type") != "object"]}
    strict = {key: _strict(value) for key, value in schema.items() if key not in (*_DROPPED, "properties")}
    if (properties := schema.get("properties")) is not None:
        strict["properties"] = {name: _strict(value) for name, value in properties.items()}
        strict["additionalProperties"] = False
    return strict


def _object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The branch of a schema that is an object."""
    return next((dict(branch) for branch in schema.get("anyOf", ()) if branch.get("type") == "object"), dict(schema))


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _engine_arguments() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every valid engine argument, and what is known of its value."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs, make_arg_parser
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    bounds, nested = dict(_bounds()), dict(_nested())
    nested["quantization"] = {"enum": [*QUANTIZATION_METHODS, None]}
    actions = {action.dest: action for action in make_arg_parser(FlexibleArgumentParser())._actions}
    annotations = {field.name: field.type for field in dataclasses.fields(AsyncEngineArgs)}
    for name in sorted(
        {field.name for declared in (AsyncEngineArgs, FrontendArgs) for field in dataclasses.fields(declared)}
    ):
        if name.startswith("_"):
            continue
        action = actions.get(name)
        known = action is not None and name not in _ELSEWHERE
        value = _value(action, annotations.get(name)) if known and action is not None else {}
        yield name, nested.get(name) or {**value, **bounds.get(name, {})}


def _nested() -> Iterator[tuple[str, dict[str, Any]]]:
    """Arguments that are mappings, whose keys vLLM's configuration classes declare."""
    from vllm.config import (
        AttentionConfig,
        CompilationConfig,
        KVEventsConfig,
        KVTransferConfig,
        SpeculativeConfig,
        StructuredOutputsConfig,
    )

    sections = {
        "attention_config": AttentionConfig,
        "compilation_config": CompilationConfig,
        "kv_events_config": KVEventsConfig,
        "kv_transfer_config": KVTransferConfig,
        "speculative_config": SpeculativeConfig,
        "structured_outputs_config": StructuredOutputsConfig,
    }
    for name, section in sections.items():
        hints = get_type_hints(section)
        keys = sorted(field.name for field in dataclasses.fields(section) if field.init)
        kinds = ["object", "null", *(["integer"] if name == "compilation_config" else [])]
        yield (
            name,
            {"type": kinds, "properties": {key: _choice(hints[key]) for key in keys}, "additionalProperties": False},
        )


def _choice(annotation: Any) -> dict[str, Any]:
    """The values of a setting that takes some texts only; {} for others."""
    is_union = get_origin(annotation) in (Union, UnionType)
    branches = [branch for branch in get_args(annotation) if branch is not NoneType] if is_union else [annotation]
    if not all(get_origin(branch) is Literal for branch in branches):
        return {}
    return {"enum": [value for branch in branches for value in get_args(branch)] + [None]}


def _bounds() -> Iterator[tuple[str, dict[str, float]]]:
    """The least and largest values, which vLLM's configuration classes declare by the arguments' names."""
    from vllm.config import CacheConfig, LoRAConfig, ModelConfig, MultiModalConfig, ParallelConfig, SchedulerConfig

    for section in (CacheConfig, LoRAConfig, ModelConfig, MultiModalConfig, ParallelConfig, SchedulerConfig):
        for field in dataclasses.fields(section):
            options = {
                keyword: getattr(rule, attribute)
                for rule in getattr(field.default, "metadata", ())
                for attribute, keyword in _BOUNDS.items()
                if hasattr(rule, attribute)
            }
            if options:
                yield field.name, options


def _parsers() -> Iterator[dict[str, Any]]:
    """The names of vLLM's parsers, which hold without a plugin that adds others."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    tools, reasoning = ToolParserManager.list_registered(), ReasoningParserManager.list_registered()
    plugins = {
        "tool_call_parser": ("tool_parser_plugin", tools),
        "reasoning_parser": ("reasoning_parser_plugin", reasoning),
    }
    for name, (plugin, known) in plugins.items():
        yield {"if": {"not": {"required": [plugin]}}, "then": {"properties": {name: {"enum": [*known, "", None]}}}}


def _is_list(annotation: object) -> bool:
    """Whether it is a list, with or without null, and nothing else."""
    branches = [branch for branch in get_args(annotation) if branch is not NoneType]
    return get_origin(annotation) is list or (bool(branches) and all(get_origin(branch) is list for branch in branches))


def _value(action: argparse.Action, annotation: object) -> dict[str, Any]:
    """Values that the argument takes, null among them; {} if its parser does not say."""
    if action.nargs == 0:
        return {"type": ["boolean", "null"]}
    if action.nargs is not None:
        return {"type": ["array", "null"]} if _is_list(annotation) else {}
    if action.choices is not None and action.type in (None, str, int):
        choices = [choice for choice in action.choices if choice != "None"]
        return {"enum": [*choices, None]}
    kinds = {"int": ["integer"], "float": ["number"]}
    name = getattr(action.type, "__name__", "")
    if (kind := kinds.get("int" if name.startswith("human_readable_int") else name)) is not None:  # `32k`: vllm serve's
        return {"type": [*kind, "null"]}
    return {"type": ["string", "null"]} if annotation in (str, "str | None") else {}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(package_schema(), indent=1) + "\n")
