"""An endpoint's metrics under TGI's names, for dashboards and autoscalers that read TGI's.

Derived from the router's own metrics. The engine's (batches, queue) are left out: vLLM's own `/metrics` has them.
prometheus_client would append `_total` to the counters, which TGI's lack, so the text is written here.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

_HISTOGRAMS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "tgi_request_duration": ("gen_ai_server_request_duration_seconds", {}),
    "tgi_request_mean_time_per_token_duration": ("gen_ai_server_time_per_output_token_seconds", {}),
    "tgi_request_input_length": ("gen_ai_client_token_usage_tokens", {"gen_ai_token_type": "input"}),
    "tgi_request_generated_tokens": ("gen_ai_client_token_usage_tokens", {"gen_ai_token_type": "output"}),
    "tgi_request_max_new_tokens": ("gen_ai_request_max_tokens", {}),
}
"""TGI's name to ours, and the labels of its samples. Times are in seconds, as in TGI."""

_CAUSES = {
    "at_capacity": "overloaded",
    "unavailable": "overloaded",
    "no_engine": "overloaded",
    "broken": "generation",
    "timeout": "generation",
    "internal": "generation",
    "client_gone": "cancelled",
    "client_timeout": "generation",
}
"""Our error type to TGI's `err` label; all others are ``validation``."""


def exposition(metrics: Iterable[Metric]) -> bytes:
    """The text for `metrics`, all of one endpoint."""
    samples = [sample for metric in metrics for sample in metric.samples]
    return "".join(line + "\n" for line in _lines(samples)).encode()


def _lines(samples: list[Sample]) -> Iterator[str]:
    yield from _counters(samples)
    for name, (ours, labels) in _HISTOGRAMS.items():
        yield from _histogram(
            name, [s for s in samples if s.name.startswith(ours) and labels.items() <= s.labels.items()]
        )


def _counters(samples: list[Sample]) -> Iterator[str]:
    total = sum(s.value for s in samples if s.name == "switchyard_requests_total")
    failures: defaultdict[str, float] = defaultdict(float)
    for sample in samples:
        if sample.name == "switchyard_errors_total":
            failures[_CAUSES.get(sample.labels["error_type"], "validation")] += sample.value
    yield from ("# TYPE tgi_request_count counter", f"tgi_request_count {floatToGoString(total)}")
    success = total - sum(failures.values())
    yield from ("# TYPE tgi_request_success counter", f"tgi_request_success {floatToGoString(success)}")
    yield "# TYPE tgi_request_failure counter"
    for cause, count in sorted(failures.items()):
        yield f'tgi_request_failure{{err="{cause}"}} {floatToGoString(count)}'


def _histogram(name: str, samples: list[Sample]) -> Iterator[str]:
    """One histogram, summed over deployments, dialects and statuses."""
    buckets: defaultdict[float, float] = defaultdict(float)
    totals = {"sum": 0.0, "count": 0.0}
    for sample in samples:
        kind = sample.name.rpartition("_")[2]
        if kind == "bucket":
            buckets[float(sample.labels["le"])] += sample.value
        elif kind in totals:
            totals[kind] += sample.value
    yield f"# TYPE {name} histogram"
    for edge, count in sorted(buckets.items()):
        yield f'{name}_bucket{{le="{floatToGoString(edge)}"}} {floatToGoString(count)}'
    for kind, value in totals.items():
        yield f"{name}_{kind} {floatToGoString(value)}"
