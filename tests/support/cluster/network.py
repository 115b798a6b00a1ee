"""A pod network on one machine: a switch, and a network namespace for every pod and for the client outside of them.

Nothing leads out of it. It needs root.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.cluster.firewall import Member, ruleset
from tests.support.kubernetes.network import OWN

PREFIX = "switchyard-"
"""The prefix of every namespace, so that the next run finds those that a killed one left."""

CLIENT_ADDRESS, OPERATOR_ADDRESS, NODE_ADDRESS = "10.77.0.5", "10.77.0.6", "10.77.0.7"
"""In the client's namespace: clients from outside and the Kubernetes API; KubeRay's pod; the machine of all pods."""

_OPERATOR = Member(
    OPERATOR_ADDRESS,
    {"app.kubernetes.io/component": "kuberay-operator"},
    {"kubernetes.io/metadata.name": "kuberay"},
)
_PACKAGES = {"ip": "iproute2", "nft": "nftables", "unshare": "util-linux"}
_SWITCH, _CLIENT = f"{PREFIX}switch", f"{PREFIX}client"
_CLONE_NEWNET = 0x40000000
_FIRST_POD = 11


class Network:
    """`client` is the namespace of clients on the network that are not pods. What no policy allows is dropped."""

    def __init__(self) -> None:
        self.client = _CLIENT
        self._next = _FIRST_POD
        self._policies: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._members: dict[str, Member] = {}
        self._lock = threading.Lock()

    def attach(self, name: str, labels: Mapping[str, str], namespace: Mapping[str, str] = OWN) -> str:
        """Makes the namespace of a pod and returns its address, which no pod had before. `labels` are the pod's,
        `namespace` those of its Kubernetes namespace.
        """
        with self._lock:
            address = f"10.77.0.{self._next}"
            _attach(PREFIX + name, address, port=f"p{self._next}")
            self._next += 1
            self._members[name] = Member(address, labels, namespace)
            self._load()
        return address

    def detach(self, name: str) -> None:
        """Removes it."""
        with self._lock:
            _ip("netns", "del", PREFIX + name)
            del self._members[name]
            self._load()

    def enforce(self, release: str, policies: Sequence[Mapping[str, Any]]) -> None:
        """These NetworkPolicies, and no others of this release, apply from now on, also to later pods."""
        with self._lock:
            self._policies[release] = policies
            self._load()

    def _load(self) -> None:
        members = [*self._members.values(), _OPERATOR]
        policies = [policy for policies in self._policies.values() for policy in policies]
        for name, member in self._members.items():
            rules = ruleset(policies, member, members, NODE_ADDRESS)
            command = ["ip", "netns", "exec", PREFIX + name, "nft", "-f", "-"]
            loaded = subprocess.run(command, input=rules, capture_output=True, text=True, timeout=30)
            assert loaded.returncode == 0, f"{loaded.stderr}\n{rules}"

    def cut(self, address: str) -> None:
        """Unplugs a pod: packets vanish, and no peer gets a reset."""
        _ip("-n", _SWITCH, "link", "set", f"p{address.rpartition('.')[2]}", "down")


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network with a client and no pods. Leftovers of an earlier run are removed first."""
    sweep()
    try:
        _ip("netns", "add", _SWITCH)
        _ip("-n", _SWITCH, "link", "add", "switch", "type", "bridge")
        _ip("-n", _SWITCH, "link", "set", "switch", "up")
        _attach(_CLIENT, CLIENT_ADDRESS, port="client")
        for address in (OPERATOR_ADDRESS, NODE_ADDRESS):
            _ip("-n", _CLIENT, "addr", "add", f"{address}/24", "dev", "eth0")
        yield Network()
    finally:
        sweep()


def sweep() -> None:
    """Ends every process in the lab's namespaces, and removes them."""
    for name in _namespaces():
        while pids := _ip("netns", "pids", name).split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
        _ip("netns", "del", name)


@contextlib.contextmanager
def joined(namespace: str) -> Iterator[None]:
    """This thread, and the threads that it starts, open their sockets in `namespace` while the block runs."""
    with (
        Path("/proc/thread-self/ns/net").open() as before,
        Path("/var/run/netns", namespace).open() as wanted,
    ):
        _enter(wanted.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def obstacle() -> str | None:
    """The reason why no such network can be made here, or None."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if missing := [package for command, package in _PACKAGES.items() if shutil.which(command) is None]:
        return f"not installed: apt-get install {' '.join(missing)}"
    try:
        _ip("netns", "add", f"{PREFIX}probe")
        _ip("netns", "exec", f"{PREFIX}probe", "nft", "list", "tables")
        _ip("netns", "del", f"{PREFIX}probe")
        subprocess.run(["unshare", "-m", "-p", "-f", "-u", "-i", "true"], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        return f"namespaces or packet filters are not allowed: {error.stderr.strip()!r}"
    return None


def _attach(namespace: str, address: str, *, port: str) -> None:
    _ip("netns", "add", namespace)
    _ip("-n", namespace, "link", "set", "lo", "up")
    _ip("-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", _SWITCH)
    _ip("-n", _SWITCH, "link", "set", port, "master", "switch", "up")
    _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", namespace, "link", "set", "eth0", "up")


def _namespaces() -> list[str]:
    names = [line.split()[0] for line in _ip("netns", "list").splitlines()]
    return [name for name in names if name.startswith(PREFIX)]


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)
    return done.stdout
