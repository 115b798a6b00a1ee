"""Evaluates NetworkPolicies, for the selectors that ours use: labels and the operators In and Exists."""

from collections.abc import Mapping, Sequence
from typing import Any

ALL = "all"
"""In place of ports: every port."""

OWN = {"kubernetes.io/metadata.name": "switchyard"}
STRANGE = {"kubernetes.io/metadata.name": "strange"}
"""Labels of namespaces: ours, and another one."""


def open_ports(
    policies: Sequence[Mapping[str, Any]],
    pod: Mapping[str, str],
    peer: Mapping[str, str],
    namespace: Mapping[str, str] = OWN,
) -> set[int | str]:
    """The ports of a pod with the labels `pod` that a pod with the labels `peer` in `namespace` reaches.

    {ALL} if no policy selects the pod for ingress.
    """
    rules = sources(policies, pod)
    if rules is None:
        return {ALL}
    return {port for rule in rules if _admits(rule.get("from"), peer, namespace) for port in _ports(rule)}


def sources(policies: Sequence[Mapping[str, Any]], pod: Mapping[str, str]) -> list[Mapping[str, Any]] | None:
    """The rules for what reaches a pod; None if no policy restricts it."""
    return _rules(policies, pod, "Ingress")


def destinations(policies: Sequence[Mapping[str, Any]], pod: Mapping[str, str]) -> list[Mapping[str, Any]] | None:
    """The rules for what a pod may reach itself; None if no policy restricts it."""
    return _rules(policies, pod, "Egress")


def is_peer(peer: Mapping[str, Any], labels: Mapping[str, str], namespace: Mapping[str, str]) -> bool:
    """Whether a rule's peer, which is no `ipBlock`, means a pod with these labels in a namespace with those."""
    if "namespaceSelector" in peer:
        if not _matches(peer["namespaceSelector"], namespace):
            return False
    elif namespace != OWN:
        return False
    return _matches(peer.get("podSelector", {}), labels)


def _rules(
    policies: Sequence[Mapping[str, Any]], pod: Mapping[str, str], direction: str
) -> list[Mapping[str, Any]] | None:
    specs = [policy["spec"] for policy in policies if _matches(policy["spec"]["podSelector"], pod)]
    specs = [spec for spec in specs if direction in spec["policyTypes"]]
    return [rule for spec in specs for rule in spec.get(direction.lower()) or []] if specs else None


def _ports(rule: Mapping[str, Any]) -> set[int | str]:
    if not rule.get("ports"):
        return {ALL}
    return {port for entry in rule["ports"] for port in range(entry["port"], entry.get("endPort", entry["port"]) + 1)}


def _admits(peers: Any, labels: Mapping[str, str], namespace: Mapping[str, str]) -> bool:
    if not peers:
        return True
    return any(is_peer(peer, labels, namespace) for peer in peers)


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for rule in selector.get("matchExpressions", []):
        if rule["operator"] == "Exists":
            fits = rule["key"] in labels
        elif rule["operator"] == "In":
            fits = labels.get(rule["key"]) in rule["values"]
        else:
            raise ValueError(rule["operator"])
        if not fits:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())
