"""Finds what cannot work, as far as manifests show it: above all deployments that no group of nodes can hold.

Ray reports no error for these: a replica stays STARTING, and the autoscaler adds nothing.

- Weights that pods cannot load: a model hub's ids, on nodes that never ask a hub.
- Warns of weights without a revision, of engines that may ask no name server, and of a ledger on a node's own disk:
  the controller of experiments starts without its evidence on another node.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import yaml

from app.config.adapters import adapters_of
from app.config.base import ConfigError, is_loopback
from app.config.experiments import is_active
from app.config.file_check import package_problems
from app.config.loading import host_of, load_document
from app.config.schema import Config
from app.internal_api import LEDGER_VARIABLE
from deployments.haproxy import cluster_settings
from deployments.invocation import module
from deployments.kubernetes.demands import Bundle, Demand, Group, demands, groups, most_nodes
from deployments.kubernetes.environment import MODELS, SIZE, group_of
from deployments.weights.sources import adapter_sources, is_hub_id, is_pinned, model_sources, source_on

OFFLINE = "HF_HUB_OFFLINE"


def hub_problems(document: Mapping[str, Any], cluster: Mapping[str, Any]) -> Iterator[str]:
    """Models and adapters of a Serve configuration that come from a hub, if the groups of nodes are offline."""
    if not any(_environment(group).get(OFFLINE) == "1" for group in cluster.get("workerGroupSpecs") or []):
        return
    reason = f"comes from a model hub, and its pods have {OFFLINE}=1"
    for application in document["applications"]:
        config = (application.get("args") or {}).get("llm_config")
        if not isinstance(config, Mapping):
            continue
        loading = config.get("model_loading_config") or {}
        source = loading.get("model_source") or loading.get("model_id")  # as Ray does
        fix = "which a Job fetches"
        if is_hub_id(source):
            yield f"{application['name']}: {source} {reason}; set model_source: {MODELS}/{source}, {fix}"
        for adapter in adapters_of(config):
            if is_hub_id(adapter.path):
                where = f"{application['name']}: the adapter {adapter.name}: {adapter.path}"
                yield f"{where} {reason}; set its path to {MODELS}/{adapter.path}, {fix}"


def _environment(group: Mapping[str, Any]) -> Mapping[str, str]:
    container = ((group.get("template") or {}).get("spec") or {}).get("containers", [{}])[0]
    return {variable["name"]: variable["value"] for variable in container.get("env") or [] if "value" in variable}


MANY_NODES = 50
"""The number of nodes up to which HAProxy's settings for a cluster are Ray's own, or nearly
(`deployments.haproxy.cluster_settings`).
"""

_ROUNDING = 1e-9


def problems(service: Mapping[str, Any], objects: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Every problem of a RayService, each with its fix. `objects`: the cluster's others."""
    try:
        document = yaml.safe_load(service["spec"].get("serveConfigV2") or "")
        if problems := list(package_problems(document)):
            return [f"serveConfigV2: {problem}" for problem in problems]
        load_document(document)
    except yaml.YAMLError as error:
        return [f"serveConfigV2: not YAML: {error}"]
    except ConfigError as error:
        return [f"serveConfigV2: {problem}" for problem in error.problems]
    cluster = service["spec"]["rayClusterConfig"]
    offered = groups(cluster)
    if is_loopback(host_of(document)):
        fix = "set http_options.host to 0.0.0.0"
        return [
            f"serveConfigV2: Serve listens on {host_of(document)}, which cannot be reached from outside the pod; {fix}"
        ]
    return [
        *_misfits(demands(document), offered, _head_cpus(cluster)),
        *hub_problems(document, cluster),
        *_small_settings(cluster, objects),
    ]


def _head_cpus(cluster: Mapping[str, Any]) -> str:
    return str((cluster["headGroupSpec"].get("rayStartParams") or {}).get("num-cpus"))


