"""The ports that another application's pod reaches on the pod network."""

import http.client
from collections.abc import Mapping, Sequence

import pytest

from tests.cluster.conftest import BLUE, ENGINES, ROUTERS, served
from tests.support.cluster import manifest
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab
from tests.support.cluster.ports import accepts, listening
from tests.support.kubernetes.network import ALL, STRANGE, open_ports

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

STRANGER = {"app.kubernetes.io/name": "something-else"}
INGRESS, DASHBOARD, GCS = 8000, 8265, 6379


def answer(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, INGRESS, timeout=20)
    connection.request("GET", path)
    response = connection.getresponse()
    found = response.status, response.read().decode()
    connection.close()
    return found


def labels(template: Mapping[str, Mapping[str, Mapping[str, str]]]) -> Mapping[str, str]:
    return template["metadata"]["labels"]


def test_another_pod_reaches_only_the_ingress(cluster: Cluster, the_lab: Lab, figures: Figures) -> None:
    cluster.apply(served(the_lab, min_replicas=1, max_replicas=2))
    cluster.until(lambda: bool(cluster.replicas(BLUE)), cluster.serve.messages)
    policies: Sequence[Mapping[str, object]] = list(manifest.of_kind(the_lab.objects, "NetworkPolicy"))
    closed = set()
    for pod in cluster.kuberay.pods:
        open_here = listening(pod.container.pid)
        assert all(accepts(pod.address, port) for port in open_here), "only a policy keeps strangers out"
        allowed = open_ports(policies, labels(pod.template), STRANGER, STRANGE)
        assert ALL not in allowed
        assert allowed & open_here == (set() if pod.is_head else {INGRESS})
        assert open_ports(policies, labels(pod.template), labels(pod.template)) >= {ALL}
        closed |= open_here - allowed
        if pod.is_head:
            assert {DASHBOARD, GCS} <= open_here
    for group in (ROUTERS, ENGINES):
        address = cluster.kuberay.of(group)[0].address
        assert answer(address, "/v1/models")[0] == 401
        assert answer(address, f"/deployments/{BLUE}/health")[0] == 401
        assert answer(address, "/-/routes")[0] == answer(address, "/-/healthz")[0] == 404
    figures.add(
        "A pod of another application",
        f"of {len(closed) + 1} listening ports the NetworkPolicies leave {INGRESS} of routers and engines "
        f"open, which asks for a key; closed are, among others, {DASHBOARD}, {GCS} and the replicas' own",
    )


def test_the_dashboard_requires_the_token_from_ray_pods_too(cluster: Cluster) -> None:
    connection = http.client.HTTPConnection(cluster.kuberay.head.address, DASHBOARD, timeout=20)
    connection.request("GET", "/api/serve/applications/")
    assert connection.getresponse().status in (401, 403)
    connection.close()
    assert cluster.serve.statuses()
