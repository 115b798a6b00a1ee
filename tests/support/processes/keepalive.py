"""TCP keepalive as the kernel tells it. Contract: proc_net_tcp(5)."""

import os
from pathlib import Path

import psutil

KEEPALIVE_TIMER = "02"
"""Which of a socket's timers runs, in /proc/net/tcp."""


def keepalive_timers(pid: int) -> dict[int, float | None]:
    """Seconds until the next probe of a process's connections, by the peer's port; None without one."""
    ours = {
        (connection.laddr.port, connection.raddr.port)
        for connection in psutil.Process(pid).net_connections("tcp4")
        if connection.status == psutil.CONN_ESTABLISHED
    }
    timers: dict[int, float | None] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, timer = line.split()[:6]
        ports = tuple(int(address.rpartition(":")[2], 16) for address in (local, remote))
        if ports in ours:
            kind, _, jiffies = timer.partition(":")
            timers[ports[1]] = int(jiffies, 16) / os.sysconf("SC_CLK_TCK") if kind == KEEPALIVE_TIMER else None
    return timers