def _misfits(demands: Sequence[Demand], offered: Sequence[Group], head_cpus: str) -> Iterator[str]:
    if head_cpus != "0":
        yield 'headGroupSpec.rayStartParams: set num-cpus: "0"; replicas on the head die with it and slow it down'
    for group in offered:
        if group.cpu_limit is not None and group.offer["CPU"] > group.cpu_limit:
            yield (
                f"group {group.name}: num-cpus is {group.offer['CPU']:g}, limits.cpu {group.cpu_limit:g}; "
                "Ray would schedule more than the pod has"
            )
    for demand in demands:
        fitting = _fitting(demand, offered)
        if not fitting:
            yield _nowhere(demand, offered)
            continue
        yield from _starved(demand, fitting)
        if not _needs_gpu(demand) and (wasted := [group.name for group in fitting if group.offer.get("GPU")]):
            yield (
                f"{demand.name}: may be scheduled in the group {wasted[0]}, on a GPU node; "
                "set ray_actor_options.label_selector, as {ray.io/node-group: cpu}"
            )
    for group, housed in homes(demands, offered):
        needed = pods(housed, group)
        if needed > group.most:
            names = ", ".join(f"{group.max_replicas} of {group.name}" for group in housed)
            yield f"group {group.name}: at most {group.most} pods, but {names} need {needed}; raise maxReplicas"


