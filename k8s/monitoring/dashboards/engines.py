"""Engines: vLLM's queue and cache, replicas and nodes."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from k8s.monitoring.dashboards.panels import (
    APPLICATION,
    COUNT,
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

_WHERE = APPLICATION.where()


def dashboard() -> Dashboard:
    """By application; the application of a model is its deployment."""
    return (
        board("Engines", "engines", "vLLM's queue, KV cache and prefix cache; replicas, their starts, and nodes.")
        .with_variable(APPLICATION.variable())
        .with_row(row("Load"))
        .with_panel(
            plot(
                "Running and waiting",
                COUNT,
                "Requests in vLLM's batches, and those that wait for a place.",
                Query(f"sum by (application) (vllm:num_requests_running{_WHERE})", "{{application}} running"),
                Query(f"sum by (application) (vllm:num_requests_waiting{_WHERE})", "{{application}} waiting"),
            )
        )
        .with_panel(
            plot(
                "KV cache",
                SHARE,
                "In use, the fullest replica. Near 1 requests wait or are preempted.",
                Query(f"max by (application) (vllm:kv_cache_usage_perc{_WHERE})", "{{application}}"),
                highest=1,
            )
        )
        .with_panel(
            plot(
                "Prefix cache hits",
                SHARE,
                "Of the prompts' tokens: those that need not be computed again.",
                Query(
                    f"sum by (application) (rate(vllm:prefix_cache_hits_total{_WHERE}{RATE})) "
                    f"/ sum by (application) (rate(vllm:prefix_cache_queries_total{_WHERE}{RATE}))",
                    "{{application}}",
                ),
                highest=1,
            )
        )
        .with_panel(
            plot(
                "Wait for the batch",
                SECONDS,
                "In vLLM's queue.",
                *quantiles("vllm:request_queue_time_seconds", "application", _WHERE),
            )
        )
        .with_panel(
            plot(
                "First token",
                SECONDS,
                "In the engine: without the router and the network.",
                *quantiles("vllm:time_to_first_token_seconds", "application", _WHERE),
            )
        )
        .with_panel(
            plot(
                "Between tokens",
                SECONDS,
                "",
                *quantiles("vllm:inter_token_latency_seconds", "application", _WHERE),
            )
        )
        .with_panel(
            plot(
                "Tokens",
                TOKENS_PER_SECOND,
                "Per second: read and generated.",
                Query(f"sum by (application) (rate(vllm:prompt_tokens_total{_WHERE}{RATE}))", "{{application}} read"),
                Query(
                    f"sum by (application) (rate(vllm:generation_tokens_total{_WHERE}{RATE}))",
                    "{{application}} generated",
                ),
            )
        )
        .with_panel(
            plot(
                "Preemptions",
                COUNT,
                "Per second: requests that lost their cache and begin again. Any means too little cache.",
                rates("vllm:num_preemptions_total", "application", _WHERE),
            )
        )
        .with_row(row("Replicas and nodes"))
        .with_panel(
            plot(
                "Replicas",
                COUNT,
                "By state. STARTING for long: weights, or no node.",
                Query(f"max by (application, state) (switchyard_replicas{_WHERE})", "{{application}} {{state}}"),
            )
        )
        .with_panel(
            plot(
                "Draining",
                COUNT,
                "Replicas that are stopped and finish their requests.",
                Query(f"sum by (application) (switchyard_draining{_WHERE})", "{{application}}"),
            )
        )
        .with_panel(
            plot(
                "Cold starts",
                SECONDS,
                "From a replica's creation until it serves, on average; of Ray's own agents.",
                Query(
                    f"sum by (application) (rate(ray_serve_replica_startup_latency_ms_sum{_WHERE}[1h])) "
                    f"/ sum by (application) (rate(ray_serve_replica_startup_latency_ms_count{_WHERE}[1h])) / 1000",
                    "{{application}}",
                ),
            )
        )
        .with_panel(
            plot(
                "Nodes",
                COUNT,
                "With a replica of the application.",
                Query(
                    'count by (application) (count by (application, node) (up{component="engine"}))', "{{application}}"
                ),
            )
        )
    )
