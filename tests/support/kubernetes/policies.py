"""Policies for manifests: streams, secrets, access. Each yields its problems."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from deployments.draining import GRACE_S
from deployments.kubernetes import environment
from deployments.kubernetes.demands import quantity
from deployments.kubernetes.environment import MODELS
from deployments.kubernetes.manifests import Manifest, ray_service
from tests.support.kubernetes.overlays import Pod, pods, ray_pods
from tests.support.kubernetes.room import room_to_drain

SECRETS = {"switchyard", "switchyard-keys", "switchyard-hub"}
"""The Secrets that docs/start/kubernetes.md tells users to create."""

RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}

Policy = Callable[[list[Manifest]], Iterator[str]]


def restricted_containers(manifests: list[Manifest]) -> Iterator[str]:
    """No container runs as root, writes to its image, or has a capability or a Kubernetes token."""
    for pod in pods(manifests):
        context = pod.spec.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
            yield f"{pod.where}: runs as root"
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod.where}: no seccomp profile"
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.where}: has a token of Kubernetes"
        for container in pod.containers:
            if container.get("securityContext") != RESTRICTED:
                yield f"{pod.where}/{container['name']}: not restricted"
            if any("serviceaccount" in mount["mountPath"] for mount in container.get("volumeMounts", [])):
                yield f"{pod.where}/{container['name']}: has a token of Kubernetes"
    autoscaler = ray_service(manifests)["spec"]["rayClusterConfig"]["autoscalerOptions"]
    if autoscaler.get("securityContext") != RESTRICTED:
        yield "autoscaler: not restricted"


def named_images(manifests: list[Manifest]) -> Iterator[str]:
    """Every image has a tag that says what it is."""
    for pod in pods(manifests):
        for container in pod.containers:
            _, _, tag = container["image"].rpartition(":")
            if not tag or tag == container["image"] or tag == "latest":
                yield f"{pod.where}/{container['name']}: the image {container['image']} has no tag"


def sized_containers(manifests: list[Manifest]) -> Iterator[str]:
    """Every container has requests for the scheduler, and a memory limit."""
    for pod in pods(manifests):
        for container in pod.containers:
            resources = container.get("resources", {})
            if not {"cpu", "memory"} <= resources.get("requests", {}).keys():
                yield f"{pod.where}/{container['name']}: no requests"
            if "memory" not in resources.get("limits", {}):
                yield f"{pod.where}/{container['name']}: no memory limit"
    head = next(ray_pods(manifests)).main["resources"]
    if head["requests"] != head["limits"]:
        yield "head: its requests differ from its limits: it is not the last to be evicted"


def _objects(pod: Pod) -> float:
    """The size of Ray's object store: by default 30 % of the memory."""
    given = (pod.group or {}).get("rayStartParams", {}).get("object-store-memory")
    return float(given or 0.3 * quantity(pod.main["resources"]["limits"]["memory"]))


def drains(manifests: list[Manifest]) -> Iterator[str]:
    """A stopped pod waits for its replicas' successors, and lets streams of an hour finish."""
    for pod in ray_pods(manifests):
        seconds = environment.HEAD_DRAIN_S if pod.where == "head" else environment.WORKER_DRAIN_S
        if pod.environment.get(environment.DRAIN) != str(seconds):
            yield f"{pod.where}: {environment.DRAIN} is {pod.environment.get(environment.DRAIN)}, not {seconds}"
        if pod.spec["terminationGracePeriodSeconds"] < seconds + environment.STOP_S // 2:
            yield f"{pod.where}: is killed before it has drained"
        if "preStop" in pod.main.get("lifecycle", {}):
            yield f"{pod.where}: a preStop hook, before which nothing drains"
    spec = ray_service(manifests)["spec"]
    if spec.get("rayClusterDeletionDelaySeconds", 60) < GRACE_S:
        yield "RayService: the old cluster is deleted before its streams have ended"
    if "type" not in spec.get("upgradeStrategy", {}):
        yield "RayService: no upgradeStrategy"


