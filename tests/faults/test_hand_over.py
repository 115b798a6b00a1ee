"""A replica that is stopped hands its streams over, and ends: clients notice nothing."""

import pytest

from tests.faults.conftest import REPLICA, Cluster
from tests.support.processes.load import Traffic, lanes, unexplained
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]

GONE_WITHIN_S = 60
"""Its streams alone would take longer."""


@pytest.mark.usefixtures("unchanged")
def test_a_scale_down_ends_no_stream_and_waits_for_none(cluster: Cluster) -> None:
    streams = [lane for lane in lanes(tokens=1900) if lane.streamed]
    with Traffic(cluster.url, streams).running() as traffic:
        moment = traffic.all_at_once()
        cluster.change(engine={"num_replicas": 1})
        wait_until(lambda: len(cluster.processes(REPLICA)) == 1, cluster.state, within_s=GONE_WITHIN_S)
        traffic.stop()
    carried = [outcome for outcome in traffic.since(moment) if outcome.begun < moment]
    assert {outcome.lane.name for outcome in carried} == {lane.name for lane in streams}
    assert unexplained(carried) == []
    wait_until(lambda: any(map(_is_of_a_hand_over, cluster.metrics())), cluster.metrics)  # of one of the routers


def _is_of_a_hand_over(name: str) -> bool:
    return name.startswith("switchyard_continued_streams_total") and 'reason="handover"' in name
