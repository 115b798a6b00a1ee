"""The router's metrics under TGI's names."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from app.engine.output import Usage
from app.telemetry.logs import Record
from app.telemetry.metrics import Telemetry
from app.telemetry.tgi_exposition import exposition


def values(telemetry: Telemetry, endpoint: str = "chat") -> dict[Any, float]:
    """Maps sample name and label values to the value, as Prometheus parses the text."""
    text = exposition(telemetry.metrics_for([endpoint])).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    # The parser appends `_total` to every counter; TGI's names lack it.
    return {(s.name.removesuffix("_total"), *s.labels.values()): s.value for s in samples}


def record(endpoint: str = "chat", **fields: Any) -> Record:
    made = Record("tgi", "generate", "id", endpoint=endpoint, deployment="blue", status=200)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_an_endpoint_without_requests_has_zero_counts() -> None:
    samples = values(Telemetry())
    assert samples["tgi_request_count",] == samples["tgi_request_success",] == 0
    assert samples["tgi_request_duration_count",] == 0


def test_requests_are_counted_by_outcome() -> None:
    telemetry = Telemetry()
    for fields in (
        {},
        {"deployment": "green", "dialect": "openai"},
        {"status": 422, "error": "unprocessable"},
        {"status": 503, "error": "unavailable"},
        {"error": "broken"},
        {"error": "broken", "endpoint": "other"},
    ):
        telemetry.finish(record(**fields))
    samples = values(telemetry)
    assert (samples["tgi_request_count",], samples["tgi_request_success",]) == (5, 2)
    assert samples["tgi_request_failure", "validation"] == 1
    assert samples["tgi_request_failure", "overloaded"] == 1
    assert samples["tgi_request_failure", "generation"] == 1
    assert values(telemetry, "other")["tgi_request_count",] == 1


def test_lengths_and_times_are_summed_over_deployments() -> None:
    telemetry = Telemetry()
    telemetry.finish(record(usage=Usage(9, 3), max_tokens=20))
    telemetry.finish(record(usage=Usage(100, 7), max_tokens=40, deployment="green"))
    samples = values(telemetry)
    assert (samples["tgi_request_input_length_sum",], samples["tgi_request_input_length_count",]) == (109, 2)
    assert samples["tgi_request_generated_tokens_sum",] == 10
    assert samples["tgi_request_max_new_tokens_sum",] == 60
    assert samples["tgi_request_duration_count",] == 2
    assert samples["tgi_request_input_length_bucket", "16.0"] == 1
    assert samples["tgi_request_input_length_bucket", "+Inf"] == 2


def test_the_time_per_token_of_streams_is_reported() -> None:
    telemetry = Telemetry()
    made = record(usage=Usage(9, 3), streamed=True)
    made.first_byte = made.started
    telemetry.finish(made)
    assert values(telemetry)["tgi_request_mean_time_per_token_duration_count",] == 1
