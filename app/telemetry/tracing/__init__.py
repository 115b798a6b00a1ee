"""Spans of requests, for an OpenTelemetry collector.

The request path makes no spans: it notes times in a `RequestSpan`, and only for sampled requests. A thread makes spans
of these notes and sends them (`sending`). Only `spans` and `otlp` import OpenTelemetry, and only that thread imports
them.

    w3c       the headers `traceparent` and `tracestate`
    sampling  which requests are traced
    request   one request's trace, and its notes
    tracer    begins and ends them
    spans     spans from notes
    otlp      their export
    sending   the queue and the thread
    settings  the configuration, completed by OpenTelemetry's standard variables
    tracing   the parts above together, while a configuration has the section `tracing`
"""
