"""What applying changed manifests does to a running cluster: which parts change in place, which KubeRay passes over,
and whether it starts a second cluster, with as many nodes again.

As KubeRay 1.7 decides it: `GenerateHashWithoutReplicasAndWorkersToDelete` (util.go) compares what remains of a
rayClusterConfig without the fields that the autoscaler or Kueue write. Where that is equal, a running RayCluster stays
as it is, whatever those fields say; where it is equal but for groups at the end, the RayCluster is updated
(`shouldUpdateCluster`); and otherwise there is a second one, unless `upgradeStrategy` says None.
"""

import copy
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from deployments.kubernetes.demands import quantity
from deployments.kubernetes.manifests import Manifest, ray_service

SIZE = "-size"
"""The end of the name of the ConfigMap with the settings that depend on the number of nodes."""

CLAIM = "PersistentVolumeClaim"

SERVED = "serveConfigV2"
"""KubeRay 1.7 gives it to the pending cluster alone where there is one (`reconcileServe`)."""


class ChangeEffect(StrEnum):
    IN_PLACE = "in place"
    PATCH = "patch needed"
    NEW_CLUSTER = "new cluster"
    LEFT = "left behind"
    DELETED = "deleted"
    REFUSED = "refused"


@dataclass(frozen=True)
class Change:
    """`command`: what has to be run besides `helm upgrade` or `kubectl apply`."""

    effect: ChangeEffect
    what: str
    command: str | None = None

    def __str__(self) -> str:
        return f"{self.effect}: {self.what}" + (f"\n  {self.command}" if self.command else "")


def changes(before: Sequence[Manifest], after: Sequence[Manifest], *, by_helm: bool = False) -> list[Change]:
    """What `kubectl apply` of `after` does where `before` runs, or `helm upgrade`, which also deletes. Raises
    ConfigError without a RayService in both."""
    old, new = ray_service(list(before)), ray_service(list(after))
    return [*_of_service(old, new), *_of_others(_by_name(before), _by_name(after), by_helm=by_helm)]


def _of_service(old: Manifest, new: Manifest) -> Iterator[Change]:
    before, after = old["spec"], new["spec"]
    of_cluster = list(_of_cluster(new, before["rayClusterConfig"], after["rayClusterConfig"]))
    waits = any(change.effect is ChangeEffect.NEW_CLUSTER for change in of_cluster)
    for field in sorted({*before, *after} - {"rayClusterConfig"}):
        if before.get(field) == after.get(field):
            continue
        if field == SERVED and waits:
            only = "in the second cluster alone: what runs keeps its models and shares until clients move"
            yield Change(ChangeEffect.NEW_CLUSTER, f"RayService: {field}, {only}")
        elif field == SERVED:
            yield Change(ChangeEffect.IN_PLACE, f"RayService: {field}: {_served(before[field], after[field])}")
        else:
            yield Change(ChangeEffect.IN_PLACE, f"RayService: {field}")
    yield from of_cluster


def _served(before: str, after: str) -> str:
    """What a changed Serve configuration does to its applications."""
    old, new = (
        {str(one.get("name")): one for one in (yaml.safe_load(text) or {}).get("applications") or ()}
        for text in (before, after)
    )
    effects = {
        "stops": sorted(old.keys() - new.keys()),
        "starts": sorted(new.keys() - old.keys()),
        "replaces the replicas, one by one, of": [
            name for name in sorted(old.keys() & new.keys()) if _of_replicas(old[name]) != _of_replicas(new[name])
        ],
    }
    said = [f"{verb} {', '.join(names)}" for verb, names in effects.items() if names]
    return "; ".join(said) or "no replica is replaced"


def _of_replicas(application: Mapping[str, Any]) -> Any:
    """The part of an application without what Serve changes in running replicas: their number, and `user_config`."""
    part: Any = copy.deepcopy({name: value for name, value in application.items() if name != "deployments"})
    llm_config = (part.get("args") or {}).get("llm_config") or {}
    llm_config.pop("deployment_config", None)
    return part


def _of_cluster(service: Manifest, running: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Change]:
    groups = running.get("workerGroupSpecs") or []
    first = {**wanted, "workerGroupSpecs": (wanted.get("workerGroupSpecs") or [])[: len(groups)]}
    if compared(running) == compared(wanted):
        yield from _passed_over(service, running, wanted)
    elif compared(running) == compared(first):
        names = [str(group["groupName"]) for group in wanted["workerGroupSpecs"][len(groups) :]]
        yield Change(ChangeEffect.IN_PLACE, f"new groups at the end: {', '.join(names)}")
    else:
        spec = service["spec"]
        yield Change(_effect(spec), _second_cluster(spec, compared(running), compared(wanted)))


def _effect(spec: Mapping[str, Any]) -> ChangeEffect:
    return ChangeEffect.LEFT if (spec.get("upgradeStrategy") or {}).get("type") == "None" else ChangeEffect.NEW_CLUSTER


