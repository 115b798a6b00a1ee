"""A CustomResourceDefinition's schema, reduced to what a check needs: names, types, enums, what is required.

    python -m tests.support.kubernetes.reduce CRD.yaml [VERSION] > tests/support/kubernetes/schemas/KIND.json

Objects are closed: the API server drops unknown fields silently, so a check must be stricter. Equal parts are stored
once, below `$defs`: a RayService has the whole PodSpec three times.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

_KEPT = ("type", "enum", "required", "format")
_SMALLEST = 120
"""The length in characters from which a repeated part is moved to `$defs`."""


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """An OpenAPI schema as a JSON Schema without prose that allows only the fields that it names."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    kept = {key: schema[key] for key in _KEPT if key in schema and schema[key] not in ("int32", "int64", "date-time")}
    if "properties" in schema:
        kept["properties"] = {name: closed(below) for name, below in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            kept["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = closed(schema["additionalProperties"])
    if "items" in schema:
        kept["items"] = closed(schema["items"])
    return kept


def shared(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema with its repeated parts below `$defs`."""
    counts: Counter[str] = Counter()

    def count(part: Any) -> None:
        if isinstance(part, dict):
            counts[_text(part)] += 1
            for below in part.values():
                count(below)

    count(schema)
    names: dict[str, str] = {}
    definitions: dict[str, Any] = {}

    def replaced(part: Any, *, top: bool = False) -> Any:
        if not isinstance(part, dict):
            return part
        text = _text(part)
        if top or counts[text] < 2 or len(text) < _SMALLEST or not isinstance(part.get("type"), str):
            return {key: replaced(below) for key, below in part.items()}
        if text not in names:
            names[text] = f"d{len(names)}"
            definitions[names[text]] = {key: replaced(below) for key, below in part.items()}
        return {"$ref": f"#/$defs/{names[text]}"}

    return {**replaced(schema, top=True), "$defs": definitions}


def reduced(crd: dict[str, Any], version: str = "v1") -> dict[str, Any]:
    """The schema of one version of a CRD."""
    version_schema = next(served for served in crd["spec"]["versions"] if served["name"] == version)
    schema = closed(version_schema["schema"]["openAPIV3Schema"])
    schema["properties"] = {**schema["properties"], "metadata": {"type": "object"}}
    schema["properties"].pop("status", None)
    return shared(schema)


def _text(part: object) -> str:
    return json.dumps(part, sort_keys=True, separators=(",", ":"))


if __name__ == "__main__":
    made = reduced(yaml.safe_load(Path(sys.argv[1]).read_text()), *sys.argv[2:])
    sys.stdout.write(json.dumps(made, separators=(",", ":")) + "\n")