def _small_settings(cluster: Mapping[str, Any], objects: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every HAProxy checks every replica of the cluster: Ray's own intervals are for few nodes."""
    nodes = most_nodes(cluster)
    if nodes <= MANY_NODES:
        return
    maps = {
        manifest["metadata"]["name"]: manifest.get("data") or {}
        for manifest in objects
        if manifest.get("kind") == "ConfigMap"
    }
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        container = _container((group.get("template") or {}).get("spec") or {})
        referred = [(source.get("configMapRef") or {}).get("name") for source in container.get("envFrom") or []]
        given = {name: value for map_name in referred for name, value in maps.get(map_name, {}).items()}
        given |= {variable["name"]: variable.get("value") for variable in container.get("env") or []}
        if cluster_settings(nodes).items() - given.items():
            name = group.get("groupName", "head")
            printed = f"what `{module(f'deployments.haproxy --nodes {nodes}')}` prints"
            fix = f"put {printed} into the ConfigMap {SIZE}"
            yield f"group {name}: up to {nodes} nodes check one another too often; {fix}"


def homes(demands: Sequence[Demand], offered: Sequence[Group]) -> Iterator[tuple[Group, list[Demand]]]:
    """Yields each group with the demands for which it is the first that fits."""
    firsts = [(fitting[0].name, demand) for demand in demands if (fitting := _fitting(demand, offered))]
    for group in offered:
        yield group, [demand for name, demand in firsts if name == group.name]


def _fitting(demand: Demand, offered: Sequence[Group]) -> list[Group]:
    return [group for group in offered if _fits(demand, group)]


def _fits(demand: Demand, group: Group) -> bool:
    return demand.labels.items() <= group.labels.items() and all(group.has(bundle) for bundle in demand.bundles)


def _needs_gpu(demand: Demand) -> bool:
    return any(bundle.get("GPU") for bundle in demand.bundles)


def _nowhere(demand: Demand, offered: Sequence[Group]) -> str:
    """The reason why no group fits, and the fix: checks labels first, then custom resources, then quantities."""
    labelled = [group for group in offered if demand.labels.items() <= group.labels.items()]
    if not labelled:
        return f"{demand.name}: no group has the labels {dict(demand.labels)} that it asks for"
    for resource in sorted(demand.resources):
        if not any(resource in group.offer for group in labelled):
            fix = f"name a group {group_of(resource)} that does"
            return f"{demand.name}: no group declares the resource {resource}; {fix}"
    able = [group for group in labelled if demand.resources <= group.offer.keys()] or labelled
    for bundle in demand.bundles:
        for name, amount in bundle.items():
            most = max(group.offer.get(name, 0) for group in able)
            if amount > most:
                where = ", ".join(group.name for group in able)
                return f"{demand.name}: asks for {amount:g} {name} on one node; the group {where} has {most:g} per pod"
    return f"{demand.name}: no group has all of {dict(demand.bundles[0])}"


def _starved(demand: Demand, fitting: Sequence[Group]) -> Iterator[str]:
    """A replica and each of its engine's workers keep a core busy, regardless of what Ray was asked for."""
    for group in fitting:
        on_node = min(demand.processes, 1 + int(group.offer.get("GPU", 0)))
        for kind, cores in (("limits", group.cpu_limit), ("requests", group.cpu_request)):
            if _needs_gpu(demand) and cores is not None and cores < on_node:
                yield (
                    f"group {group.name}: {kind}.cpu is {cores:g}, but {demand.name} runs {on_node} busy processes "
                    f"there (1 + tensor_parallel_size); set at least {on_node}"
                )
                return


@dataclass
class _Pod:
    free: dict[str, float]
    replicas: dict[str, int] = field(default_factory=dict)


def pods(demands: Sequence[Demand], group: Group) -> int:
    """The number of pods of `group` that all of `demands` fill at their max_replicas, the largest bundles first."""
    items = [(bundle, demand) for demand in demands for bundle in demand.bundles for _ in range(demand.max_replicas)]
    items.sort(key=lambda item: sorted(item[0].values(), reverse=True), reverse=True)
    filled: list[_Pod] = []
    for bundle, demand in items:
        pod = next((pod for pod in filled if _has_room(pod, bundle, demand)), None)
        if pod is None:
            pod = _Pod(dict(group.offer))
            filled.append(pod)
        for name, amount in bundle.items():
            pod.free[name] -= amount
        if bundle is demand.bundles[0]:  # where the replica itself is
            pod.replicas[demand.name] = pod.replicas.get(demand.name, 0) + 1
    return len(filled)


def _has_room(pod: _Pod, bundle: Bundle, demand: Demand) -> bool:
    if demand.per_node is not None and pod.replicas.get(demand.name, 0) >= demand.per_node:
        return False
    return all(pod.free.get(name, 0) + _ROUNDING >= amount for name, amount in bundle.items())


_NODE_LOCAL = ("emptyDir", "hostPath", "ephemeral")
"""Kinds of volumes that stay with the pod or the node."""


def warnings(service: Mapping[str, Any], objects: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Sentences about a RayService without `capacity.problems`. `objects`: the cluster's others."""
    document = yaml.safe_load(service["spec"].get("serveConfigV2") or "")
    return [
        *_unpinned(document, objects),
        *_kept_nowhere(service, load_document(document)),
        *_nameless(service, objects),
        *_mixed(service),
    ]


_VERSION = re.compile(r":([^:@/]+)-(?:router|gpu|cpu)(?:@.*)?$")
"""The version in the tag of one of this project's images."""


def _mixed(service: Mapping[str, Any]) -> Iterator[str]:
    """Routers and engines of different versions: they are tested with their own alone."""
    cluster = service["spec"]["rayClusterConfig"]
    groups = (cluster.get("headGroupSpec") or {}, *(cluster.get("workerGroupSpecs") or []))
    images = [str(_container((group.get("template") or {}).get("spec") or {}).get("image")) for group in groups]
    found = {match[1]: image for image in images if (match := _VERSION.search(image))}
    if len(found) > 1:
        yield f"images of several versions: {', '.join(found.values())}; give image and engineImage tags of one"


def _nameless(service: Mapping[str, Any], objects: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Groups whose pods may ask no name server of one kind: in a pod, or at an address of the node. They would wait for
    the head without an error.
    """
    policies = [manifest["spec"] for manifest in objects if manifest.get("kind") == "NetworkPolicy"]
    policies = [spec for spec in policies if "Egress" in spec.get("policyTypes", ())]
    for group in service["spec"]["rayClusterConfig"].get("workerGroupSpecs") or []:
        labels = ((group.get("template") or {}).get("metadata") or {}).get("labels") or {}
        limiting = [spec for spec in policies if _selects(spec.get("podSelector") or {}, labels)]
        rules = [rule for spec in limiting for rule in spec.get("egress") or []]
        dns_rules = [
            rule for rule in rules if not rule.get("ports") or any(port.get("port") == 53 for port in rule["ports"])
        ]
        anywhere = ({"namespaceSelector", "ipBlock"},)
        kinds = {kind for rule in dns_rules for peer in rule.get("to") or anywhere for kind in peer}
        name = f"group {group.get('groupName')}"
        if limiting and "namespaceSelector" not in kinds:
            yield f"{name}: its NetworkPolicy lets it ask no name server in a pod, and it waits for the head for ever"
        if limiting and "ipBlock" not in kinds:
            yield (
                f"{name}: its NetworkPolicy lets it ask no name server at an address; where the cluster has NodeLocal "
                "DNSCache or Cloud DNS, it waits for the head without an error: set dns.cidrs"
            )


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether `matchLabels` and the operator In fit; other operators are taken to."""
    choices = [expression for expression in selector.get("matchExpressions") or [] if expression["operator"] == "In"]
    fits: bool = (selector.get("matchLabels") or {}).items() <= labels.items()
    return fits and all(labels.get(choice["key"]) in choice["values"] for choice in choices)


def _unpinned(document: Mapping[str, Any], objects: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Weights that another cluster, or the same one later, would fetch in another version: of those that a Job fetches,
    where the objects are known."""
    applications = document.get("applications") or []
    jobs = [manifest["spec"]["template"]["spec"] for manifest in objects if manifest.get("kind") == "Job"]
    fetched = {argument for job in jobs for argument in _container(job).get("args") or []}
    for named in dict.fromkeys((*model_sources(applications), *adapter_sources(applications))):
        source = source_on(PurePath(MODELS), named)
        if source is not None and not is_pinned(source) and (source in fetched or not objects):
            yield f"serveConfigV2: {named} names no revision; append @ and a commit of the model's repository"


def _kept_nowhere(service: Mapping[str, Any], config: Config) -> list[str]:
    url = config.ledger.url
    if "://" in url or not (_is_recorded(config) or config.access.issue_keys):
        return []
    groups = service["spec"]["rayClusterConfig"].get("workerGroupSpecs") or []
    pods = [(group.get("template") or {}).get("spec") or {} for group in groups]
    paths = [_path_in(pod, url) for pod in pods]
    if any(_is_kept(pod, path) for pod, path in zip(pods, paths, strict=True)):
        return []
    return [
        f"serveConfigV2: ledger.url: '{url}' is on a node's own disk, and experiments lose their evidence, and "
        "managers the keys that they issued, when the controller moves to another node; set a bucket, or mount a "
        f"persistent volume at {paths[0] if paths else url} (`ledger` in a chart's values)"
    ]


def _is_recorded(config: Config) -> bool:
    return any(is_active(experiment) for experiment in config.experiments.values()) or any(
        endpoint.ledger == "always" or endpoint.mirror is not None or endpoint.record is not None
        for endpoint in config.endpoints.values()
    )


def _path_in(pod: Mapping[str, Any], url: str) -> str:
    """The path of a ledger in the pod's first container, which is Ray's."""
    container = _container(pod)
    environment = {variable["name"]: variable.get("value") for variable in container.get("env") or []}
    return posixpath.join(environment.get(LEDGER_VARIABLE) or container.get("workingDir") or "/", url)


def _is_kept(pod: Mapping[str, Any], path: str) -> bool:
    """Whether the path is on a volume that other nodes can mount."""
    mounts = [mount for mount in _container(pod).get("volumeMounts") or [] if _is_below(path, mount["mountPath"])]
    if not mounts:
        return False
    nearest = max(mounts, key=lambda mount: len(mount["mountPath"]))["name"]
    volume: Mapping[str, Any] = next((volume for volume in pod.get("volumes") or [] if volume["name"] == nearest), {})
    return not any(kind in volume for kind in _NODE_LOCAL)


def _is_below(path: str, directory: str) -> bool:
    return posixpath.normpath(path).startswith(posixpath.join(posixpath.normpath(directory), ""))


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    container: Mapping[str, Any] = (pod.get("containers") or [{}])[0]
    return container
