"""Metrics of this router's present state, read when it is scraped: requests cost nothing here."""

from collections.abc import Collection, Iterator, Mapping

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from app.exchange.snapshot import Snapshot
from app.routing.admission import AdmissionQueue

PLAN_INFO = "switchyard_plan_info"

GAUGES: Mapping[str, str] = {
    PLAN_INFO: "1 for the plan that this router serves",
    "switchyard_traffic_share": "The percentage of an endpoint's traffic that the plan gives a deployment",
    "switchyard_admission_slots": "The most requests of an endpoint that this router forwards at a time",
    "switchyard_admission_running": "Requests that hold one of these slots",
    "switchyard_admission_waiting": "Requests that wait for one of these slots",
}
"""Every gauge and its help."""

_Sample = tuple[str, dict[str, str], float]


def present_state(
    snapshot: Snapshot, queues: Mapping[str, AdmissionQueue], endpoints: Collection[str] | None = None
) -> bytes:
    """The gauges in Prometheus' text format, of all endpoints or of some. `queues` by endpoint."""
    return generate_latest(_Gauges(list(_samples(snapshot, queues, endpoints))))


def _samples(
    snapshot: Snapshot, queues: Mapping[str, AdmissionQueue], endpoints: Collection[str] | None
) -> Iterator[_Sample]:
    for name, endpoint in snapshot.config.endpoints.items():
        if endpoints is not None and name not in endpoints:
            continue
        yield PLAN_INFO, {"endpoint": name, "plan": snapshot.plans[name]}, 1.0
        for deployment, share in endpoint.traffic.items():
            yield "switchyard_traffic_share", {"endpoint": name, "deployment": deployment}, float(share)
        if endpoint.admission is not None:
            queue, of = queues.get(name), {"endpoint": name}
            yield "switchyard_admission_slots", of, float(endpoint.admission.max_concurrent)
            yield "switchyard_admission_running", of, float(queue.running if queue is not None else 0)
            yield "switchyard_admission_waiting", of, float(queue.waiting if queue is not None else 0)


class _Gauges(Collector):
    def __init__(self, samples: list[_Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        for name, help in GAUGES.items():
            family = Metric(name, help, "gauge")
            for metric, labels, value in self._samples:
                if metric == name:
                    family.add_sample(metric, labels, value)
            if family.samples:
                yield family
