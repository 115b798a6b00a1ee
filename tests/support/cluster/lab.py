"""The lab: the objects of the chart, running on a pod network of this machine."""

import http.client
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.access.keys import create
from app.internal_api import INTERNAL_KEY_HEADER, ROUTER
from app.internal_keys import Purpose, derived
from deployments.cli.keys import internal_keys
from deployments.kubernetes.manifests import Manifest
from tests.support.cluster import manifest
from tests.support.cluster.clients import Client
from tests.support.cluster.container import Container
from tests.support.cluster.kuberay import KubeRay, raycluster
from tests.support.cluster.kubernetes_api import RayClusterStore, kubernetes_api
from tests.support.cluster.network import CLIENT_ADDRESS, PREFIX, Network, joined, network
from tests.support.cluster.pods import Image
from tests.support.cluster.serve_api import Replica, ServeApi
from tests.support.kubernetes import schemas

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

    def opens(self, master: str, application: str) -> bool:
        """Whether the application's engines serve requests with the key that follows from this master."""
        connection = http.client.HTTPConnection(self.kuberay.endpoints()[-1], 8000, timeout=20)
        key = derived(master, Purpose.ENGINE)
        connection.request("GET", f"/deployments/{application}/health", headers={INTERNAL_KEY_HEADER: key})
        status = connection.getresponse().status
        connection.close()
        assert status in (200, 401), status
        return status == 200

    def until(self, condition: Callable[[], bool], state: Callable[[], object], within_s: float = UP_WITHIN_S) -> float:
        """Waits for `condition` and returns the time that this took, in seconds. Fails with `state()`."""
        begun = time.monotonic()
        while not condition():
            if self.kuberay.failure is not None:
                raise self.kuberay.failure
            assert time.monotonic() < begun + within_s, state()
            time.sleep(0.2)
        return time.monotonic() - begun


@dataclass(frozen=True)
class Kubernetes:
    """What releases share: the network, the API with its RayClusters by name, and a directory for their files."""

    network: Network
    directory: Path
    stores: dict[str, RayClusterStore]
    certificate: Path
    hosts: dict[str, str] = field(default_factory=dict)
    """The names of Services and their addresses: in a namespace, every release's."""


class Lab:
    """One release of the chart: its objects, Secrets and Redis, for one Ray cluster or several. `key` is a caller's."""

    def __init__(self, kubernetes: Kubernetes, objects: list[Any], image: Image, key: str) -> None:
        self.kubernetes, self.network = kubernetes, kubernetes.network
        self.objects, self.image, self.key = objects, image, key

    @property
    def name(self) -> str:
        """The release's."""
        return _name(self.objects)

    @property
    def internal_key(self) -> str:
        """The master that pods get which start now."""
        return str(self.image.data[self.name]["internal-key"])

    def use_internal_keys(self, *masters: str) -> None:
        """Changes the Secret, for pods that start from now on."""
        self.image.data[self.name] |= _internal_keys(*masters)

    def beside(self, objects: list[Manifest]) -> AbstractContextManager["Lab"]:
        """Another release in the same namespace."""
        return _installed(self.kubernetes, objects)

    def service_object(self) -> Any:
        """The overlay's RayService."""
        return next(manifest.of_kind(self.objects, "RayService"))

    @contextmanager
    def cluster(self, name: str, change: Callable[[dict[str, Any]], None]) -> Iterator[Cluster]:
        """A RayCluster as KubeRay makes it from the overlay, after `change` to its object. It serves nothing yet."""
        made = raycluster(self.service_object(), name)
        change(made)
        store = self.kubernetes.stores[name] = RayClusterStore(made, self._problems)
        token = secrets.token_hex(16) if made["spec"].get("authOptions", {}).get("mode") == "token" else None
        (port,) = self.service_object()["spec"]["serveService"]["spec"]["ports"]
        kuberay = KubeRay(store, self.image, self.kubernetes.certificate, token=token, port=port["targetPort"])
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

    @contextmanager
    def job(self) -> Iterator[Container]:
        """The pod of the Job that fetches the weights, once."""
        (job,) = manifest.of_kind(self.objects, "Job")
        container = self.image.job(job["metadata"]["name"], job["spec"]["template"])
        try:
            yield container
        finally:
            container.remove()
            self.network.detach(job["metadata"]["name"])

    def logs(self) -> str:
        """All that Ray's processes have logged so far."""
        files = sorted(self.image.directory.glob("*/volumes/tmp/ray/session_*/logs/**/*"))
        return "\n".join(file.read_text(errors="replace") for file in files if file.is_file() and not file.is_symlink())

    def _problems(self, raycluster_object: Mapping[str, Any]) -> list[str]:
        """The schema's problems with a RayCluster; a RayService contains the same fields."""
        service = self.service_object()
        spec = {**service["spec"], "rayClusterConfig": raycluster_object["spec"]}
        return list(schemas.problems({**service, "spec": spec}))


@contextmanager
def lab(objects: list[Manifest], directory: Path) -> Iterator[Lab]:
    """The lab without a cluster. While the block runs, this thread and those that it starts are on the pod network."""
    with ExitStack() as stack:
        net = stack.enter_context(network())
        stack.enter_context(joined(net.client))
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # otherwise it ends without a clean-up
        stack.callback(signal.signal, signal.SIGTERM, before)
        stores: dict[str, RayClusterStore] = {}
        certificate = stack.enter_context(kubernetes_api(CLIENT_ADDRESS, stores, directory))
        yield stack.enter_context(_installed(Kubernetes(net, directory, stores, certificate), objects))


@contextmanager
def _installed(kubernetes: Kubernetes, objects: list[Manifest]) -> Iterator[Lab]:
    name, password = _name(objects), secrets.token_hex(16)
    key, record = create("lab")
    net = kubernetes.network
    net.enforce(name, list(manifest.of_kind(objects, "NetworkPolicy")))
    (redis,) = manifest.of_kind(objects, "StatefulSet")
    service, labels = redis["spec"]["serviceName"], redis["spec"]["template"]["metadata"]["labels"]
    with _redis(net, service, labels, password) as address:
        others = {"unit-secret": secrets.token_hex(16), "redis-password": password}
        data = {
            **manifest.stored(objects),
            name: {**_internal_keys(secrets.token_hex(16)), **others},
            f"{name}-keys": {"keys.yaml": record.line},
        }
        place = kubernetes.directory / name
        place.mkdir()
        kubernetes.hosts[service] = address
        image = Image(net, place, kubernetes.directory / "claims", data, kubernetes.hosts)
        try:
            yield Lab(kubernetes, objects, image, key)
        finally:
            net.enforce(name, [])


def _name(objects: list[Any]) -> str:
    """The release's name. Its Secrets are those that the chart names by default."""
    return str(next(manifest.of_kind(objects, "RayService"))["metadata"]["name"])


def _internal_keys(*masters: str) -> dict[str, str]:
    """The entries of the Secret, as `switchyard keys internal` prints them."""
    return dict(line.split("=", 1) for line in internal_keys(",".join(masters)))


@contextmanager
def _redis(net: Network, name: str, labels: Mapping[str, str], password: str) -> Iterator[str]:
    """A Redis server on its own address."""
    binary = Path(sys.executable).parent / "redis-server"
    address = net.attach(name, labels)
    options = ["--bind", "0.0.0.0", "--requirepass", password, "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(
        ["ip", "netns", "exec", f"{PREFIX}{name}", str(binary), *options], stdout=subprocess.DEVNULL
    )
    try:
        yield address
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
