"""Pure functions of a rendered overlay: its objects, and the pods that KubeRay makes from a group."""

import base64
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Object = Mapping[str, Any]

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "m": 1e-3}

HEAD_PARAMETERS: Mapping[str, str] = {"dashboard-host": "0.0.0.0"}
EVERY_NODE: Mapping[str, str] = {"metrics-export-port": "8080", "dashboard-agent-listen-port": "52365", "block": "true"}
"""What KubeRay adds to rayStartParams (setMissingRayStartParams in its pod.go)."""


def of_kind(objects: Sequence[Object], kind: str) -> Iterator[Any]:
    """The objects of this kind."""
    return (manifest for manifest in objects if manifest["kind"] == kind)


def quantity(text: str | int | float) -> float:
    """A Kubernetes quantity: `500m`, `2`, `16Gi`."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    assert match, text
    return float(match[1]) * _UNITS[match[2]]


def ray_container(group: Object) -> Any:
    """A group's first container, which runs Ray."""
    return group["template"]["spec"]["containers"][0]


def memory(container: Object) -> int | None:
    """The container's limit in bytes."""
    limits = container.get("resources", {}).get("limits", {})
    return int(quantity(limits["memory"])) if "memory" in limits else None


def ray_start(group: Object, *, head: str | None, extra: Mapping[str, str]) -> str:
    """The shell command of a group's pods. `head`: the name of the head's service; None for the head itself.

    Values are passed to the shell unquoted, as KubeRay does: the author of rayStartParams quotes them.
    """
    limits = ray_container(group).get("resources", {}).get("limits", {})
    parameters = dict(group.get("rayStartParams") or {})
    if "cpu" in limits:
        parameters.setdefault("num-cpus", str(math.ceil(quantity(limits["cpu"]))))
    if (size := memory(ray_container(group))) is not None:
        parameters.setdefault("memory", str(size))
    gpus = next((amount for name, amount in limits.items() if name.endswith("gpu")), None)
    if gpus is not None:
        parameters.setdefault("num-gpus", str(gpus))
    _override(parameters, group.get("resources") or {})
    if group.get("labels"):
        parameters["labels"] = shlex.quote(",".join(f"{name}={value}" for name, value in group["labels"].items()))
    defaults = {**EVERY_NODE, **(HEAD_PARAMETERS if head is None else {"address": f"{head}:6379"})}
    words = [_word(name, value) for name, value in {**defaults, **parameters, **extra}.items()]
    return " ".join(["ulimit -n 65536; ray start", *(["--head"] if head is None else []), *words])


def environment(container: Object, secrets: Mapping[str, Object], fields: Mapping[str, str]) -> dict[str, str]:
    """The container's environment. `secrets` are data of Secrets and ConfigMaps by name, `fields` those of the pod.

    Raises KeyError for values that the lab does not provide.
    """
    values: dict[str, str] = {}
    for source in container.get("envFrom", []):
        reference = source.get("secretRef") or source["configMapRef"]
        data = secrets.get(reference["name"], {}) if reference.get("optional") else secrets[reference["name"]]
        values |= {key: str(value) for key, value in data.items()}
    for entry in container.get("env", []):
        source = entry.get("valueFrom", {})
        reference = source.get("secretKeyRef") or source.get("configMapKeyRef")
        if reference:
            if reference.get("optional") and reference["key"] not in secrets.get(reference["name"], {}):
                continue
            values[entry["name"]] = str(secrets[reference["name"]][reference["key"]])
        elif "fieldRef" in source:
            values[entry["name"]] = fields[source["fieldRef"]["fieldPath"]]
        else:
            given = str(entry.get("value", ""))
            values[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda match: values.get(match[1], match[0]), given)
    return values


def mounts(
    pod: Object, container: Object, data: Mapping[str, Object], claims: Path, private: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """Where each volume of the container is, those that it may write and the others: path in the container to directory
    on the machine, which exists then.

    Secrets and ConfigMaps are written below `private`, as are empty directories; claims are shared by the pods.
    """
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    writable: dict[str, str] = {}
    fixed: dict[str, str] = {}
    for mount in container.get("volumeMounts", []):
        volume = volumes[mount["name"]]
        if "persistentVolumeClaim" in volume:
            place = claims / volume["persistentVolumeClaim"]["claimName"]
        else:
            place = private / mount["name"]
        place.mkdir(parents=True, exist_ok=True)
        source = (volume.get("secret") or {}).get("secretName") or (volume.get("configMap") or {}).get("name")
        for name, text in data[source].items() if source else ():
            (place / name).write_text(str(text))
        if mount["mountPath"] != "/dev/shm":  # every container has its own
            group = fixed if mount.get("readOnly") else writable
            group[mount["mountPath"]] = str(place / mount.get("subPath", ""))
    return writable, fixed


def stored(objects: Sequence[Object]) -> dict[str, dict[str, Any]]:
    """The data of the rendered Secrets and ConfigMaps, by name."""
    contents: dict[str, dict[str, Any]] = {}
    for config_map in of_kind(objects, "ConfigMap"):
        contents[config_map["metadata"]["name"]] = config_map.get("data", {})
    for manifest in of_kind(objects, "Secret"):
        data = {name: base64.b64decode(text).decode() for name, text in manifest.get("data", {}).items()}
        contents[manifest["metadata"]["name"]] = {**data, **manifest.get("stringData", {})}
    return contents


def _override(parameters: dict[str, str], resources: Mapping[str, Any]) -> None:
    """The group's own `resources` field: what Ray takes from it in place of the container's limits."""
    named = {"CPU": "num-cpus", "GPU": "num-gpus", "memory": "memory"}
    custom = {name: amount for name, amount in resources.items() if name not in named}
    for name, option in named.items():
        if name in resources:
            parameters[option] = str(math.ceil(quantity(resources[name])))
    if custom:
        amounts = ", ".join(f'"{name}": {quantity(amount):g}' for name, amount in custom.items())
        parameters["resources"] = shlex.quote("{" + amounts + "}")


def _word(name: str, value: str) -> str:
    if str(value).lower() == "true":
        return f"--{name}"
    return f"--{name}={value}"
