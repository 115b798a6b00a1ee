"""The section `tracing` combined with OpenTelemetry's variables."""

import pytest

from app.config.base import ConfigError
from app.config.endpoints import Tracing
from app.config.schema import Config, parse
from app.telemetry.tracing import Settings, settings


def of(section: Tracing, **environment: str) -> Settings:
    found = settings(section, environment)
    assert found is not None
    return found


def test_the_variables_alone_do_not_enable_tracing() -> None:
    assert settings(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}) is None
    assert settings(Tracing(), {"OTEL_SDK_DISABLED": "true"}) is None


def test_settings_have_defaults() -> None:
    assert settings(Tracing(), {}) == Settings(None, 0.1, 10.0, 2048, 512, 1.0)


def test_the_section_comes_before_the_variables() -> None:
    variables = {"OTEL_TRACES_SAMPLER": "always_on", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://other:4318"}
    found = of(Tracing(endpoint="http://collector:4318/", percent=2.5), **variables)
    assert (found.endpoint, found.share) == ("http://collector:4318/v1/traces", 0.025)


@pytest.mark.parametrize(
    ("sampler", "argument", "share"),
    [
        ("always_on", "", 1.0),
        ("parentbased_always_off", "", 0.0),
        ("traceidratio", "0.25", 0.25),
        ("parentbased_traceidratio", "0.5", 0.5),
        ("parentbased_traceidratio", "", 1.0),
    ],
)
def test_the_standard_samplers_set_the_share(sampler: str, argument: str, share: float) -> None:
    assert of(Tracing(), OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument).share == share


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan"),
        ("OTEL_TRACES_SAMPLER_ARG", "a tenth"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "9" * 30),
        ("OTEL_BSP_SCHEDULE_DELAY", "1.5"),
    ],
)
def test_a_variable_that_cannot_be_right_is_named(name: str, value: str) -> None:
    variables = {"OTEL_TRACES_SAMPLER": "traceidratio", name: value}
    with pytest.raises(ConfigError, match=name):
        settings(Tracing(), variables)


def test_the_standard_variables_set_the_queue_and_its_batches() -> None:
    found = of(Tracing(), OTEL_BSP_MAX_QUEUE_SIZE="50", OTEL_BSP_SCHEDULE_DELAY="250")
    assert (found.queue, found.batch, found.every_s) == (50, 50, 0.25)


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("collector:4318", "must be a URL"),
        ("grpc://collector:4317", "must be a URL"),
        ("http://", "must be a URL"),
        ("http://[collector", "must be a URL"),
        ("http://collector:4318?x=1", "must be a URL"),
        ("http://me:secret@collector:4318", "credentials"),
        ("http://collector:4318/v1/traces", "leave out /v1/traces"),
    ],
)
def test_an_invalid_endpoint_is_refused(endpoint: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        parse({**DOCUMENT, "tracing": {"endpoint": endpoint}})
    assert raised.value.problems[0].startswith("tracing: ")


DOCUMENT = {
    "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 100}}},
    "deployments": {"blue": {"app": "blue", "model": "m"}},
}


def test_tracing_is_off_by_default_and_an_app_gets_contexts_anyway() -> None:
    assert Config.model_validate(DOCUMENT).tracing is None
    with pytest.raises(ConfigError, match="`trace_context` needs `url`"):
        parse({**DOCUMENT, "deployments": {"blue": {"app": "blue", "model": "m", "trace_context": True}}})
