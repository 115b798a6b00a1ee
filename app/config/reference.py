"""The JSON Schema of `serve_config.yaml`: what Ray Serve and vLLM take, and the router's configuration.

The configuration reference in docs/reference/configuration.md, generated from the JSON Schema.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from app.config.schema import Config
from app.markdown import with_part

_APPLICATION, _FILE = "ServeApplicationSchema", "ServeDeploySchema"
"""Ray Serve's names of the file's parts."""


@cache
def packages() -> Mapping[str, Any]:
    """The packages' part: `applications`, an `import_path` to its deployment's name and its arguments; `$defs`; and
    `variables`, the names of vLLM's environment variables.

    `deployments.package_schema` writes it.
    """
    content: Mapping[str, Any] = json.loads(Path(__file__).with_name("packages.json").read_text())
    return content


def schema(user_config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """JSON Schema of `serve_config.yaml`. `user_config`: the schema of the router's part instead of the real one."""
    router = Config.model_json_schema(ref_template="#/$defs/{model}")
    definitions = {**packages()["$defs"], **router.pop("$defs"), "Config": router}
    if user_config is not None:
        definitions["Config"] = user_config
    applications = packages()["applications"]
    conditions = [
        _condition(path, application["deployment"], application["args"]) for path, application in applications.items()
    ]
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
        args = {**args, "properties": {**args["properties"], "llm_config": {"$ref": "#/$defs/LLMConfig"}}}
    properties = {"deployments": {"items": {"properties": deployment}}, "args": args}
    known = {"properties": {"import_path": {"const": import_path}}, "required": ["import_path"]}
    return {"if": known, "then": {"properties": properties}}


# python -m app.config.reference docs/reference/configuration.md

BEGIN, END = "<!-- keys: begin (made by `make schema`) -->", "<!-- keys: end -->"
_BOUNDS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
_SCALARS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}

Schema = Mapping[str, Any]


def reference(serve_schema: Schema) -> str:
    """Markdown: one section with a table per object of the router's `user_config`, outer objects first.

    `serve_schema` is the JSON Schema of `serve_config.yaml`, with every object of the configuration in `$defs`.
    """
    definitions: Mapping[str, Schema] = serve_schema["$defs"]
    paths: dict[str, list[str]] = {}
    for path, name in _objects("", "Config", definitions):
        paths.setdefault(name, []).append(f"`{path}`" if path else "Top level")
    return "\n\n".join(_section(where, definitions[name], definitions) for name, where in paths.items())


def _objects(path: str, name: str, definitions: Mapping[str, Schema]) -> Iterator[tuple[str, str]]:
    """Yields every object of the configuration: its path, and the name of its definition."""
    yield path, name
    for key, value in definitions[name]["properties"].items():
        if (held := _object(value)) is not None:
            suffix, below = held
            yield from _objects(f"{path}.{key}{suffix}".removeprefix("."), below, definitions)


def _section(paths: Sequence[str], definition: Schema, definitions: Mapping[str, Schema]) -> str:
    head = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    required = definition.get("required", ())
    rows = [_row(name, key, name in required, definitions) for name, key in definition["properties"].items()]
    return f"### {', '.join(paths)}\n\n{_text(definition)}\n\n" + "\n".join([*head, *rows])


def _row(name: str, key: Schema, required: bool, definitions: Mapping[str, Schema]) -> str:
    held = _object(key)
    meaning = _text(key) or (_text(definitions[held[1]]) if held is not None else "")
    cells = [f"`{name}`", _value(key), "required" if required else _default(key), meaning]
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def _object(key: Schema) -> tuple[str, str] | None:
    """The name of the object that a key holds, after the path's suffix: `.<name>` in a map of them, `[]` in a list."""
    if (referred := _referred(key)) is not None:
        return "", referred
    if (referred := _referred(key.get("items", {}))) is not None:
        return "[]", referred
    values = key.get("additionalProperties") or next(iter(key.get("patternProperties", {}).values()), None)
    if isinstance(values, Mapping) and (referred := _referred(values)) is not None:
        return ".<name>", referred
    return None


def _referred(key: Schema) -> str | None:
    references = [option["$ref"] for option in (key, *key.get("anyOf", ())) if "$ref" in option]
    return str(references[0]).rpartition("/")[2] if references else None


def _value(key: Schema) -> str:
    """The accepted values, in a few words."""
    if (reached := _object(key)) is not None:
        return {"": "object", "[]": "list of objects"}.get(reached[0], "map of objects")
    options = [option for option in key.get("anyOf", [key]) if option.get("type") != "null"]
    return " or ".join(_type(option) for option in options)


def _type(key: Schema) -> str:
    if "enum" in key:
        return ", ".join(f"`{choice}`" for choice in key["enum"])
    if key["type"] == "array":
        return f"list of {_type(key['items'])}"
    if key["type"] == "object":
        values = key.get("additionalProperties") or next(iter(key["patternProperties"].values()))
        return f"map to {_type(values)}"
    if key.get("format") in ("path", "regex"):
        return {"path": "path", "regex": "regular expression"}[key["format"]]
    bounds = [f"{sign} {key[bound]}" for bound, sign in _BOUNDS if bound in key]
    return " ".join([_SCALARS[key["type"]], ", ".join(bounds)]).strip()


def _default(key: Schema) -> str:
    """Empty where the default is to leave the key out, or holds objects: their own table has the defaults."""
    default = key.get("default")
    if default is None or default == [] or isinstance(default, Mapping):
        return ""
    if isinstance(default, list) and isinstance(default[0], Mapping):
        return ""
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _text(described: Schema) -> str:
    """The description on one line. Renderers take `<` for HTML, except between backticks."""
    text = " ".join(str(described.get("description", "")).split())
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(text.split("`")))


def updated(page: str) -> str:
    """`page` with the reference between its two marks. Raises ValueError where they are missing."""
    return with_part(page, BEGIN, END, reference(schema()))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m app.config.reference")
    parser.add_argument("file", type=Path, help="the Markdown file that has the marks")
    file: Path = parser.parse_args(argv).file
    file.write_text(updated(file.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
