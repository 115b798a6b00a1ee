"""Writes into a file how many steps of its control loop Serve's controller makes while a function of `ServeControl`
waits for one in it, and while the same function waits where Ray would run it. A program of its own: it starts Ray."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE_S, BESIDE_S = 0.5, 120.0
"""How long the function waits. Several steps would fit into the first; a busy machine may need the second for one."""


def _function() -> Callable[[Any, float], int]:
    """Nested, so that it is pickled by value: the controller lacks this module."""

    def steps_meanwhile(controller: Any, within_s: float) -> int:
        def steps() -> int:
            count: int = controller._health_metrics_tracker.num_control_loops
            return count

        before, deadline = steps(), time.monotonic() + within_s
        while steps() == before and time.monotonic() < deadline:
            time.sleep(0.05)
        return steps() - before

    return steps_meanwhile


def main() -> None:
    import ray
    from ray import serve
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    from deployments.control_plane import on_event_loop

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(proxy_location="Disabled")
    controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    calls = [(on_event_loop(_function()), HERE_S), (_function(), BESIDE_S)]
    counts = [ray.get(controller.__ray_call__.remote(*call)) for call in calls]
    Path(sys.argv[1]).write_text(json.dumps(counts))
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
