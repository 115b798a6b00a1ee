from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram

from deployments.engine.server import QUEUE_TIME, SERVICE_TIME, LoadReport, held_by_serve


def ticking(*times: float) -> Iterator[float]:
    yield from times


def test_vllms_metrics_get_our_names() -> None:
    registry = CollectorRegistry()
    running = Gauge("vllm:num_requests_running", "", ("engine",), registry=registry)
    waiting = Gauge("vllm:num_requests_waiting", "", ("engine",), registry=registry)
    kv = Gauge("vllm:kv_cache_usage_perc", "", ("engine",), registry=registry)
    for engine, (runs, waits, share) in {"0": (3, 1, 0.2), "1": (5, 0, 0.7)}.items():
        running.labels(engine).set(runs)
        waiting.labels(engine).set(waits)
        kv.labels(engine).set(share)
    clock = ticking(10.0, 14.5)
    report = LoadReport(lambda: 2, registry, lambda: next(clock))
    assert report.read() == {"held": 2.0, "age_s": 4.5, "running": 8.0, "waiting": 1.0, "kv": 0.7}


def test_the_time_in_the_queue_is_of_requests_that_began_since_the_last_call() -> None:
    registry = CollectorRegistry()
    times = Histogram(QUEUE_TIME, "", ("engine",), registry=registry)
    report = LoadReport(lambda: 0, registry)
    times.labels("0").observe(1.0)
    times.labels("1").observe(3.0)
    assert report.read()["queue_s"] == 2.0
    assert report.read()["queue_s"] == 0.0
    times.labels("0").observe(8.0)
    assert report.read()["queue_s"] == 8.0


def test_the_time_that_requests_run_is_remembered() -> None:
    registry = CollectorRegistry()
    times = Histogram(SERVICE_TIME, "", ("engine",), registry=registry)
    times.labels("0")
    report = LoadReport(lambda: 0, registry)
    assert report.read()["service_s"] == 0.0
    times.labels("0").observe(4.0)
    times.labels("0").observe(8.0)
    assert [report.read()["service_s"], report.read()["service_s"]] == [6.0, 6.0]
    times.labels("0").observe(1.0)
    assert report.read()["service_s"] == 1.0


def test_outside_a_replica_no_request_waits_in_serve() -> None:
    assert held_by_serve() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_serve_still_counts_waiting_requests_under_this_name() -> None:
    from ray.serve._private.replica import Replica, ReplicaActor

    assert "_num_queued_requests" in Replica.__init__.__code__.co_names
    assert "_replica_impl" in ReplicaActor.__init__.__code__.co_names
