"""The TCP ports of a pod that other pods can reach."""

import socket
from pathlib import Path

_LISTENS = "0A"
_LOOPBACK = ("0100007F", "00000000000000000000000001000000")
"""127.0.0.1 and ::1 as the kernel writes them."""


def listening(pid: int) -> set[int]:
    """The ports on which something listens for others, in the network of this process."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            address, _, port = local.partition(":")
            if state == _LISTENS and address not in _LOOPBACK:
                found.add(int(port, 16))
    return found


def accepts(address: str, port: int) -> bool:
    """Whether a connection from here is accepted."""
    with socket.socket() as client:
        client.settimeout(5)
        return client.connect_ex((address, port)) == 0
