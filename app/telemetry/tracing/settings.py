"""The section `tracing`, completed by OpenTelemetry's standard variables.

Contract: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/. The variables of the
exporter that are not here (headers, timeout, compression, certificates) and of the resource (service name, attributes)
are read by OpenTelemetry's own code.
"""

from collections.abc import Mapping
from typing import NamedTuple

from app.config.base import ConfigError
from app.config.endpoints import Tracing

_DEFAULT_PERCENT = 10.0
_MOST = 1_000_000


class Settings(NamedTuple):
    """`endpoint`: the whole URL for spans, None: from OpenTelemetry's variables. `share` of the requests, 0 to 1.

    Requests wait for the exporter in a queue of at most `queue`; every `every_s` seconds they are exported, `batch` at
    a time.
    """

    endpoint: str | None
    share: float
    follow_per_s: float
    queue: int
    batch: int
    every_s: float


def settings(section: Tracing | None, environment: Mapping[str, str]) -> Settings | None:
    """The settings; None if nothing is traced. Raises ConfigError for an invalid variable."""
    if section is None or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    endpoint = f"{section.endpoint.rstrip('/')}/v1/traces" if section.endpoint is not None else None
    queue = _count(environment, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)
    return Settings(
        endpoint,
        (section.percent if section.percent is not None else _percent(environment)) / 100,
        section.follow_per_s,
        queue,
        min(queue, _count(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)),
        _count(environment, "OTEL_BSP_SCHEDULE_DELAY", 1000) / 1000,
    )


def _percent(environment: Mapping[str, str]) -> float:
    """The percentage in the standard sampler's variables; `follow_per_s` decides whether callers are followed."""
    sampler = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower().removeprefix("parentbased_")
    match sampler:
        case "":
            return _DEFAULT_PERCENT
        case "always_on":
            return 100.0
        case "always_off":
            return 0.0
        case "traceidratio":
            return 100 * _ratio(environment.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1")
    raise ConfigError(["tracing: OTEL_TRACES_SAMPLER names a sampler that is not here; set `percent`"])


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigError(["tracing: OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1; or set `percent`"])
    return ratio


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    if not (text := environment.get(name, "").strip()):
        return default
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= _MOST or len(text) > len(str(_MOST)):
        raise ConfigError([f"tracing: the variable {name} must be a whole number from 1 to {_MOST}"])
    return int(text)
