"""One endpoint: its split, and each deployment's speed and failures."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from k8s.monitoring.dashboards.panels import (
    COUNT,
    ENDPOINT,
    PER_SECOND,
    RATE,
    SECONDS,
    SHARE,
    TOKENS_PER_SECOND,
    Query,
    board,
    plot,
    quantiles,
    rates,
    row,
)

_WHERE = ENDPOINT.where()
_OUTPUT = ENDPOINT.where('gen_ai_token_type="output"')


def dashboard() -> Dashboard:
    """By deployment."""
    return (
        board("Endpoint", "endpoint", "The split, as configured and as observed, and every deployment side by side.")
        .with_variable(ENDPOINT.variable())
        .with_row(row("Split"))
        .with_panel(
            plot(
                "Traffic configured",
                SHARE,
                "The plan's share of each deployment.",
                Query(
                    f"max by (endpoint, deployment) (switchyard_traffic_share{_WHERE}) / 100",
                    "{{endpoint}} {{deployment}}",
                ),
                highest=1,
            )
        )
        .with_panel(
            plot(
                "Traffic observed",
                SHARE,
                "Of the requests that were answered. It differs from the plan by failovers, headers and sticky keys.",
                Query(
                    f"sum by (endpoint, deployment) (rate(switchyard_requests_total{_WHERE}{RATE})) "
                    f"/ on (endpoint) group_left sum by (endpoint) (rate(switchyard_requests_total{_WHERE}{RATE}))",
                    "{{endpoint}} {{deployment}}",
                ),
                highest=1,
            )
        )
        .with_panel(
            plot(
                "Why the deployment was chosen",
                PER_SECOND,
                "`failover`: another one was drawn and is failing.",
                rates("switchyard_requests_total", "reason", _WHERE),
            )
        )
        .with_row(row("Speed"))
        .with_panel(
            plot(
                "First token",
                SECONDS,
                "From a request's arrival to its stream's first chunk.",
                *quantiles("gen_ai_server_time_to_first_token_seconds", "deployment", _WHERE),
            )
        )
        .with_panel(
            plot(
                "Between tokens",
                SECONDS,
                "Of a stream after its first token: the time to the end by the tokens.",
                *quantiles("gen_ai_server_time_per_output_token_seconds", "deployment", _WHERE),
            )
        )
        .with_panel(
            plot(
                "Whole answers",
                SECONDS,
                "From arrival to the last byte.",
                *quantiles("gen_ai_server_request_duration_seconds", "deployment", _WHERE),
            )
        )
        .with_panel(
            plot(
                "Tokens generated",
                TOKENS_PER_SECOND,
                "Per second, as the engines counted.",
                rates("gen_ai_client_token_usage_tokens_sum", "deployment", _OUTPUT),
            )
        )
        .with_panel(
            plot(
                "Tokens of an answer",
                COUNT,
                "",
                *quantiles("gen_ai_client_token_usage_tokens", "deployment", _OUTPUT),
            )
        )
        .with_panel(
            plot(
                "In flight",
                COUNT,
                "Requests that the deployment works on.",
                Query(f"sum by (deployment) (http_server_active_requests{_WHERE})", "{{deployment}}"),
            )
        )
        .with_row(row("Queue"))
        .with_panel(
            plot(
                "Running and waiting",
                COUNT,
                "Requests with a slot of the endpoint, those that wait for one, and the slots.",
                Query(f"sum by (endpoint) (switchyard_admission_running{_WHERE})", "{{endpoint}} running"),
                Query(f"sum by (endpoint) (switchyard_admission_waiting{_WHERE})", "{{endpoint}} waiting"),
                Query(f"sum by (endpoint) (switchyard_admission_slots{_WHERE})", "{{endpoint}} slots"),
            )
        )
        .with_panel(
            plot(
                "Wait for a slot",
                SECONDS,
                "Of requests that had to wait.",
                *quantiles("switchyard_admission_wait_seconds", "endpoint", _WHERE),
            )
        )
        .with_panel(
            plot(
                "Refused by the queue",
                PER_SECOND,
                "It was full, or the wait too long: answered with 503.",
                rates("switchyard_admission_refused_total", "cause", _WHERE),
            )
        )
        .with_panel(
            plot(
                "Refused by deployments",
                PER_SECOND,
                "Their replicas' queues were full. A fallback may have answered.",
                rates("switchyard_deployment_refused_total", "deployment", _WHERE),
            )
        )
        .with_row(row("Failures"))
        .with_panel(
            plot(
                "Errors by kind",
                PER_SECOND,
                "The page Operating says what each kind means.",
                rates("switchyard_errors_total", "error_type", _WHERE),
            )
        )
        .with_panel(
            plot("Errors by deployment", PER_SECOND, "", rates("switchyard_errors_total", "deployment", _WHERE))
        )
        .with_panel(
            plot(
                "Retries",
                PER_SECOND,
                "The deployment failed before the first byte; by the retry's target.",
                Query(
                    f"sum by (deployment, outcome) (rate(switchyard_retries_total{_WHERE}{RATE}))",
                    "{{deployment}}: {{outcome}}",
                ),
            )
        )
        .with_panel(
            plot(
                "Fallbacks",
                PER_SECOND,
                "The request went to another deployment than the one drawn.",
                Query(
                    f"sum by (deployment, fallback) (rate(switchyard_fallbacks_total{_WHERE}{RATE}))",
                    "{{deployment}} to {{fallback}}",
                ),
            )
        )
        .with_panel(
            plot(
                "Open breakers",
                COUNT,
                "1: the deployment gets no traffic that another one can take.",
                Query("max by (deployment) (switchyard_breaker_open)", "{{deployment}}"),
                highest=1,
            )
        )
        .with_row(row("Mirror traffic"))
        .with_panel(
            plot(
                "Copies",
                PER_SECOND,
                "Requests drawn for a mirror, by what became of their copy.",
                rates("switchyard_mirrored_requests_total", "outcome", _WHERE),
            )
        )
        .with_panel(
            plot(
                "Copies waiting",
                COUNT,
                "For one of the shadow's slots.",
                Query(f"sum by (deployment) (switchyard_mirror_waiting{_WHERE})", "{{deployment}}"),
            )
        )
    )
