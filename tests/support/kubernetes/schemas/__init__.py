"""The schemas that rendered manifests are checked against: Kubernetes' own, and reduced ones of CRDs beside this file.

`tests.support.kubernetes.reduce` makes these from the CRDs of KubeRay 1.7, the Gateway API's standard channel and
the Prometheus operator 0.93.
"""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

KUBERNETES = "1.34"
"""An older version than today's: every version in use has its fields."""


def problems(manifest: dict[str, Any]) -> Iterator[str]:
    """The problems of an object, including unknown fields."""
    custom = Path(__file__).with_name(f"{manifest['kind']}.json")
    if custom.exists():
        errors = list(_validator(custom).iter_errors(manifest))
    else:
        errors = []
        try:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            errors = [error]
    for problem in errors:
        yield f"{'.'.join(map(str, problem.path))}: {problem.message[:200]}"


@functools.cache
def _validator(file: Path) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(file.read_text()))
