"""NetworkPolicies as rules for packets: what a network plugin loads into the namespace of a pod, for `nft -f`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.kubernetes.network import OWN, destinations, is_peer, sources

TABLE = "pod"


@dataclass(frozen=True)
class Member:
    """A pod of the network; `namespace` are the labels of its namespace."""

    address: str
    labels: Mapping[str, str]
    namespace: Mapping[str, str] = field(default_factory=lambda: OWN)


def ruleset(policies: Sequence[Mapping[str, Any]], pod: Member, members: Sequence[Member], node: str) -> str:
    """The rules of one pod, which take the place of those that it has. `node` is the address of the pods' machine, from
    which the kubelet probes: no policy applies to it.
    """
    ingress, egress = sources(policies, pod.labels), destinations(policies, pod.labels)
    accepted = [f"ip saddr {node} accept", *_accepted(ingress or [], "from", "saddr", members)]
    sent = _accepted(egress or [], "to", "daddr", members)
    chains = _chain("input", "iif", ingress, accepted), _chain("output", "oif", egress, sent)
    return "\n".join([f"table inet {TABLE} {{}}", f"delete table inet {TABLE}", f"table inet {TABLE} {{", *chains, "}"])


def _chain(hook: str, interface: str, rules: Sequence[Any] | None, lines: Iterator[str] | Sequence[str]) -> str:
    """A chain that drops what no line accepts, or nothing if no policy selects the pod."""
    verdict = "accept" if rules is None else "drop"
    begin = [f"type filter hook {hook} priority 0; policy {verdict};", f"{interface} lo accept"]
    return "\n".join([f"chain {hook} {{", *begin, "ct state established,related accept", *lines, "}"])


def _accepted(rules: Sequence[Any], peers: str, direction: str, members: Sequence[Member]) -> Iterator[str]:
    for rule in rules:
        addresses = _addresses(rule[peers], members) if rule.get(peers) else None
        if addresses == []:
            continue  # nft knows no empty set
        peer = [] if addresses is None else [f"ip {direction} {{ {', '.join(addresses)} }}"]
        for port in rule.get("ports") or [None]:
            words = [] if port is None else [f"{port['protocol'].lower()} dport {_range(port)}"]
            yield " ".join([*peer, *words, "accept"])


def _addresses(peers: Sequence[Mapping[str, Any]], members: Sequence[Member]) -> list[str]:
    blocks = [peer["ipBlock"]["cidr"] for peer in peers if "ipBlock" in peer]
    assert not any("except" in peer.get("ipBlock", {}) for peer in peers)
    pods = [peer for peer in peers if "ipBlock" not in peer]
    found = [
        member.address for member in members if any(is_peer(peer, member.labels, member.namespace) for peer in pods)
    ]
    return [*dict.fromkeys(found), *blocks]


def _range(port: Mapping[str, Any]) -> str:
    return f"{port['port']}-{port['endPort']}" if "endPort" in port else str(port["port"])
