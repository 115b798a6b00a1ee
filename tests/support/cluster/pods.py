"""Pods of a Ray cluster: real Ray processes in namespaces, started as the manifest says."""

import http.client
import shlex
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cluster import manifest
from tests.support.cluster.container import Container, Spec
from tests.support.cluster.network import NODE_ADDRESS, PREFIX, Network
from tests.support.processes.project import ROOT

NAMESPACE = "default"

CODE = ("app", "deployments", "tests", "benchmarks", ".venv", ".models")
"""The parts of this checkout that the image has in /app."""

PATH = "/app/bin:/app/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SLOW_MACHINE: Mapping[str, str] = {
    # A raylet waits 15 s for its agents, which may be too short, and then ends. `ray start` notices after this time,
    # and the pod's successor has another try.
    "RAY_raylet_start_wait_time_s": "180",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "200",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
    "RAY_memory_monitor_refresh_ms": "0",  # it would measure the whole machine, which is shared
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "RAY_worker_niceness": "0",  # with Ray's 15 they get what the machine's other programs leave
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""The lab's settings in addition to the manifest's: many nodes share two cores."""

SMALL: Mapping[str, str] = {"object-store-memory": "80000000"}
"""For `ray start`: nodes of the lab share one memory."""

NODE_GRACE_S = 40.0
"""How long a node may be silent before its pods are not ready (node-monitor-grace-period)."""

NEWS_S = 2.0
"""How long clients' nodes send requests to a pod that has been deleted."""

_PROBE_EVERY_S = 2.0