def _second_cluster(spec: Mapping[str, Any], running: Any, wanted: Any) -> str:
    paths = list(_differing(running, wanted))
    named = ", ".join(paths[:4]) + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")
    if _effect(spec) is ChangeEffect.LEFT:
        return f"{named}: nothing changes until you delete the RayCluster (upgradeStrategy: None)"
    return f"{named}: a second cluster starts, with as many nodes again; clients move to it when it serves everything"


_OF_GROUP = ("replicas", "minReplicas", "maxReplicas")
_OF_POD = ("tolerations", "schedulingGates")


def compared(cluster: Mapping[str, Any]) -> Any:
    """The part of a rayClusterConfig that KubeRay compares, in which empty lists are as good as none."""
    spec: Any = copy.deepcopy({name: value for name, value in cluster.items() if name != "upgradeStrategy"})
    spec.pop("suspend", None)
    for group in (spec.get("headGroupSpec") or {}, *(spec.get("workerGroupSpecs") or [])):
        pod = (group.get("template") or {}).get("spec") or {}
        for name in _OF_POD:
            pod.pop(name, None)
    for group in spec.get("workerGroupSpecs") or []:
        for name in (*_OF_GROUP, "scaleStrategy"):
            group.pop(name, None)
    return _without_empty(spec)


def _without_empty(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_empty(part) for name, part in value.items() if part is not None and part != []}
    return [_without_empty(part) for part in value] if isinstance(value, list) else value


def _passed_over(service: Manifest, running: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Change]:
    """Fields that KubeRay does not compare: it updates nothing for their sake."""
    scales = bool(wanted.get("enableInTreeAutoscaling"))
    parts = [("head", "/spec/headGroupSpec", running["headGroupSpec"], wanted["headGroupSpec"])]
    pairs = zip(running.get("workerGroupSpecs") or [], wanted.get("workerGroupSpecs") or [], strict=True)
    parts += [
        (f"group {new['groupName']}", f"/spec/workerGroupSpecs/{i}", old, new) for i, (old, new) in enumerate(pairs)
    ]
    for where, path, old, new in parts:
        fields = [(name, f"{path}/{name}", old, new) for name in _OF_GROUP if not (name == "replicas" and scales)]
        old_pod, new_pod = old["template"]["spec"], new["template"]["spec"]
        fields += [(name, f"{path}/template/spec/{name}", old_pod, new_pod) for name in _OF_POD]
        for name, pointer, was, now in fields:
            if was.get(name) != now.get(name):
                change = f"from {_short(was.get(name))} to {_short(now.get(name))}, which KubeRay passes over"
                yield Change(ChangeEffect.PATCH, f"{where}: {name}, {change}", _patch(service, pointer, now.get(name)))


def _short(value: object) -> str:
    return "none" if value is None else json.dumps(value)


def _patch(service: Manifest, pointer: str, value: object) -> str:
    """Also for the next clusters: those are made of the RayService, which has the same value."""
    kubectl, service_name = _kubectl(service), service["metadata"]["name"]
    name = f"$({kubectl} get rayservice {service_name} -o jsonpath={{.status.activeServiceStatus.rayClusterName}})"
    operation = (
        {"op": "add", "path": pointer, "value": value} if value is not None else {"op": "remove", "path": pointer}
    )
    return f"{kubectl} patch raycluster {name} --type=json --patch={shlex.quote(json.dumps([operation]))}"


_Name = tuple[str, str, str]


def _by_name(objects: Sequence[Manifest]) -> dict[_Name, Manifest]:
    return {
        (manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]): manifest
        for manifest in objects
        if manifest["kind"] not in ("RayService", "Namespace")  # other releases and the Secrets are in it, too
    }


def _of_others(before: Mapping[_Name, Manifest], after: Mapping[_Name, Manifest], *, by_helm: bool) -> Iterator[Change]:
    for key in sorted({*before, *after}):
        kind, _, name = key
        where = f"{kind} {name}"
        if key not in before:
            yield Change(ChangeEffect.IN_PLACE, f"{where} is new")
        elif key not in after:
            if "ttlSecondsAfterFinished" not in before[key].get("spec", {}):
                yield _left_out(before[key], by_helm=by_helm)
        elif before[key] != after[key]:
            if fields := list(_immutable(before[key], after[key])):
                yield _refused(before[key], after[key], fields)
            elif kind == "ConfigMap" and name.endswith(SIZE):
                yield Change(ChangeEffect.IN_PLACE, f"{where}, for pods that start from now on")
            elif kind == "StatefulSet" and _pod(before[key]) != _pod(after[key]):
                yield Change(ChangeEffect.IN_PLACE, f"{where}: {_RESTARTS}")
            else:
                grows = ", if its class lets it grow" if kind == CLAIM else ""
                yield Change(ChangeEffect.IN_PLACE, f"{where}{grows}")


_RESTARTS = (
    "its pod is replaced at once, and the head restarts when Redis is away; another Secret must have the same "
    "redis-password, or the running head stays away"
)
"""Of the chart's only StatefulSet."""


def _pod(manifest: Manifest) -> Any:
    return manifest["spec"]["template"]