def streams_outlast_scale_down(manifests: list[Manifest]) -> Iterator[str]:
    """No cluster autoscaler ends a pod to save a node: it grants 10 minutes. Ray's own autoscaler removes idle pods."""
    for pod in ray_pods(manifests):
        template = (pod.group or {})["template"]
        if template["metadata"].get("annotations", {}).get("cluster-autoscaler.kubernetes.io/safe-to-evict") != "false":
            yield f"{pod.where}: the cluster autoscaler may end it, and its streams, after 10 minutes"


def same_environment(manifests: list[Manifest]) -> Iterator[str]:
    """Every node has the same environment."""
    for pod in ray_pods(manifests):
        for name, value in environment.EVERY_NODE.items():
            if pod.environment.get(name) != value:
                yield f"{pod.where}: {name} is {pod.environment.get(name)}, not {value}"


_ENGINES_SECRETS = {"SWITCHYARD_ENGINE_KEY"}
_ROUTERS_SECRETS = {
    "SWITCHYARD_INTERNAL_KEY",
    "SWITCHYARD_UNIT_SECRET",
    "SWITCHYARD_REDIS_PASSWORD",
    "REDIS_URL",
}
_ROUTERS_MOUNTS = {"/etc/switchyard", "/var/lib/switchyard"}


def secrets_where_needed(manifests: list[Manifest]) -> Iterator[str]:
    """A model's own code finds the key that its engine verifies, and no other secret, key file or ledger."""
    for pod in ray_pods(manifests):
        is_engine = pod.labels["app.kubernetes.io/component"] == "engine"
        needed, other = (_ENGINES_SECRETS, _ROUTERS_SECRETS) if is_engine else (_ROUTERS_SECRETS, _ENGINES_SECRETS)
        for name in sorted(needed - {"REDIS_URL"}):
            if name not in pod.environment or pod.environment[name] is not None:
                yield f"{pod.where}: {name} does not come from a Secret"
        for name in sorted(other & pod.environment.keys()):
            yield f"{pod.where}: has {name}"
        mounted = {mount["mountPath"] for mount in pod.main["volumeMounts"]}
        if is_engine and (found := mounted & _ROUTERS_MOUNTS):
            yield f"{pod.where}: mounts {', '.join(sorted(found))}"


def no_secret_arguments(manifests: list[Manifest]) -> Iterator[str]:
    """No argument of a process holds a secret: everyone on the machine can read arguments."""
    for pod in pods(manifests):
        for container in pod.containers:
            secret = {
                variable["name"]
                for variable in container.get("env", [])
                if "secretKeyRef" in variable.get("valueFrom", {})
            }
            words = [*container.get("command", []), *container.get("args", [])]
            for name in sorted(secret & set(re.findall(r"\$\((\w+)\)", " ".join(words)))):
                yield f"{pod.where}/{container['name']}: {name} is an argument"


def writable_directories(manifests: list[Manifest]) -> Iterator[str]:
    """The image is read-only: Ray, HAProxy and the caches write to volumes. /dev/shm is not the runtime's 64 MiB."""
    for pod in ray_pods(manifests):
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        mounts = {mount["mountPath"]: volumes.get(mount["name"], {}) for mount in pod.main["volumeMounts"]}
        for path in ("/tmp", "/home/switchyard", "/dev/shm"):
            if "emptyDir" not in mounts.get(path, {}):
                yield f"{pod.where}: {path} cannot be written"
        memory = mounts.get("/dev/shm", {}).get("emptyDir", {})
        limit = quantity(pod.main["resources"]["limits"]["memory"])
        if memory.get("medium") != "Memory" or not 0 < quantity(memory.get("sizeLimit", 0)) < limit:
            yield f"{pod.where}: /dev/shm is no memory, or as much as the container has"
        elif _objects(pod) > 0.9 * quantity(memory["sizeLimit"]):
            yield f"{pod.where}: Ray's objects do not fit into /dev/shm, and are on the disk"


