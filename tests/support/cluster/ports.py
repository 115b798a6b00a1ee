"""The ports of a pod that other pods can reach."""

import errno
import selectors
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.cluster.network import joined

QUIET_S = 1.0

_LISTENS = "0A"
_LOOPBACK = ("0100007F", "00000000000000000000000001000000")
"""127.0.0.1 and ::1 as the kernel writes them."""


class Place(NamedTuple):
    """A port of a pod."""

    address: str
    port: int
    protocol: str = "TCP"


def listening(pid: int) -> set[int]:
    """The ports on which something listens for others, in the network of this process."""
    open_ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            address, _, port = local.partition(":")
            if state == _LISTENS and address not in _LOOPBACK:
                open_ports.add(int(port, 16))
    return open_ports


def connected(namespace: str) -> set[str]:
    """The IPv4 addresses to which a pod in `namespace` has TCP connections, opens them, or has just closed them."""
    answering = set()
    with joined(namespace):
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/thread-self/net/{table}").read_text().splitlines()[1:]:
                remote, state = line.split()[2:4]
                if state != _LISTENS:
                    answering.add(socket.inet_ntoa(bytes.fromhex(remote.partition(":")[0][-8:])[::-1]))
    return answering - {"127.0.0.1"}


def accepting(namespace: str, places: Iterable[Place]) -> set[Place]:
    """The places at which a pod in `namespace` is answered: TCP connections are accepted, UDP packets return.

    All are tried at once, until none has answered for a second: what a policy drops is never answered.
    """
    waiting, found = selectors.DefaultSelector(), set()
    with ExitStack() as sockets, joined(namespace):
        for place in places:
            kind = socket.SOCK_STREAM if place.protocol == "TCP" else socket.SOCK_DGRAM
            client = sockets.enter_context(socket.socket(type=kind))
            client.setblocking(False)
            try:
                if client.connect_ex((place.address, place.port)) not in (0, errno.EINPROGRESS):
                    continue
                if place.protocol == "UDP":
                    client.send(b"?")
            except PermissionError:  # the pod's own rules drop it
                continue
            waiting.register(client, selectors.EVENT_WRITE if place.protocol == "TCP" else selectors.EVENT_READ, place)
        while waiting.get_map() and (ready := waiting.select(QUIET_S)):
            for key, _ in ready:
                waiting.unregister(key.fileobj)
                if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:  # type: ignore[union-attr]
                    found.add(key.data)
    return found


@contextmanager
def answering(places: Mapping[str, Iterable[tuple[str, int]]]) -> Iterator[None]:
    """Listens on (protocol, port) in these namespaces while the block runs, and returns UDP packets."""
    waiting, stop = selectors.DefaultSelector(), threading.Event()

    def answer() -> None:
        while not stop.is_set():
            for key, _ in waiting.select(0.1):
                data, sender = key.fileobj.recvfrom(16)  # type: ignore[union-attr]
                key.fileobj.sendto(data, sender)  # type: ignore[union-attr]

    with ExitStack() as sockets:
        for namespace, ports in places.items():
            with joined(namespace):
                for protocol, port in ports:
                    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
                    server = sockets.enter_context(socket.socket(type=kind))
                    server.bind(("0.0.0.0", port))
                    if protocol == "TCP":
                        server.listen(256)
                    else:
                        waiting.register(server, selectors.EVENT_READ)
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
