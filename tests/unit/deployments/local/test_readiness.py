"""The failures that end a start."""

import pytest

from deployments.local.dashboard import Application
from deployments.local.processes import LaunchError
from deployments.local.readiness import UNHEALTHY_S, Failures


def application(status: str) -> Application:
    return Application("chat", status, ("The engine failed", "out of memory"), running=0, wanted=1)


def test_a_failed_application_ends_the_start_at_once_with_serves_reasons() -> None:
    with pytest.raises(LaunchError, match=r"Application 'chat' failed \(DEPLOY_FAILED\):\nThe engine failed\nout of"):
        Failures().check(application("DEPLOY_FAILED"), now=0)


def test_an_unhealthy_application_ends_the_start_after_a_while() -> None:
    failures = Failures()
    failures.check(application("UNHEALTHY"), now=100)
    failures.check(application("UNHEALTHY"), now=100 + UNHEALTHY_S)
    with pytest.raises(LaunchError, match="UNHEALTHY"):
        failures.check(application("UNHEALTHY"), now=101 + UNHEALTHY_S)


def test_an_application_that_recovers_starts_a_new_count() -> None:
    failures = Failures()
    failures.check(application("UNHEALTHY"), now=0)
    failures.check(application("DEPLOYING"), now=UNHEALTHY_S)
    failures.check(application("UNHEALTHY"), now=2 * UNHEALTHY_S)


def test_missing_replicas_are_part_of_the_state() -> None:
    assert application("DEPLOYING").state == "DEPLOYING (0/1 replicas)"
    assert Application("chat", "RUNNING", (), running=2, wanted=2).state == "RUNNING"
