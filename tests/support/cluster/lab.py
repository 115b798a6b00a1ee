"""The lab: the objects of the chart, running on a pod network of this machine."""

import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.access.keys import create
from app.internal_api import ROUTER
from app.internal_keys import Purpose, derived
from deployments.kubernetes.manifests import Manifest
from deployments.weights.cache import default_cache
from tests.support.cluster import manifest
from tests.support.cluster.clients import Client
from tests.support.cluster.kuberay import KubeRay, raycluster
from tests.support.cluster.kubernetes_api import RayClusterStore, kubernetes_api
from tests.support.cluster.network import CLIENT_ADDRESS, PREFIX, Network, joined, network
from tests.support.cluster.pods import Image
from tests.support.cluster.serve_api import Replica, ServeApi
from tests.support.kubernetes import schemas

REDIS, SECRET, KEYS = "switchyard-redis", "switchyard", "switchyard-keys"
"""Names in the chart: the Service of Redis, the Secret with the passwords, the Secret with the keys file."""

WEIGHTS = "switchyard-weights"
"""The chart's claim for the models."""

UP_WITHIN_S = 420.0


@dataclass
class Cluster:
    """One Ray cluster with the application. `document` is its configuration, without a test's changes."""

    kuberay: KubeRay
    serve: ServeApi
    client: Client
    document: dict[str, Any]

    def apply(self, document: Mapping[str, Any]) -> None:
        """Deploys a configuration, and waits until everything runs."""
        self.serve.put(document)
        self.runs()

    def runs(self, within_s: float = UP_WITHIN_S) -> None:
        """Waits until all applications run and some router's node is ready."""

        def everything() -> bool:
            statuses = self.serve.statuses().values()
            return bool(statuses) and set(statuses) == {"RUNNING"} and bool(self.kuberay.endpoints())

        self.until(everything, self.serve.messages, within_s)

    def replicas(self, application: str) -> dict[str, Replica]:
        """The running replicas of the application by id."""
        return {replica.id: replica for replica in self.serve.replicas(application)}

    def routers(self) -> dict[str, Replica]:
        """The running routers."""
        return self.replicas(ROUTER)

    def until(self, condition: Callable[[], bool], state: Callable[[], object], within_s: float = UP_WITHIN_S) -> float:
        """Waits for `condition` and returns the time that this took, in seconds. Fails with `state()`."""
        begun = time.monotonic()
        while not condition():
            if self.kuberay.failure is not None:
                raise self.kuberay.failure
            assert time.monotonic() < begun + within_s, state()
            time.sleep(0.2)
        return time.monotonic() - begun


class Lab:
    """The network and the parts that several clusters share: the image, Redis, the Kubernetes API."""

    def __init__(self, net: Network, objects: list[Any], key: str) -> None:
        self.network = net
        self.objects = objects
        self.key = key
        self.image: Image
        self.certificate: Path
        self.stores: dict[str, RayClusterStore] = {}

    def service_object(self) -> Any:
        """The overlay's RayService."""
        return next(manifest.of_kind(self.objects, "RayService"))

    @contextmanager
    def cluster(self, name: str, change: Callable[[dict[str, Any]], None]) -> Iterator[Cluster]:
        """A RayCluster as KubeRay makes it from the overlay, after `change` to its object. It serves nothing yet."""
        made = raycluster(self.service_object(), name)
        change(made)
        self.stores[name] = RayClusterStore(made, self._problems)
        token = secrets.token_hex(16) if made["spec"].get("authOptions", {}).get("mode") == "token" else None
        kuberay = KubeRay(self.stores[name], self.image, self.certificate, token=token)
        try:
            kuberay.start()
            cluster = Cluster(kuberay, ServeApi(kuberay.head.address, token), Client(kuberay.endpoints, self.key), {})
            groups = made["spec"]["workerGroupSpecs"]
            wanted = sum(group.get("replicas", 0) for group in groups)
            cluster.until(
                lambda: len(kuberay.pods) > wanted, lambda: kuberay.head.container.log.read_text(), UP_WITHIN_S
            )
            yield cluster
        finally:
            kuberay.close()

    def _problems(self, raycluster_object: Mapping[str, Any]) -> list[str]:
        """The schema's problems with a RayCluster; a RayService contains the same fields."""
        service = self.service_object()
        spec = {**service["spec"], "rayClusterConfig": raycluster_object["spec"]}
        return list(schemas.problems({**service, "spec": spec}))


@contextmanager
def lab(objects: list[Manifest], directory: Path) -> Iterator[Lab]:
    """The lab without a cluster. While the block runs, this thread and those that it starts are on the pod network."""
    internal_key, password = secrets.token_hex(16), secrets.token_hex(16)
    internal = {"internal-key": internal_key, "engine-key": derived(internal_key, Purpose.ENGINE)}
    key, record = create("lab")
    with ExitStack() as stack:
        net = stack.enter_context(network())
        stack.enter_context(joined(net.client))
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # otherwise it ends without a clean-up
        stack.callback(signal.signal, signal.SIGTERM, before)
        net.enforce(list(manifest.of_kind(objects, "NetworkPolicy")))
        (redis,) = manifest.of_kind(objects, "StatefulSet")
        hosts = {REDIS: stack.enter_context(_redis(net, redis["spec"]["template"]["metadata"]["labels"], password))}
        data = {
            **manifest.stored(objects),
            SECRET: {**internal, "unit-secret": secrets.token_hex(16), "redis-password": password},
            KEYS: {"keys.yaml": record.line},
        }
        (directory / "claims").mkdir()
        (directory / "claims" / WEIGHTS).symlink_to(default_cache())
        made = Lab(net, objects, key)
        made.image = Image(net, directory, data, hosts)
        made.certificate = stack.enter_context(kubernetes_api(CLIENT_ADDRESS, made.stores, directory))
        yield made


@contextmanager
def _redis(net: Network, labels: Mapping[str, str], password: str) -> Iterator[str]:
    """A Redis server on its own address."""
    binary = Path(sys.executable).parent / "redis-server"
    address = net.attach("redis", labels)
    options = ["--bind", "0.0.0.0", "--requirepass", password, "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(
        ["ip", "netns", "exec", f"{PREFIX}redis", str(binary), *options], stdout=subprocess.DEVNULL
    )
    try:
        yield address
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