def _left_out(manifest: Manifest, *, by_helm: bool) -> Change:
    """Helm deletes what leaves the manifests, but for what has its annotation; `kubectl apply` deletes nothing."""
    where = f"{manifest['kind']} {manifest['metadata']['name']}"
    annotations = manifest["metadata"].get("annotations") or {}
    if by_helm and annotations.get("helm.sh/resource-policy") != "keep":
        data = ", with its data" if manifest["kind"] == CLAIM else ""
        return Change(ChangeEffect.DELETED, f"{where}{data}: `helm upgrade` deletes what the chart no longer has")
    return Change(ChangeEffect.LEFT, f"{where} stays unless you delete it", _delete(manifest))


def _kubectl(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return "kubectl" + (f" -n {metadata['namespace']}" if "namespace" in metadata else "")


def _delete(manifest: Manifest) -> str:
    return f"{_kubectl(manifest)} delete {manifest['kind'].lower()} {manifest['metadata']['name']}"


def _refused(before: Manifest, after: Manifest, fields: Sequence[str]) -> Change:
    """What the API server does not change, and how to come by it without losing data, where that is possible."""
    kind, name = after["kind"], after["metadata"]["name"]
    cannot = f"{kind} {name}: {', '.join(fields)} cannot be changed"
    if kind == CLAIM:
        keep = "leave it: a deleted claim loses its data, and stays in Terminating as long as pods mount it"
        return Change(ChangeEffect.REFUSED, f"{cannot}; {keep}")
    if fields == ["spec.volumeClaimTemplates"]:
        if (grown := _grown(before, after)) is None:
            keep = "leave it: the claims that it has made outlive it, and keep their class and size"
            return Change(ChangeEffect.REFUSED, f"{cannot}; {keep}")
        claim, size = grown
        patch = shlex.quote(json.dumps({"spec": {"resources": {"requests": {"storage": size}}}}))
        first = f"{_kubectl(after)} patch {CLAIM.lower()} {claim} --type=merge --patch={patch}"
        how = "enlarge its claim, whose class must allow it, and delete only the object; pods run on"
        return Change(ChangeEffect.REFUSED, f"{cannot}; {how}", f"{first} && {_delete(after)} --cascade=orphan")
    return Change(ChangeEffect.REFUSED, f"{cannot}; first", _delete(after))


def _grown(before: Manifest, after: Manifest) -> tuple[str, str] | None:
    """The claim of a StatefulSet's first pod and its new size, if only the size of one template has grown."""
    templates = [copy.deepcopy(manifest["spec"]["volumeClaimTemplates"]) for manifest in (before, after)]
    (was, *more), (now, *others) = templates
    old, new = (template["spec"]["resources"]["requests"].pop("storage") for template in (was, now))
    if more or others or was != now or quantity(new) < quantity(old):
        return None
    return f"{now['metadata']['name']}-{after['metadata']['name']}-0", new


_MUTABLE: Mapping[str, frozenset[str]] = {
    "Job": frozenset({"activeDeadlineSeconds", "backoffLimit", "parallelism", "suspend", "ttlSecondsAfterFinished"}),
    CLAIM: frozenset({"resources"}),
    "StatefulSet": frozenset(
        {
            "minReadySeconds",
            "ordinals",
            "persistentVolumeClaimRetentionPolicy",
            "replicas",
            "revisionHistoryLimit",
            "template",
            "updateStrategy",
        }
    ),
}
"""The fields of `spec` that the API server lets change, for kinds that have others."""


def _immutable(before: Manifest, after: Manifest) -> Iterator[str]:
    """The changed fields that the API server does not let change."""
    kind, old, new = after["kind"], before.get("spec", {}), after.get("spec", {})
    if kind not in _MUTABLE:
        return
    yield from (f"spec.{name}" for name in sorted({*old, *new} - _MUTABLE[kind]) if old.get(name) != new.get(name))
    if kind == CLAIM:
        was, now = (spec["resources"]["requests"]["storage"] for spec in (old, new))
        if quantity(now) < quantity(was):
            yield f"the size, from {was} to {now},"


def _differing(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """The paths at which two values differ, lists by position, but named elements by their names."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            yield from _differing(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))
    elif isinstance(old, list) and isinstance(new, list):
        names = _names(old), _names(new)
        if all(names) and names[0] != names[1]:
            yield f"{path} ({', '.join(sorted({*names[0]} ^ {*names[1]})) or 'their order'})"
            return
        for i in range(max(len(old), len(new))):
            label = names[1][i] if i < len(names[1]) else str(i)
            was, now = (side[i] if i < len(side) else None for side in (old, new))
            yield from _differing(was, now, f"{path}[{label}]")
    elif old != new:
        yield path


def _names(values: Sequence[Any]) -> list[str]:
    """The names of all elements; none where an element has no name."""
    found = [item.get("groupName") or item.get("name") for item in values if isinstance(item, Mapping)]
    return [str(name) for name in found] if len(found) == len(values) and all(found) else []