def scales_from_zero(manifests: list[Manifest]) -> Iterator[str]:
    """Ray's autoscaler runs, and no other; engines' groups grow from zero."""
    cluster = ray_service(manifests)["spec"]["rayClusterConfig"]
    if not cluster.get("enableInTreeAutoscaling") or cluster["autoscalerOptions"].get("version") != "v2":
        yield "rayClusterConfig: no autoscaler v2"
    for group in cluster["workerGroupSpecs"]:
        if group["groupName"] != "cpu" and (group["minReplicas"] != 0 or not group.get("resources")):
            yield f"{group['groupName']}: does not start from zero"
        if group.get("labels") != {"ray.io/node-group": group["groupName"]}:
            yield f"{group['groupName']}: its label is not its name"
    if any(manifest["kind"] in ("HorizontalPodAutoscaler", "ScaledObject") for manifest in manifests):
        yield "two autoscalers for the same pods"


def head_without_work(manifests: list[Manifest]) -> Iterator[str]:
    """The head runs no replicas and is not in the clients' Service; like Redis, it is not on a spot node."""
    spec = ray_service(manifests)["spec"]
    head = spec["rayClusterConfig"]["headGroupSpec"]
    if head["rayStartParams"].get("num-cpus") != "0":
        yield "head: replicas may land on it"
    if not spec.get("excludeHeadPodFromServeSvc"):
        yield "head: takes clients' requests"
    for pod in pods(manifests):
        terms = pod.spec.get("affinity", {}).get("nodeAffinity", {})
        permanent = "requiredDuringSchedulingIgnoredDuringExecution" in terms
        if not permanent and (pod.where == "head" or pod.where.startswith("StatefulSet")):
            yield f"{pod.where}: may be on a spot node"


def survives_its_head(manifests: list[Manifest]) -> Iterator[str]:
    """Ray's state is in a Redis that exists, behind a password; its parts authenticate."""
    cluster = ray_service(manifests)["spec"]["rayClusterConfig"]
    if cluster.get("authOptions", {}).get("mode") != "token":
        yield "rayClusterConfig: anyone who reaches a port of Ray runs code"
    options = cluster.get("gcsFaultToleranceOptions", {})
    host, _, port = options.get("redisAddress", "").removeprefix("redis://").partition(":")
    services = {
        manifest["metadata"]["name"]: manifest["spec"]["ports"]
        for manifest in manifests
        if manifest["kind"] == "Service"
    }
    if int(port or 0) not in {port["port"] for port in services.get(host, [])}:
        yield f"gcsFaultToleranceOptions: no Service {host}:{port}"
    if "secretKeyRef" not in options.get("redisPassword", {}).get("valueFrom", {}):
        yield "gcsFaultToleranceOptions: no password from a Secret"
    if not any(host in (pod.environment.get("REDIS_URL") or "") for pod in ray_pods(manifests)):
        yield "no router knows the store of the limits"


def honest_probes(manifests: list[Manifest]) -> Iterator[str]:
    """A pod is ready when a router answers through its HAProxy. /-/healthz is 200 without any; /ready wakes models."""
    for pod in pods(manifests):
        for container in pod.containers:
            for name, probe in container.items():
                if name.endswith("Probe") and probe.get("httpGet", {}).get("path") in ("/ready", "/-/healthz"):
                    yield f"{pod.where}: {name} asks {probe['httpGet']['path']}"
    for pod in ray_pods(manifests):
        probe = pod.main.get("readinessProbe", {}).get("httpGet")
        if pod.where != "head" and probe != {"path": "/health", "port": 8000}:
            yield f"{pod.where}: its readiness proves no router"


def budgets_that_let_go(manifests: list[Manifest]) -> Iterator[str]:
    """A budget selects pods and allows at least one eviction. A RayCluster's pods support no `maxUnavailable`."""
    for budget in (manifest for manifest in manifests if manifest["kind"] == "PodDisruptionBudget"):
        selector = budget["spec"]["selector"]["matchLabels"].items()
        guarded = [pod for pod in ray_pods(manifests) if selector <= pod.labels.items()]
        least = sum(pod.group["minReplicas"] for pod in guarded if pod.group)
        if not guarded or not isinstance(budget["spec"].get("minAvailable"), int):
            yield f"{budget['metadata']['name']}: guards nothing"
        elif budget["spec"]["minAvailable"] >= least:
            yield f"{budget['metadata']['name']}: blocks every drain while there are {least} pods"