@dataclass
class Pod:
    """`deleted_at`, as in the API's deletionTimestamp, and `lost_at`, when its machine lost its power, are
    `time.monotonic`'s; `is_ready` is what the API says.
    """

    name: str
    group: str
    address: str
    template: Mapping[str, Any]
    container: Container
    is_head: bool = False
    lost_at: float | None = None
    is_ready: bool = False
    deleted_at: float | None = None
    sidecars: list[Container] = field(default_factory=list)

    @property
    def ports(self) -> dict[str, int]:
        """Those of its first container that have a name."""
        return {port["name"]: port["containerPort"] for port in self.template["spec"]["containers"][0]["ports"]}

    @property
    def grace_s(self) -> float:
        """The time that the pod has to end after SIGTERM."""
        return float(self.template["spec"].get("terminationGracePeriodSeconds", 30))

    def delete(self) -> None:
        """`kubectl delete pod`: SIGTERM now. The reconciler sends SIGKILL after the grace period."""
        if self.deleted_at is None:
            self.deleted_at = time.monotonic()
            if self.lost_at is None:
                for container in (self.container, *self.sidecars):
                    container.terminate()

    def kill(self) -> None:
        """Ends every container at once."""
        for container in (self.container, *self.sidecars):
            container.kill()

    def remove(self) -> None:
        """Ends every container, and removes what the kernel keeps of it."""
        for container in (self.container, *self.sidecars):
            container.remove()

    def probe(self) -> None:
        """Does the readiness probe once. The API notices a lost node only by its missing reports."""
        if self.lost_at is not None:
            self.is_ready = self.is_ready and time.monotonic() < self.lost_at + NODE_GRACE_S
            return
        probe = self.template["spec"]["containers"][0].get("readinessProbe")
        passes = not self.container.has_ended and self._passes(probe)
        self.is_ready = passes

    def status(self, cluster: str) -> dict[str, Any]:
        """The pod as the API lists it."""
        labels = {
            "ray.io/cluster": cluster,
            "ray.io/group": self.group,
            "ray.io/node-type": "head" if self.is_head else "worker",
        }
        deletion = {} if self.deleted_at is None else {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        return {
            "metadata": {"name": self.name, "labels": labels, **deletion},
            "status": {"phase": "Running", "podIP": self.address, "containerStatuses": [{"state": {"running": {}}}]},
        }

    def _passes(self, probe: Mapping[str, Any] | None) -> bool:
        if probe is None:
            return False
        timeout_s = float(probe.get("timeoutSeconds", 1)) + 5
        if "exec" in probe:
            return self.container.run(probe["exec"]["command"], timeout_s=timeout_s)
        where = probe["httpGet"]
        port, kubelet = self.ports.get(where["port"], where["port"]), (NODE_ADDRESS, 0)
        connection = http.client.HTTPConnection(self.address, port, timeout=timeout_s, source_address=kubelet)
        try:
            connection.request("GET", where["path"])
            return connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@dataclass(frozen=True)
class Image:
    """The inputs of every pod. `claims`: the directory of the volumes; `data`: Secrets and ConfigMaps by name; `hosts`:
    names to addresses.
    """

    network: Network
    directory: Path
    claims: Path
    data: dict[str, dict[str, Any]]
    hosts: dict[str, str]

    def start(self, name: str, group: Mapping[str, Any], *, cluster: str, head: str | None, extra: Any) -> Pod:
        """A pod of `group` on a new address. `head`: the name of the head's service, None for the head itself.

        `extra`: environment that the operator adds.
        """
        address = self.network.attach(name, group["template"]["metadata"]["labels"])
        if head is None:
            self.hosts[service(cluster)] = address
        spec = self._spec(name, group, address, cluster, head, extra)
        group_name = "headgroup" if head is None else group["groupName"]
        container = Container(spec, PREFIX + name, self.directory / name / "ray.log")
        pod = Pod(name, group_name, address, group["template"], container, is_head=head is None)
        pod.template = _with_probe(group["template"], is_head=head is None)
        return pod

    def sidecar(
        self, pod: Pod, name: str, command: str, environment: Mapping[str, str], files: Any, memory: int | None
    ) -> None:
        """Starts one more container in the pod's network, which shares /tmp with the first. `memory` is in bytes."""
        place = self.directory / pod.name
        mounts = {"/app/bin": str(_scripts(place)), "/tmp": str(place / "tmp"), **files}
        spec = Spec(
            name=pod.name,
            root=str(place / name),
            command=["/bin/bash", "-c", "--", command],
            directory="/app",
            environment={"PATH": PATH, "HOME": "/tmp", "PYTHONPATH": "/app", **SLOW_MACHINE, **environment},
            code=_code(),
            mounts=mounts,
            hosts=self.hosts,
            memory=memory,
        )
        pod.sidecars.append(Container(spec, PREFIX + pod.name, place / f"{name}.log"))

    def job(self, name: str, template: Mapping[str, Any]) -> Container:
        """Starts the pod of a Job."""
        self.network.attach(name, template["metadata"]["labels"])
        place, (container,) = self.directory / name, template["spec"]["containers"]
        mounts, fixed = manifest.mounts(template["spec"], container, self.data, self.claims, place / "volumes")
        spec = Spec(
            name=name,
            root=str(place / "root"),
            command=["/bin/bash", "-c", "--", shlex.join([*container["command"], *container["args"]])],
            directory=container["workingDir"],
            environment={"PATH": PATH, "HOME": "/tmp", **manifest.environment(container, self.data, {})},
            code=_code() | fixed,
            mounts=mounts,
            memory=manifest.memory(container),
        )
        return Container(spec, PREFIX + name, place / "job.log")

    def _spec(
        self, name: str, group: Mapping[str, Any], address: str, cluster: str, head: str | None, extra: Any
    ) -> Spec:
        place, container = self.directory / name, manifest.ray_container(group)
        (place / "tmp").mkdir(parents=True)
        (place / "tmp").chmod(0o1777)
        fields = {"metadata.name": name, "metadata.namespace": NAMESPACE, "status.podIP": address}
        options = {**SMALL, "node-ip-address": address}
        if head is None:
            options |= {"no-monitor": "true"}  # the autoscaler is a container of its own
            options |= {"redis-password": "$REDIS_PASSWORD"} if "REDIS_PASSWORD" in extra else {}
        command = manifest.ray_start(group, head=head, extra=options)
        mounts, fixed = manifest.mounts(group["template"]["spec"], container, self.data, self.claims, place / "volumes")
        environment = {
            "PATH": PATH,
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            **manifest.environment(container, self.data, fields),
            **SLOW_MACHINE,
            "POD_NAME": name,
            "RAY_CLUSTER_NAME": cluster,
            "RAY_CLUSTER_NAMESPACE": NAMESPACE,
            "RAY_CLOUD_INSTANCE_ID": name,
            "RAY_NODE_TYPE_NAME": "headgroup" if head is None else group["groupName"],
            "RAY_ADDRESS": f"{head or '127.0.0.1'}:6379",
            **extra,
        }
        return Spec(
            name=name,
            root=str(place / "root"),
            command=["/bin/bash", "-c", "--", command],
            directory="/app",
            environment=environment,
            code=_code() | fixed,
            mounts={
                "/app/bin": str(_scripts(place)),
                "/tmp": str(place / "tmp"),
                **mounts,
            },
            hosts={**self.hosts, name: address},
            setup=[["/app/.venv/bin/python", "-m", "deployments.haproxy", "/app/bin"]],
            memory=manifest.memory(container),
        )


def _code() -> dict[str, str]:
    """/app as the image has it."""
    return {f"/app/{name}": str((ROOT / name).resolve()) for name in CODE if (ROOT / name).exists()}


def _scripts(place: Path) -> Path:
    """The pod's own /app/bin, in which HAProxy's script will be, with the command `ray`."""
    scripts = place / "bin"
    scripts.mkdir(exist_ok=True)
    ray = scripts / "ray"
    ray.write_text('#!/bin/sh\nexec /app/.venv/bin/python -m ray.scripts.scripts "$@"\n')
    ray.chmod(0o755)
    return scripts


def service(cluster: str) -> str:
    """The name of the head's service."""
    return f"{cluster}-head-svc.{NAMESPACE}.svc.cluster.local"


class Kubelet:
    """Probes the pods for as long as it runs."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def watch(self, pod: Pod) -> None:
        """Keeps `pod.is_ready` up to date until the pod has ended."""
        thread = threading.Thread(target=self._watch, args=(pod,), daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """Probes no more."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _watch(self, pod: Pod) -> None:
        while not self._stop.wait(_PROBE_EVERY_S) and pod.deleted_at is None:
            with suppress(AssertionError):
                pod.probe()


def endpoints(pods: Sequence[Pod]) -> Iterator[Pod]:
    """The pods to which a Service sends traffic. It continues for a moment after a pod is deleted, until every node
    knows."""
    now = time.monotonic()
    return (pod for pod in pods if pod.is_ready and (pod.deleted_at is None or now < pod.deleted_at + NEWS_S))


_HEALTH = "wget --tries 1 -T {} -q -O- http://localhost:{} | grep success"


def _with_probe(template: Mapping[str, Any], *, is_head: bool) -> Mapping[str, Any]:
    """The template with the readiness probe that KubeRay adds to a worker of a RayService that has none."""
    container = manifest.ray_container({"template": template})
    if "readinessProbe" in container:
        return template
    commands = [_HEALTH.format(2, "52365/api/local_raylet_healthz")]
    if not is_head:
        commands.append(_HEALTH.format(10, "8000/-/healthz"))
    probe = {"exec": {"command": ["bash", "-c", " && ".join(commands)]}, "timeoutSeconds": 2}
    spec = template["spec"]
    return {
        **template,
        "spec": {**spec, "containers": [{**container, "readinessProbe": probe}, *spec["containers"][1:]]},
    }
