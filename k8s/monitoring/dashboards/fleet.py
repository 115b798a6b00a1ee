"""The fleet: its health at a glance, and where to look in case of trouble."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from k8s.monitoring.dashboards.panels import (
    BYTES,
    COUNT,
    PER_SECOND,
    RATE,
    SECONDS,
    SHARE,
    TOKENS_PER_SECOND,
    Query,
    board,
    number,
    plot,
    quantiles,
    rates,
    row,
)

_OURS = '{error_type=~"at_capacity|broken|internal|no_engine|timeout|unavailable"}'
"""Errors that are not a caller's fault. Requests at their own time limits (`client_timeout`) fail, too, but tell of
what their callers allow."""


def dashboard() -> Dashboard:
    """Everything at a glance."""
    return (
        board("Fleet", "fleet", "Traffic, errors, speed, and the health of routers and replicas.")
        .with_panel(
            number("Requests", PER_SECOND, "Answered now.", Query(f"sum(rate(switchyard_requests_total{RATE}))", ""))
        )
        .with_panel(
            number(
                "Errors",
                SHARE,
                "The share of requests that failed, but for those at the caller's fault, or at their own time limit.",
                Query(
                    f"sum(rate(switchyard_errors_total{_OURS}{RATE})) / sum(rate(switchyard_requests_total{RATE}))", ""
                ),
            )
        )
        .with_panel(
            number(
                "Open breakers",
                COUNT,
                "Deployments whose traffic goes to others.",
                Query("sum(max by (deployment) (switchyard_breaker_open))", ""),
            )
        )
        .with_panel(
            number(
                "Stops",
                COUNT,
                "Deployments that an experiment has stopped.",
                Query("count(max by (endpoint, deployment) (switchyard_stops) > 0) or vector(0)", ""),
            )
        )
        .with_panel(
            number(
                "Replicas starting",
                COUNT,
                "Starting: loading weights, or waiting for a node.",
                Query('sum(max by (application, state) (switchyard_replicas{state=~"STARTING|RECOVERING"}))', ""),
            )
        )
        .with_panel(
            number("Nodes now", COUNT, "With a replica or a proxy.", Query('count(count by (node) (up{node!=""}))', ""))
        )
        .with_row(row("Traffic"))
        .with_panel(plot("Requests by endpoint", PER_SECOND, "", rates("switchyard_requests_total", "endpoint")))
        .with_panel(
            plot(
                "Errors by kind",
                PER_SECOND,
                "The page Operating says what each kind means.",
                rates("switchyard_errors_total", "error_type"),
            )
        )
        .with_panel(
            plot(
                "Tokens generated",
                TOKENS_PER_SECOND,
                "Per second, by endpoint.",
                rates("gen_ai_client_token_usage_tokens_sum", "endpoint", '{gen_ai_token_type="output"}'),
            )
        )
        .with_panel(
            plot(
                "First token",
                SECONDS,
                "From a request's arrival to its stream's first chunk.",
                *quantiles("gen_ai_server_time_to_first_token_seconds", "endpoint"),
            )
        )
        .with_panel(
            plot(
                "In flight",
                COUNT,
                "Requests that deployments work on.",
                Query("sum by (endpoint) (http_server_active_requests)", "{{endpoint}}"),
            )
        )
        .with_panel(plot("Requests by dialect", PER_SECOND, "", rates("switchyard_requests_total", "dialect")))
        .with_row(row("Routers"))
        .with_panel(
            plot(
                "CPU",
                SHARE,
                "Of one core, by router. Above 0.8 it needs another replica.",
                Query(f'sum by (replica) (rate(process_cpu_seconds_total{{component="router"}}{RATE}))', "{{replica}}"),
            )
        )
        .with_panel(
            plot(
                "Event loop lag",
                SECONDS,
                "How late a timer of one second was. Above 0.1 every token is late.",
                Query("max by (replica) (switchyard_event_loop_lag_seconds)", "{{replica}}"),
            )
        )
        .with_panel(
            plot(
                "Memory",
                BYTES,
                "Resident, by router. It returns after large requests.",
                Query('max by (replica) (process_resident_memory_bytes{component="router"})', "{{replica}}"),
            )
        )
        .with_row(row("Ingress"))
        .with_panel(
            plot(
                "HAProxy's connections",
                COUNT,
                "By node. At its maximum new clients wait.",
                Query("sum by (node) (haproxy_process_current_connections)", "{{node}}"),
                Query("sum by (node) (haproxy_process_max_connections)", "{{node}} at most"),
            )
        )
        .with_panel(
            plot(
                "Replicas that HAProxy reaches",
                COUNT,
                "By backend, on the node that reaches the fewest.",
                Query("min by (proxy) (haproxy_backend_active_servers)", "{{proxy}}"),
            )
        )
        .with_panel(
            plot(
                "Nodes",
                COUNT,
                "With a replica of this kind.",
                Query('count by (component) (count by (component, node) (up{node!=""}))', "{{component}}"),
            )
        )
    )
