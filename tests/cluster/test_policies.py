"""The chart's NetworkPolicies as packets meet them: pods of every kind, without their programs, try all ports of each
other."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.cluster import manifest
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Lab
from tests.support.cluster.network import PREFIX
from tests.support.cluster.ports import Place, accepting, answering
from tests.support.kubernetes.network import OWN
from tests.support.kubernetes.overlays import pods, rendered

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CROWD = "crowd-"
"""The prefix of these pods' names."""

RAY = ("head", "router", "engine")
INGRESS, DASHBOARD, REDIS, METRICS, DNS = 8000, 8265, 6379, 8080, (53, 5353)
PORTS = [("TCP", port) for port in (*DNS, REDIS, INGRESS, METRICS, DASHBOARD, 30000)] + [("UDP", port) for port in DNS]
"""6379 is Redis' on Redis, and the GCS' on the head; 30000 is a replica's own."""

Flow = tuple[str, str, str, int]
"""From which pod to which pod, with which protocol to which port."""


def of(namespace: str) -> dict[str, str]:
    return {"kubernetes.io/metadata.name": namespace}


OTHERS: Mapping[str, tuple[dict[str, str], dict[str, str]]] = {
    "stranger": ({"app.kubernetes.io/name": "something-else"}, OWN),
    "operator": ({"app.kubernetes.io/component": "kuberay-operator"}, of("kuberay")),
    "impostor": ({"app.kubernetes.io/component": "kuberay-operator"}, of("strange")),
    "prometheus": ({"app.kubernetes.io/name": "prometheus"}, of("monitoring")),
    "kube-dns": ({"k8s-app": "kube-dns"}, of("kube-system")),
}
"""Pods that are not the chart's: their labels and their namespaces'. No policy selects them."""


def is_allowed(flow: Flow) -> bool:
    """What docs/operate/cluster.md promises."""
    source, target, protocol, port = flow
    if source == "engine" and target not in RAY:
        return target == "kube-dns" and port in DNS
    if source == "redis":
        return False
    if target == "redis":
        return source in RAY and (protocol, port) == ("TCP", REDIS)
    if target not in RAY or source in RAY:
        return True
    opened = {
        "head": {DASHBOARD} if source == "operator" else set(),
        "router": {INGRESS},
        "engine": set(),
    }[target] | ({METRICS} if source == "prometheus" else set())
    return protocol == "TCP" and port in opened


def kind(labels: Mapping[str, str]) -> str:
    """`head`, `router`, `engine`, `redis` or `weights`."""
    name = labels["app.kubernetes.io/name"].removeprefix("switchyard-")
    return labels.get("app.kubernetes.io/component", name)


@dataclass(frozen=True)
class Crowd:
    """A pod of each kind on the lab's network: names to addresses."""

    lab: Lab
    addresses: Mapping[str, str]

    def flows(self, policies: Sequence[Any], sources: Iterable[str]) -> set[Flow]:
        """All from these pods that pass while these policies apply."""
        self.lab.network.enforce(self.lab.name, policies)
        names = {address: name for name, address in self.addresses.items()}
        found = set()
        for source in sources:
            places = [
                Place(name, port, protocol) for name in names for protocol, port in PORTS if names[name] != source
            ]
            for place in accepting(PREFIX + CROWD + source, places):
                found.add((source, names[place.address], place.protocol, place.port))
        return found


@pytest.fixture(scope="module")
def policies() -> list[Any]:
    return list(manifest.of_kind(rendered("gpu"), "NetworkPolicy"))


@pytest.fixture(scope="module")
def crowd(the_lab: Lab) -> Iterator[Crowd]:
    ours = {kind(pod.labels): (pod.labels, OWN) for pod in pods(rendered("gpu"))}
    everyone = {**ours, **OTHERS}
    addresses = {}
    try:
        for name, (labels, namespace) in everyone.items():
            addresses[name] = the_lab.network.attach(CROWD + name, labels, namespace)
        with answering({PREFIX + CROWD + name: PORTS for name in everyone}):
            yield Crowd(the_lab, addresses)
    finally:
        for name in addresses:
            the_lab.network.detach(CROWD + name)
        the_lab.network.enforce(the_lab.name, list(manifest.of_kind(the_lab.objects, "NetworkPolicy")))


def wanted(crowd: Crowd, sources: Iterable[str]) -> set[Flow]:
    pairs = [(source, target) for source in sources for target in crowd.addresses if source != target]
    return {flow for pair in pairs for port in PORTS if is_allowed(flow := (*pair, *port))}


def test_packets_pass_as_promised_and_all_others_are_dropped(
    crowd: Crowd, policies: list[Any], figures: Figures
) -> None:
    passed = crowd.flows(policies, crowd.addresses)
    assert sorted(passed ^ wanted(crowd, crowd.addresses)) == []
    kinds = len(crowd.addresses)
    figures.add(
        f"Packets between pods of {kinds} kinds, with the chart's NetworkPolicies",
        f"of {kinds * (kinds - 1) * len(PORTS)} ways {len(passed)} are open, as docs/operate/cluster.md says, "
        "and on all others packets are dropped",
    )


@pytest.mark.parametrize(
    ("name", "change", "closed"),
    [
        ("switchyard-clients", lambda spec: spec["ingress"].clear(), ("stranger", "router", "TCP", INGRESS)),
        ("switchyard-operator", lambda spec: spec["ingress"].clear(), ("operator", "head", "TCP", DASHBOARD)),
        (
            "switchyard-redis",
            lambda spec: spec["ingress"][0]["ports"][0].update(port=1),
            ("head", "redis", "TCP", REDIS),
        ),
        ("switchyard-engines", lambda spec: spec["egress"][1]["ports"].pop(0), ("engine", "kube-dns", "UDP", 53)),
        ("switchyard-engines", lambda spec: spec["egress"].pop(0), ("engine", "head", "TCP", REDIS)),
        ("switchyard-monitoring", lambda spec: spec["ingress"].clear(), ("prometheus", "engine", "TCP", METRICS)),
    ],
)
def test_a_port_that_a_policy_lacks_is_missed(
    crowd: Crowd, policies: list[Any], name: str, change: Callable[[Any], object], closed: Flow
) -> None:
    planted = copy.deepcopy(policies)
    change(next(policy for policy in planted if policy["metadata"]["name"] == name)["spec"])
    missed = wanted(crowd, closed[:1]) - crowd.flows(planted, closed[:1])
    assert closed in missed


def test_a_policy_that_is_missing_is_noticed(crowd: Crowd, policies: list[Any]) -> None:
    """Without its policy, everyone reaches Redis."""
    without = [policy for policy in policies if policy["metadata"]["name"] != "switchyard-redis"]
    passed = crowd.flows(without, ["stranger"])
    assert ("stranger", "redis", "TCP", REDIS) in passed - wanted(crowd, ["stranger"])