def resolved_references(manifests: list[Manifest]) -> Iterator[str]:
    """Every volume, claim, ConfigMap and Secret that a pod names exists."""
    made = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    for pod in pods(manifests):
        for name in _secrets(pod.spec) - SECRETS:
            yield f"{pod.where}: no Secret {name}"
        volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
        known = volumes.keys() | {template["metadata"]["name"] for template in _templates(manifests)}
        for mount in (mount for container in pod.containers for mount in container.get("volumeMounts", [])):
            if mount["name"] not in known:
                yield f"{pod.where}: no volume {mount['name']}"
        for volume in volumes.values():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            config = volume.get("configMap", {}).get("name")
            for kind, name in (("PersistentVolumeClaim", claim), ("ConfigMap", config)):
                if name is not None and (kind, name) not in made:
                    yield f"{pod.where}: no {kind} {name}"


def expanded_variables(manifests: list[Manifest]) -> Iterator[str]:
    """A value's $(NAME) is expanded only if NAME is defined before it."""
    for pod in pods(manifests):
        seen: set[str] = set()
        for variable in pod.main.get("env", []):
            for name in set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) - seen:
                yield f"{pod.where}: {variable['name']} stands before {name}"
            seen.add(variable["name"])


def ports_to_scrape(manifests: list[Manifest]) -> Iterator[str]:
    """Every port that a PodMonitor names is one of every pod's."""
    for monitor in (manifest for manifest in manifests if manifest["kind"] == "PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            for pod in ray_pods(manifests):
                if endpoint["port"] not in {port["name"] for port in pod.main["ports"]}:
                    yield f"{pod.where}: no port {endpoint['port']} to scrape"


def open_ingresses(manifests: list[Manifest]) -> Iterator[str]:
    """An Ingress terminates TLS, and leads to KubeRay's Service. Its controller's annotations are the user's."""
    service = f"{ray_service(manifests)['metadata']['name']}-serve-svc"
    for ingress in (manifest for manifest in manifests if manifest["kind"] == "Ingress"):
        paths = [path for rule in ingress["spec"]["rules"] for path in rule["http"]["paths"]]
        if {path["backend"]["service"]["name"] for path in paths} != {service}:
            yield "Ingress: not the routers' Service"
        if {rule["host"] for rule in ingress["spec"]["rules"]} != {
            host for tls in ingress["spec"].get("tls", []) for host in tls["hosts"]
        }:
            yield "Ingress: a host without TLS"


def open_gateways(manifests: list[Manifest]) -> Iterator[str]:
    """A Gateway terminates TLS for every route's host; routes lead to the routers and let a stream take an hour."""
    service = f"{ray_service(manifests)['metadata']['name']}-serve-svc"
    encrypted: set[tuple[str, str]] = set()
    for gateway in (manifest for manifest in manifests if manifest["kind"] == "Gateway"):
        for listener in gateway["spec"]["listeners"]:
            tls = listener.get("tls", {})
            if listener["protocol"] != "HTTPS" or tls.get("mode") != "Terminate" or not tls.get("certificateRefs"):
                yield f"Gateway: the listener {listener['name']} has no TLS"
            else:
                encrypted.add((gateway["metadata"]["name"], listener["hostname"]))
    for route in (manifest for manifest in manifests if manifest["kind"] == "HTTPRoute"):
        for host in {(parent["name"], host) for parent in route["spec"]["parentRefs"] for host in _hosts(route)}:
            if host not in encrypted:
                yield f"HTTPRoute: the host {host[1]} has no TLS"
        for rule in route["spec"]["rules"]:
            if {backend["name"] for backend in rule["backendRefs"]} != {service}:
                yield "HTTPRoute: not the routers' Service"
            timeouts = rule.get("timeouts", {})
            if any(_cuts_streams(timeouts.get(name)) for name in ("request", "backendRequest")):
                yield "HTTPRoute: cuts streams"


def _hosts(route: Manifest) -> list[str]:
    hosts: list[str] = route["spec"].get("hostnames", [""])
    return hosts


def _cuts_streams(timeout: str | None) -> bool:
    """`0s` is no timeout; without the field the implementation's own applies."""
    duration = re.fullmatch(r"(\d+)(s|m|h)", timeout or "")
    if duration is None:
        return True
    seconds = int(duration[1]) * {"s": 1, "m": 60, "h": 3600}[duration[2]]
    return 0 < seconds < GRACE_S


def spread_routers(manifests: list[Manifest]) -> Iterator[str]:
    """Groups of several permanent pods are spread over zones and hosts, counted in their own cluster."""
    for pod in ray_pods(manifests):
        if pod.group is None or pod.group.get("minReplicas", 0) < 2:
            continue
        constraints = {
            constraint["topologyKey"]: constraint for constraint in pod.spec.get("topologySpreadConstraints", [])
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname"):
            found = constraints.get(key)
            if found is None:
                yield f"{pod.where}: not spread by {key}"
                continue
            selector = found.get("labelSelector", {}).get("matchLabels", {})
            if not selector or not selector.items() <= pod.labels.items():
                yield f"{pod.where}: spread by {key} among other pods"
            if found.get("matchLabelKeys") != ["ray.io/cluster"]:
                yield f"{pod.where}: spread by {key} together with another cluster's pods"


def weights_for_all(manifests: list[Manifest]) -> Iterator[str]:
    """Engines read the weights and never write them; a Job fetches them, with the hub's token if there is one."""
    for pod in ray_pods(manifests):
        mount = next((mount for mount in pod.main["volumeMounts"] if mount["mountPath"] == MODELS), None)
        if (mount is not None) != (pod.labels["app.kubernetes.io/component"] == "engine"):
            yield f"{pod.where}: weights where no engine is, or the other way round"
        elif mount is not None and not mount.get("readOnly"):
            yield f"{pod.where}: may write the weights"
    job = next(pod for pod in pods(manifests) if pod.where.startswith("Job"))
    if not job.main.get("args"):
        yield "nothing fetches weights"
    if "HF_TOKEN" not in job.environment:
        yield "the Job has no token for gated models"


def tolerated_gpus(manifests: list[Manifest]) -> Iterator[str]:
    """Pods that ask for a GPU choose its node and tolerate its taint."""
    for pod in ray_pods(manifests):
        if any("gpu" in name for name in pod.main["resources"]["limits"]):
            if not pod.spec.get("nodeSelector"):
                yield f"{pod.where}: any GPU would do"
            if not any(toleration["key"] == "nvidia.com/gpu" for toleration in pod.spec.get("tolerations", [])):
                yield f"{pod.where}: does not tolerate the GPU nodes' taint"


def _secrets(part: Any) -> set[str]:
    """Every Secret that is named anywhere below."""
    if isinstance(part, list):
        return set().union(*map(_secrets, part))
    if not isinstance(part, dict):
        return set()
    own = {part["secretName"]} if "secretName" in part else set()
    own |= {part["secretKeyRef"]["name"]} if "secretKeyRef" in part else set()
    return own.union(*map(_secrets, part.values()))


def _templates(manifests: list[Manifest]) -> Iterator[dict[str, Any]]:
    for manifest in manifests:
        yield from manifest["spec"].get("volumeClaimTemplates", []) if manifest["kind"] == "StatefulSet" else ()


POLICIES: tuple[Policy, ...] = (
    restricted_containers,
    named_images,
    sized_containers,
    drains,
    streams_outlast_scale_down,
    same_environment,
    secrets_where_needed,
    no_secret_arguments,
    writable_directories,
    scales_from_zero,
    room_to_drain,
    head_without_work,
    survives_its_head,
    honest_probes,
    budgets_that_let_go,
    resolved_references,
    expanded_variables,
    ports_to_scrape,
    open_ingresses,
    open_gateways,
    spread_routers,
    weights_for_all,
    tolerated_gpus,
)
