"""The section `tracing` of the configuration."""

from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from app.config.base import Section


class Tracing(Section):
    """Spans of requests, for an OpenTelemetry collector (OTLP over HTTP). Left out: none are made."""

    endpoint: str | None = Field(
        default=None,
        description="The collector's base URL, such as http://collector:4318; spans go to /v1/traces below it. "
        "Default: as OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT says, else http://localhost:4318.",
    )
    percent: float | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Percent of the requests that are traced, where the caller's `traceparent` does not decide. "
        "Default: as OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say, else 10.",
    )
    follow_per_s: float = Field(
        default=10.0,
        ge=0,
        description="How many requests a second, on each router, are traced because the caller's `traceparent` says "
        "so. Above it `percent` decides.",
    )

    @model_validator(mode="after")
    def _endpoint_is_a_url(self) -> Self:
        if self.endpoint is None:
            return self
        try:
            parts = urlsplit(self.endpoint)
            host = parts.hostname
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
            raise ValueError("`endpoint` must be a URL such as http://collector:4318")
        if parts.username is not None or parts.password is not None:
            raise ValueError("`endpoint` holds credentials; put them into the variable OTEL_EXPORTER_OTLP_HEADERS")
        if parts.path.rstrip("/").endswith("/v1/traces"):
            raise ValueError("`endpoint`: leave out /v1/traces, the router adds it")
        return self
