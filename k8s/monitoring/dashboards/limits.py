"""Limits and credentials: refused requests, and whether the stores answer."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from k8s.monitoring.dashboards.panels import COUNT, ENDPOINT, PER_SECOND, RATE, Query, board, plot, rates, row

_WHERE = ENDPOINT.where()
_NEARLY = ENDPOINT.where('le="0.9"')


def dashboard() -> Dashboard:
    """By endpoint."""
    return (
        board("Limits", "limits", "Requests over a limit or refused, the store of limits, keys and configurations.")
        .with_variable(ENDPOINT.variable())
        .with_row(row("Refused"))
        .with_panel(
            plot(
                "Over a limit",
                PER_SECOND,
                "By endpoint and limit: answered with 429.",
                Query(
                    f"sum by (endpoint, limit) (rate(switchyard_limited_requests_total{_WHERE}{RATE}))",
                    "{{endpoint}} {{limit}}",
                ),
            )
        )
        .with_panel(
            plot(
                "Requests that find little left",
                PER_SECOND,
                "More than 90 % of the caller's limit is used.",
                Query(
                    f"sum by (endpoint, limit) (rate(switchyard_limit_used_ratio_count{_WHERE}{RATE})) "
                    f"- sum by (endpoint, limit) (rate(switchyard_limit_used_ratio_bucket{_NEARLY}{RATE}))",
                    "{{endpoint}} {{limit}}",
                ),
            )
        )
        .with_panel(
            plot(
                "Refused",
                PER_SECOND,
                "By kind: credentials, rights, limits, capacity.",
                rates(
                    "switchyard_errors_total",
                    "error_type",
                    '{error_type=~"unauthorized|forbidden|limit_exceeded|unavailable|too_large"}',
                ),
            )
        )
        .with_row(row("Stores"))
        .with_panel(
            plot(
                "Failures of the store of limits",
                PER_SECOND,
                "By router. `on_store_failure` decides about requests meanwhile.",
                rates("switchyard_limit_store_failures_total", "replica"),
            )
        )
        .with_panel(
            plot(
                "Keys read again",
                COUNT,
                "In an hour, by outcome.",
                Query("sum by (outcome) (increase(switchyard_key_reloads_total[1h]))", "{{outcome}}"),
            )
        )
        .with_panel(
            plot(
                "Configurations",
                COUNT,
                "Delivered in an hour, by outcome.",
                Query("sum by (outcome) (increase(switchyard_config_reloads_total[1h]))", "{{outcome}}"),
            )
        )
    )
