"""Does what the KubeRay operator and the kubelet do for one RayCluster, with the real autoscaler next to the head.

As in KubeRay 1.7 (`raycluster_controller.go`): a pod that is being deleted still counts as one of its group, until it
is gone, unless the autoscaler named it.
"""

import copy
import itertools
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.cluster import manifest
from tests.support.cluster.kubernetes_api import PORT, RayClusterStore
from tests.support.cluster.network import CLIENT_ADDRESS
from tests.support.cluster.pods import NAMESPACE, Image, Kubelet, Pod, endpoints, service

_RECONCILE_EVERY_S = 0.5
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class KubeRay:
    """One running RayCluster. `port`: the name of the pods' port to which the application's Service leads."""

    def __init__(
        self, store: RayClusterStore, image: Image, certificate: Path, *, token: str | None, port: str
    ) -> None:
        self.name: str = store.cluster["metadata"]["name"]
        self.store, self.token = store, token
        self._image, self._certificate, self._port = image, certificate, port
        self._pods: list[Pod] = []
        self._serial = itertools.count(1)
        self._kubelet, self._stop = Kubelet(), threading.Event()
        self._hold_head = False
        store.pods = lambda: [pod.status(self.name) for pod in self.pods]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: Exception | None = None

    @property
    def pods(self) -> list[Pod]:
        """The pods that exist, including ending ones."""
        with self.store.lock:
            return list(self._pods)

    @property
    def head(self) -> Pod:
        """The head's pod."""
        return next(pod for pod in self.pods if pod.is_head)

    def of(self, group: str) -> list[Pod]:
        """The pods of a group that have not been deleted."""
        return [pod for pod in self.pods if pod.group == group and pod.deleted_at is None and pod.lost_at is None]

    def endpoints(self) -> list[str]:
        """The addresses behind the Service of the application: ready workers with the port that it names, not the
        head."""
        return [pod.address for pod in endpoints(self.pods) if not pod.is_head and self._port in pod.ports]

    def start(self) -> None:
        """Starts the head, and all others as soon as it is ready."""
        self._add(self._spec["headGroupSpec"], head=None)
        self._thread.start()

    def lose(self, pod: Pod) -> None:
        """The pod's machine loses power: its packets stop without notice, and so do its processes.

        The API still lists the pod, since its end cannot be reported.
        """
        self._image.network.cut(pod.address)
        pod.lost_at = time.monotonic()
        pod.kill()

    def remove_node(self, pod: Pod) -> None:
        """Does what the cloud does with a lost machine: its object is removed, and the pod's with it."""
        assert pod.lost_at is not None
        if pod in self.pods:
            self._remove(pod)

    def crash_head(self) -> None:
        """SIGKILL to the head's container. It stays away until `restart_head`."""
        self._hold_head = True
        self.head.container.kill()

    def restart_head(self) -> None:
        """Does what the kubelet does after a crash."""
        self.head.container.restart()
        self._hold_head = False

    def delete(self) -> None:
        """Deletes the RayCluster: every pod gets its SIGTERM at once."""
        self._stop.set()
        self._thread.join()
        for pod in self.pods:
            pod.delete()

    def forget_ended(self) -> None:
        """Removes the pods that have ended, and kills those whose grace period is over."""
        for pod in self.pods:
            overdue = pod.deleted_at is not None and time.monotonic() > pod.deleted_at + pod.grace_s
            if overdue:
                pod.kill()
            for container in (pod.container, *pod.sidecars):
                container.end_over_memory()
            if pod.container.has_ended and pod.lost_at is None and not (pod.is_head and pod.deleted_at is None):
                self._remove(pod)

    def close(self) -> None:
        """Kills the remaining containers."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._kubelet.stop()
        for pod in self.pods:
            with suppress(AssertionError):
                self._remove(pod)

    @property
    def _spec(self) -> Any:
        return self.store.cluster["spec"]

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and not self._head_is_up():
                self._stop.wait(_RECONCILE_EVERY_S)
            if self._spec.get("enableInTreeAutoscaling") and not self._stop.is_set():
                self._start_autoscaler()
            while not self._stop.wait(_RECONCILE_EVERY_S):
                self._reconcile()
        except Exception as error:  # noqa: BLE001
            self.failure = error  # for the test that waits for the cluster

    def _head_is_up(self) -> bool:
        log = self.head.container.log.read_text()
        assert not self.head.container.has_ended, log
        return "Running subprocesses" in log

    def _reconcile(self) -> None:
        self.forget_ended()
        head = self.head
        for container in head.sidecars if self._hold_head else (head.container, *head.sidecars):
            if container.has_ended:
                container.restart()
        for group in self._spec["workerGroupSpecs"]:
            doomed = group.get("scaleStrategy", {}).get("workersToDelete", [])
            for pod in self.pods:
                if pod.name in doomed:
                    pod.delete()
            running = [pod for pod in self.pods if pod.group == group["groupName"] and pod.name not in doomed]
            for _ in range(max(group.get("replicas", 1), group["minReplicas"]) - len(running)):
                self._add(group, head=service(self.name))

    def _add(self, group: Mapping[str, Any], *, head: str | None) -> None:
        kind = "head" if head is None else group["groupName"]
        name = f"{self.name}-{kind}-{next(self._serial)}"
        pod = self._image.start(name, group, cluster=self.name, head=head, extra=self._environment(head is None))
        with self.store.lock:
            self._pods.append(pod)
        self._kubelet.watch(pod)

    def _remove(self, pod: Pod) -> None:
        pod.remove()
        with self.store.lock:
            self._pods.remove(pod)
        self._image.network.detach(pod.name)

    def _environment(self, is_head: bool) -> dict[str, str]:
        """What KubeRay adds for fault tolerance and for the autoscaler's second version."""
        variables = {"RAY_timeout_ms_task_wait_for_death_info": "0", "RAY_gcs_server_request_timeout_seconds": "5"}
        variables["RAY_SERVE_KV_TIMEOUT_S"] = "5"
        if self.token is not None:
            variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        if self._spec.get("autoscalerOptions", {}).get("version", "v2") == "v2":
            variables["RAY_enable_autoscaler_v2"] = "1"
        tolerance = self._spec.get("gcsFaultToleranceOptions")
        if tolerance and is_head:
            variables |= {"RAY_REDIS_ADDRESS": tolerance["redisAddress"], "RAY_external_storage_namespace": self.name}
            password = tolerance.get("redisPassword", {})
            variables |= {"REDIS_PASSWORD": self._value(password)} if password else {}
        elif tolerance:
            variables["RAY_gcs_rpc_server_reconnect_timeout_s"] = "600"
        return variables

    def _value(self, source: Mapping[str, Any]) -> str:
        if "value" in source:
            return str(source["value"])
        reference = source["valueFrom"]["secretKeyRef"]
        return str(self._image.data[reference["name"]][reference["key"]])

    def _start_autoscaler(self) -> None:
        head = self.head
        account = self._image.directory / head.name / "account"
        account.mkdir()
        (account / "token").write_text("lab")  # a token with a newline would break the header
        (account / "ca.crt").write_bytes(self._certificate.read_bytes())
        options = self._spec.get("autoscalerOptions", {})
        environment = {
            **self._environment(is_head=False),
            "KUBERNETES_SERVICE_HOST": CLIENT_ADDRESS,
            "KUBERNETES_SERVICE_PORT_HTTPS": str(PORT),
            "RAY_HEAD_POD_NAME": head.name,
            "RAY_CLUSTER_NAME": self.name,
            "KUBERAY_CRD_VER": "v1",
            **{variable["name"]: variable["value"] for variable in options.get("env", []) if "value" in variable},
        }
        command = f"ray kuberay-autoscaler --cluster-name {self.name} --cluster-namespace {NAMESPACE}"
        command += f" --gcs-address {head.address}:6379"
        self._image.sidecar(
            head, "autoscaler", command, environment, {_ACCOUNT: str(account)}, manifest.memory(options)
        )


def raycluster(service_object: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The RayCluster that KubeRay makes for a RayService."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": copy.deepcopy(service_object["spec"]["rayClusterConfig"]),
    }
