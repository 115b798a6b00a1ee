"""The policy against Ray Serve's own, on the trace of the benchmark."""

import pytest


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_our_policy_is_ahead_on_the_pareto_front() -> None:
    """For each result of Serve's policy there is one of ours that costs less and is late less often."""
    from benchmarks.autoscaling.__main__ import rows  # Ray's modules warn when they are imported

    simulated = list(rows())
    ours = [row.outcome for row in simulated if row.policy == "`replicas_needed`"]
    others = [row for row in simulated if row.outcome not in ours]
    assert len(others) == 6
    for row in others:
        assert any(outcome.gpu_s < row.outcome.gpu_s and outcome.late < row.outcome.late for outcome in ours), row
