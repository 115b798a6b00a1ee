"""Spans of requests, for an OpenTelemetry collector.

The request path makes no span: it notes times in a `RequestSpan`, and only for the requests that are sampled. A thread
makes spans of what was noted and sends them (`sending`). Only `spans` and `otlp` import OpenTelemetry, and only
that thread imports it.

    w3c       the headers `traceparent` and `tracestate`
    sampling  which requests are traced
    request   one request's trace, and what is noted of it
    tracer    begins and ends them
    spans     spans from notes
    otlp      their export
    sending   the queue and the thread
    settings  the configuration, completed by OpenTelemetry's standard variables
    tracing   the parts above together, while a configuration has the section `tracing`
"""
