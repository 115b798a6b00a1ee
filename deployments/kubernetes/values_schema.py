"""The parts of `values.schema.json` that are other schemas: vLLM's arguments and the router's configuration.

So Helm, editors and `switchyard check` refuse the same. `make schema` writes them into the file:

    python -m deployments.kubernetes.values_schema k8s/chart/values.schema.json
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.config.file_check import WITHOUT_EFFECT
from app.config.reference import schema

ENGINE, ROUTER, LIMITS = "EngineArguments", "Config", "Limits"

_GENERATED = (ROUTER, "Endpoint", "Deployment", "AccessSettings")
"""Objects that the chart fills: `router` need not have what they require."""

_REFERENCE = re.compile(r"#/\$defs/(\w+)")


def definitions() -> dict[str, Any]:
    """The schemas by their names, with those that they refer to, as draft 7 has them."""
    known = schema()["$defs"]
    found: dict[str, Any] = {}
    wanted = [ENGINE, ROUTER, LIMITS]
    while wanted:
        name = wanted.pop()
        if name not in found:
            text = json.dumps(_part(name, known[name]))
            wanted += _REFERENCE.findall(text)
            found[name] = json.loads(text.replace("#/$defs/", "#/definitions/"))
    return dict(sorted(found.items()))


def _part(name: str, definition: Mapping[str, Any]) -> dict[str, Any]:
    part = {key: value for key, value in definition.items() if key != "required" or name not in _GENERATED}
    if name == ENGINE:
        part["properties"] = {key: value for key, value in part["properties"].items() if key not in WITHOUT_EFFECT}
    return part


if __name__ == "__main__":
    file = Path(sys.argv[1])
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "definitions": definitions()}, indent=1) + "\n")
