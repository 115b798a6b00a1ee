"""The end of the application. It is the last file: nothing runs after it."""

import signal
import time

import pytest

from deployments.local import processes as run_processes
from tests.faults.conftest import Cluster
from tests.support.processes.load import Traffic, lanes, unexplained

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]


def test_sigterm_finishes_requests_in_progress(cluster: Cluster) -> None:
    streams = [lane for lane in lanes(tokens=400) if lane.streamed]
    with Traffic(cluster.url, streams).running() as traffic:
        moment = traffic.all_at_once()
        cluster.launcher.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        traffic.stop()
    assert cluster.launcher.process.wait(120) == 0
    carried = [outcome for outcome in traffic.since(moment) if outcome.begun < moment]
    assert {outcome.lane.name for outcome in carried} == {lane.name for lane in streams}
    assert unexplained(carried) == []
    assert run_processes.processes_of(cluster.launcher.run_id) == []
