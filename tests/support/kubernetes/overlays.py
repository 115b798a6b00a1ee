"""The objects of the chart for two files of values, made once for each process."""

import copy
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from deployments.kubernetes import chart
from deployments.kubernetes.manifests import Manifest, ray_service
from tests.support.processes.project import ROOT

OVERLAYS = ("cpu-demo", "gpu")
"""The demonstration without GPUs; the chart's own values, with a host and Prometheus' operator."""

CHART = ROOT / "k8s/chart"

Change = Callable[[Any], object]
"""A mistake to introduce into an object, in place."""


@functools.cache
def rendered(overlay: str) -> list[Manifest]:
    """The objects of an overlay; not to be changed."""
    if overlay == "gpu":
        return made(host="models.example.com", monitoring={"enabled": True})
    return made(**yaml.safe_load((CHART / "ci" / f"{overlay}-values.yaml").read_text()))


def made(**values: Any) -> list[Manifest]:
    """The chart's objects for these values, as `switchyard` in the namespace `switchyard`."""
    return release("switchyard", **values)


def release(name: str, **values: Any) -> list[Manifest]:
    """The chart's objects for these values and that release's name, in the namespace `switchyard`."""
    objects = chart.objects(chart.render(values, name=name, namespace="switchyard"))
    return [json.loads(json.dumps(manifest)) for manifest in objects]  # parts that YAML has once, more than once


@dataclass(frozen=True)
class Pod:
    """A pod template: its location `where`, its labels, its spec. `group`: the RayCluster's, for Ray's pods."""

    where: str
    labels: dict[str, str]
    spec: dict[str, Any]
    group: dict[str, Any] | None = None

    @property
    def main(self) -> dict[str, Any]:
        """The first container, which is Ray's in Ray's pods."""
        container: dict[str, Any] = self.spec["containers"][0]
        return container

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def environment(self) -> dict[str, str | None]:
        """The first container's; None for values from elsewhere."""
        return {variable["name"]: variable.get("value") for variable in self.main.get("env", [])}


def ray_pods(manifests: list[Manifest]) -> Iterator[Pod]:
    """The head's template first, then the groups'."""
    cluster = ray_service(manifests)["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = group["template"]
        yield Pod(group.get("groupName", "head"), template["metadata"]["labels"], template["spec"], group)


def pods(manifests: list[Manifest]) -> Iterator[Pod]:
    """Every pod template."""
    yield from ray_pods(manifests)
    for manifest in manifests:
        if manifest["kind"] in ("StatefulSet", "Deployment", "Job"):
            template = manifest["spec"]["template"]
            yield Pod(
                f"{manifest['kind']} {manifest['metadata']['name']}", template["metadata"]["labels"], template["spec"]
            )


def planted(overlay: str, kind: str, change: Change, name: str | None = None) -> list[Manifest]:
    """An overlay's objects, with a change to a copy of the first of a kind (and name)."""
    manifests = list(rendered(overlay))
    index = next(
        i
        for i, manifest in enumerate(manifests)
        if manifest["kind"] == kind and name in (None, manifest["metadata"]["name"])
    )
    manifests[index] = copy.deepcopy(manifests[index])
    change(manifests[index])
    return manifests


def without(mapping: Any, key: str) -> None:
    """Removes a key, in place."""
    del mapping[key]


def cluster(service: Manifest) -> Any:
    """A RayService's RayCluster."""
    return service["spec"]["rayClusterConfig"]


def group(service: Manifest, name: str) -> Any:
    """One of its groups."""
    return next(group for group in cluster(service)["workerGroupSpecs"] if group["groupName"] == name)


def worker(service: Manifest) -> Any:
    """The container of the routers' group."""
    return group(service, "cpu")["template"]["spec"]["containers"][0]
