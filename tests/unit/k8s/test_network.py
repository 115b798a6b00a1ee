"""The ports that the overlays' network policies open, and the sources that may use them."""

from typing import Any

import pytest

from deployments.kubernetes.manifests import Manifest
from tests.support.kubernetes.network import ALL, STRANGE, destinations, open_ports
from tests.support.kubernetes.overlays import OVERLAYS, planted, ray_pods, rendered

OTHER = {"app.kubernetes.io/name": "other"}
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
OPERATOR = {"app.kubernetes.io/component": "kuberay-operator"}
OURS = {"app.kubernetes.io/name": "switchyard", "app.kubernetes.io/instance": "switchyard"}
RAY = {**OURS, "app.kubernetes.io/component": "router"}
NEIGHBOUR = {**RAY, "app.kubernetes.io/instance": "blue"}
REDIS = {"app.kubernetes.io/name": "switchyard-redis", "app.kubernetes.io/instance": "switchyard"}


def named(namespace: str) -> dict[str, str]:
    """The labels of a namespace."""
    return {"kubernetes.io/metadata.name": namespace}


def reached(manifests: list[Manifest], pod: dict[str, str], peer: dict[str, str], **namespace: Any) -> set[int | str]:
    return open_ports(
        [manifest for manifest in manifests if manifest["kind"] == "NetworkPolicy"], pod, peer, **namespace
    )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_other_pods_reach_only_the_ingress_of_routers(overlay: str) -> None:
    manifests = rendered(overlay)
    pods = {pod.where: pod.labels for pod in ray_pods(manifests)}
    assert len(pods) == 3
    for where, labels in pods.items():
        expected = {8000} if labels["app.kubernetes.io/component"] == "router" else set()
        assert reached(manifests, labels, OTHER) == expected
        assert reached(manifests, labels, OTHER, namespace=STRANGE) == expected
        assert reached(manifests, labels, RAY, namespace=STRANGE) == expected
        assert reached(manifests, labels, OPERATOR, namespace=named("kuberay")) == (
            {8265} if where == "head" else expected
        )
        assert reached(manifests, labels, OPERATOR, namespace=STRANGE) == expected
        assert reached(manifests, labels, RAY) == {ALL, *expected}
        assert reached(manifests, labels, NEIGHBOUR) == expected, "another release in the namespace"
        if overlay == "gpu":
            assert reached(manifests, labels, PROMETHEUS, namespace=named("monitoring")) == {8080, *expected}
            assert reached(manifests, labels, PROMETHEUS, namespace=STRANGE) == expected
    assert reached(manifests, REDIS, RAY) == {6379}
    assert reached(manifests, REDIS, OTHER) == reached(manifests, REDIS, NEIGHBOUR) == set()
    assert reached(manifests, REDIS, RAY, namespace=STRANGE) == set()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_engines_reach_only_rays_pods_and_dns(overlay: str) -> None:
    manifests = rendered(overlay)
    policies_of = [manifest for manifest in manifests if manifest["kind"] == "NetworkPolicy"]
    for pod in ray_pods(manifests):
        rules = destinations(policies_of, pod.labels)
        if pod.labels["app.kubernetes.io/component"] != "engine":
            assert rules is None
            continue
        assert rules is not None
        to_ray, names = rules
        assert to_ray == {"to": [{"podSelector": {"matchLabels": OURS}}]}
        assert {(port["port"], port["protocol"]) for port in names["ports"]} == {
            (port, protocol) for port in (53, 5353) for protocol in ("UDP", "TCP")
        }


def test_a_hole_in_the_policies_is_found() -> None:
    manifests = planted(
        "gpu", "NetworkPolicy", lambda policy: policy["spec"]["ingress"].append({}), "switchyard-operator"
    )
    assert ALL in reached(manifests, next(ray_pods(manifests)).labels, OTHER)
