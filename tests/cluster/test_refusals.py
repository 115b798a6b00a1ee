"""Requests that a full replica refuses are demand: replicas are added for them."""

import pytest

from tests.cluster.conftest import BLUE, served
from tests.support.cluster.clients import Ask
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def test_what_was_refused_starts_replicas(cluster: Cluster, the_lab: Lab, figures: Figures) -> None:
    """Two requests run of a target of 4: only what was refused asks for a second replica."""
    document = served(the_lab, min_replicas=1, max_replicas=2)
    [engine] = next(it for it in document["applications"] if it["name"] == BLUE)["deployments"]
    engine |= {"max_ongoing_requests": 2, "max_queued_requests": 0}
    cluster.apply(document)
    cluster.until(lambda: len(cluster.replicas(BLUE)) == 1, cluster.serve.messages)
    with cluster.client.asking([Ask(chunks=60, every_s=1.0, within_s=120)] * 2) as streams:
        cluster.until(streams.have_begun, lambda: [str(it) for it in streams.outcomes])
        refused = [it for it in cluster.client.ask_all([Ask(streamed=False)] * 12) if it.status == 503]
        assert refused
        waited = cluster.until(lambda: len(cluster.replicas(BLUE)) == 2, cluster.serve.messages, within_s=120)
    figures.add("12 requests at a full replica", f"{len(refused)} refused; a second replica after {waited:.0f} s")
