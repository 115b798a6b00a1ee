"""Writes into a file how many steps of its control loop Serve's controller makes while a function of `ServeControl`
runs in it, and while the same function runs as Ray would run it. A program of its own, since it starts Ray."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUNS_S = 0.5


def _function() -> Callable[[Any], int]:
    """Nested, so that it is pickled by value: the controller lacks this module."""

    def steps_meanwhile(controller: Any) -> int:
        def steps() -> int:
            found: int = controller._health_metrics_tracker.num_control_loops
            return found

        before = steps()
        time.sleep(RUNS_S)
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
    calls = [on_event_loop(_function()), _function()]
    counts = [ray.get(controller.__ray_call__.remote(call)) for call in calls]
    Path(sys.argv[1]).write_text(json.dumps(counts))
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
