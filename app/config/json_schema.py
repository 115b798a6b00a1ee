"""The JSON Schema of `serve_config.yaml`: what Ray Serve and vLLM take, and the router's configuration."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from app.config.schema import Config

_APPLICATION, _DEPLOYMENT, _FILE = "ServeApplicationSchema", "DeploymentSchema", "ServeDeploySchema"
"""Ray Serve's names of the file's parts."""


@cache
def packages() -> Mapping[str, Any]:
    """The packages' part: `applications`, an `import_path` to its deployment's name and its arguments, and `$defs`.

    `deployments.package_schema` writes it.
    """
    found: Mapping[str, Any] = json.loads(Path(__file__).with_name("packages.json").read_text())
    return found


def schema(user_config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """JSON Schema of `serve_config.yaml`. `user_config`: the schema of the router's part instead of the real one."""
    router = Config.model_json_schema(ref_template="#/$defs/{model}")
    definitions = {**packages()["$defs"], **router.pop("$defs"), "Config": router}
    if user_config is not None:
        definitions["Config"] = user_config
    applications = packages()["applications"]
    conditions = [_condition(path, it["deployment"], it["args"]) for path, it in applications.items()]
    definitions[_APPLICATION] = {
        **definitions[_APPLICATION],
        "required": ["name", "import_path"],
        "allOf": conditions,
    }
    file = definitions.pop(_FILE)
    return {
        **file,
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Switchyard serve_config.yaml",
        "$defs": definitions,
    }


def _condition(import_path: str, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for the application of an `import_path`: its deployment's name, and its arguments."""
    deployment: dict[str, Any] = {"name": {"const": name}}
    if name == "Router":
        deployment["user_config"] = {"$ref": "#/$defs/Config"}
    if "llm_config" in args["properties"]:
        args = {**args, "properties": {"llm_config": {"$ref": "#/$defs/LLMConfig"}}}
    properties = {"deployments": {"items": {"properties": deployment}}, "args": args}
    known = {"properties": {"import_path": {"const": import_path}}, "required": ["import_path"]}
    return {"if": known, "then": {"properties": properties}}
