"""The ports that another application's pod reaches on the pod network."""

import http.client
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import BLUE, ROUTERS, served
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab
from tests.support.cluster.network import PREFIX, joined
from tests.support.cluster.ports import Place, accepting, listening

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

INGRESS, DASHBOARD, GCS = 8000, 8265, 6379


def answer(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, INGRESS, timeout=20)
    connection.request("GET", path)
    response = connection.getresponse()
    answered = response.status, response.read().decode()
    connection.close()
    return answered


@pytest.fixture
def stranger(the_lab: Lab) -> Iterator[str]:
    """The namespace of another application's pod."""
    the_lab.network.attach("stranger", {"app.kubernetes.io/name": "something-else"})
    yield f"{PREFIX}stranger"
    the_lab.network.detach("stranger")


def test_another_pod_reaches_only_the_ingress(cluster: Cluster, the_lab: Lab, stranger: str, figures: Figures) -> None:
    cluster.apply(served(the_lab, min_replicas=1, max_replicas=2))
    cluster.until(lambda: bool(cluster.replicas(BLUE)), cluster.serve.messages)
    head, (router, *_) = cluster.kuberay.head, cluster.kuberay.of(ROUTERS)
    entrances = {pod.name for pod in cluster.kuberay.of(ROUTERS)}
    closed = set()
    for pod in cluster.kuberay.pods:
        places = {Place(pod.address, port) for port in listening(pod.container.pid)}
        beside = router if pod.is_head else head
        assert accepting(PREFIX + beside.name, places) == places, "only a policy keeps strangers out"
        opened = accepting(stranger, places)
        # A node without replicas has no ingress.
        assert opened == ({Place(pod.address, INGRESS)} & places if pod.name in entrances else set())
        closed |= {place.port for place in places - opened}
        if pod.is_head:
            assert {DASHBOARD, GCS} <= closed
    redis = Place(the_lab.image.hosts[f"{the_lab.name}-redis"], GCS)
    assert accepting(PREFIX + router.name, [redis]) == {redis}
    assert accepting(stranger, [redis]) == set()
    assert answer(router.address, "/v1/models")[0] == 401
    assert answer(router.address, f"/deployments/{BLUE}/health")[0] == 401
    assert answer(router.address, "/-/routes")[0] == answer(router.address, "/-/healthz")[0] == 404
    figures.add(
        "A pod of another application",
        f"of {len(closed) + 1} listening ports packets pass to {INGRESS} of routers, which asks for a key; on all "
        f"others they are dropped, among them {DASHBOARD}, {GCS}, Redis' and the replicas' own",
    )


def test_the_dashboard_requires_the_token_from_ray_pods_too(cluster: Cluster) -> None:
    with joined(PREFIX + cluster.kuberay.of(ROUTERS)[0].name):
        connection = http.client.HTTPConnection(cluster.kuberay.head.address, DASHBOARD, timeout=20)
        connection.request("GET", "/api/serve/applications/")
        assert connection.getresponse().status in (401, 403)
        connection.close()
    assert cluster.serve.statuses()
