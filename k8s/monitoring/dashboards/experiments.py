"""Experiments: the evidence so far, and whether it can be trusted."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from k8s.monitoring.dashboards.panels import (
    BYTES,
    COUNT,
    EXPERIMENT,
    PER_SECOND,
    SECONDS,
    SHARE,
    Query,
    board,
    plot,
    quantiles,
    rates,
    row,
    signed_plot,
)

_WHERE = EXPERIMENT.where()


def dashboard() -> Dashboard:
    """By experiment."""
    return (
        board("Experiments", "experiments", "Effects with their bounds, guardrails, the split, and what was lost.")
        .with_variable(EXPERIMENT.variable())
        .with_row(row("Verdict"))
        .with_panel(
            signed_plot(
                "Effect",
                SHARE,
                "The estimate between its bounds, which hold at every moment. If 0 is outside, there is a difference.",
                Query(
                    f"max by (experiment, metric, treatment, bound) (switchyard_experiment_lift{_WHERE})",
                    "{{metric}} {{treatment}} {{bound}}",
                ),
            )
        )
        .with_panel(
            signed_plot(
                "Evidence",
                COUNT,
                "Against no difference, as a logarithm.",
                Query(
                    f"max by (experiment, metric, treatment) (switchyard_experiment_log_e_value{_WHERE})",
                    "{{metric}} {{treatment}}",
                ),
            )
        )
        .with_panel(
            plot(
                "Verdicts",
                COUNT,
                "1 for the verdict that holds.",
                Query(
                    f"max by (experiment, metric, treatment, verdict) (switchyard_experiment_verdict{_WHERE}) > 0",
                    "{{metric}} {{treatment}}: {{verdict}}",
                ),
                highest=1,
            )
        )
        .with_row(row("What is done"))
        .with_panel(
            plot(
                "Traffic of treatments",
                SHARE,
                "",
                Query(f"max by (experiment) (switchyard_experiment_share{_WHERE}) / 100", "{{experiment}}"),
                highest=1,
            )
        )
        .with_panel(
            plot(
                "Step of the ramp",
                COUNT,
                "1 is the first one, 0 is below it.",
                Query(f"max by (experiment) (switchyard_experiment_step{_WHERE})", "{{experiment}}"),
            )
        )
        .with_panel(
            plot(
                "State",
                COUNT,
                "1 for running, paused or stopped.",
                Query(
                    f"max by (experiment, state) (switchyard_experiment_state{_WHERE}) > 0", "{{experiment}} {{state}}"
                ),
                highest=1,
            )
        )
        .with_row(row("Alarms"))
        .with_panel(
            signed_plot(
                "Guardrails",
                COUNT,
                "Evidence that a limit is exceeded, as a logarithm.",
                Query(
                    f"max by (experiment, event, treatment) (switchyard_guardrail_log_e_value{_WHERE})",
                    "{{event}} {{treatment}}",
                ),
            )
        )
        .with_panel(
            signed_plot(
                "Sample ratio",
                COUNT,
                "Evidence that units contradict the weights. At 6.9 no verdict can be trusted.",
                Query(f"max by (experiment) (switchyard_sample_ratio_log_e_value{_WHERE})", "{{experiment}}"),
            )
        )
        .with_panel(
            plot(
                "Stops",
                COUNT,
                "1 while a deployment gets no traffic of an endpoint.",
                Query("max by (endpoint, deployment) (switchyard_stops)", "{{endpoint}} {{deployment}}"),
                highest=1,
            )
        )
        .with_row(row("Evidence on its way"))
        .with_panel(
            plot(
                "Units",
                COUNT,
                "With an exposure, by arm.",
                Query(f"max by (experiment, arm) (switchyard_experiment_units{_WHERE})", "{{experiment}} {{arm}}"),
            )
        )
        .with_panel(
            plot(
                "Exposures",
                PER_SECOND,
                "Recorded, and lost while the controller was away.",
                rates("switchyard_ledger_rows_total", "endpoint"),
                rates("switchyard_ledger_rows_lost_total", "endpoint")._replace(legend="{{endpoint}} lost"),
            )
        )
        .with_panel(
            plot(
                "Waiting for the controller",
                BYTES,
                "By router: what is not durable yet.",
                Query("max by (replica) (switchyard_ledger_buffer_bytes)", "{{replica}}"),
            )
        )
        .with_panel(
            plot(
                "Batches",
                SECONDS,
                "From sending one to its acknowledgement.",
                *quantiles("switchyard_ledger_batch_seconds", "application"),
            )
        )
        .with_panel(
            plot(
                "Running conversations",
                COUNT,
                "Those that keep their deployment after a change.",
                Query("max by (endpoint) (switchyard_pins)", "{{endpoint}}"),
            )
        )
        .with_panel(
            plot(
                "Conversations that lost their deployment",
                PER_SECOND,
                "By cause.",
                rates("switchyard_pin_misses_total", "cause"),
            )
        )
    )
