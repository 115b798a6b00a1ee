"""A node of engines falls silent, and a pod of engines is stopped, under streams of real vLLM, which have marks."""

import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from deployments.kubernetes.manifests import ray_service
from tests.cluster.conftest import BLUE, ENGINES, addresses, at_work, served
from tests.support.cluster.clients import Ask, Outcome, lost
from tests.support.cluster.figures import Figures
from tests.support.cluster.kuberay import raycluster
from tests.support.cluster.lab import Cluster, Lab
from tests.support.cluster.network import PREFIX, joined
from tests.support.cluster.pace import STEP_S
from tests.support.kubernetes.overlays import CHART, made
from tests.support.processes.scraper import Scraper

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

CONTINUED = "switchyard_continued_streams_total"
TINY = "/app/.models/tiny-llama"
PACE = "tests.support.cluster.pace:Pace"
NOTICE_S = 120
IDLE_S = 120
"""Longer than any pause: it is not the router's clock that notices."""


@dataclass(frozen=True)
class TokensAsk(Ask):
    """A chat request for exactly `chunks` tokens."""

    def body(self) -> dict[str, object]:
        messages = [{"role": "user", "content": f"Conversation {random.getrandbits(64)}"}]
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        exactly = {"max_tokens": self.chunks, "ignore_eos": True, "temperature": 0}
        return {"model": self.endpoint, "messages": messages, **streamed, **exactly}


def tokens(outcome: Outcome) -> int | None:
    """How many the engine counted, in the stream's last event but `[DONE]`."""
    events = [line.removeprefix("data: ") for line in outcome.text.split("\n") if line.startswith("data: {")]
    count: int | None = (json.loads(events[-1]).get("usage") or {}).get("completion_tokens")
    return count


@pytest.fixture(scope="module")
def continuing(cluster: Cluster, the_lab: Lab) -> Cluster:
    """Two replicas of a real engine on two nodes. It is a small one, with a given pace."""
    document = served(the_lab, min_replicas=2, max_replicas=2)
    document["applications"] = [
        with_marks(the_lab, application) if application["name"] == BLUE else application
        for application in document["applications"]
    ]
    router = document["applications"][0]["deployments"][0]["user_config"]
    router["timeouts"] = {"idle_s": IDLE_S, "first_byte_s": IDLE_S}
    router["deployments"][BLUE]["continuation"] = {"wait_s": IDLE_S}
    cluster.apply(document)
    cluster.until(lambda: len(at_work(cluster)) == 2, cluster.serve.messages)
    cluster.until(lambda: len(cluster.kuberay.endpoints()) >= 2, cluster.kuberay.endpoints)
    give_notice(cluster)
    return cluster


def give_notice(cluster: Cluster) -> None:
    """Makes the pods of engines that start from now on those of spot nodes, as the chart does."""
    values = yaml.safe_load((CHART / "ci/cpu-demo-values.yaml").read_text())
    spot = raycluster(ray_service(made(**values, nodes={"cpu": {"notice": NOTICE_S}})), "spot")
    (group,) = (group for group in spot["spec"]["workerGroupSpecs"] if group["groupName"] == ENGINES)
    with cluster.kuberay.store.lock:
        cluster.kuberay.store.group(ENGINES)["template"] = group["template"]


def with_marks(the_lab: Lab, application: dict[str, Any]) -> dict[str, Any]:
    """The overlay's own engine in place of the paced one, where and when that one would run; with a smaller model."""
    document = yaml.safe_load(the_lab.service_object()["spec"]["serveConfigV2"])
    (own,) = (entry for entry in document["applications"] if entry["name"] == BLUE)
    config = own["args"]["llm_config"]
    config["model_loading_config"]["model_source"] = TINY
    config["deployment_config"] = application["args"]["llm_config"]["deployment_config"]
    config["engine_kwargs"] |= {"max_num_seqs": 64, "logits_processors": [PACE]}
    return {**application, "import_path": own["import_path"], "args": own["args"]}


def continued(cluster: Cluster) -> Counter[tuple[str, str]]:
    """The streams that have lost their engine so far, by reason and outcome."""
    with joined(PREFIX + cluster.kuberay.head.name):  # no policy lets others reach the head
        samples = Scraper(f"http://{cluster.kuberay.head.address}:8000").scrape()
    found = Counter[tuple[str, str]]()
    for (name, labels), value in samples.items():
        if name == CONTINUED:
            found[dict(labels)["reason"], dict(labels)["outcome"]] += int(value)
    return found


def assert_whole(outcomes: Sequence[Outcome], count: int) -> None:
    """Every stream has ended well, with as many tokens as were asked for."""
    assert lost(outcomes) == []
    assert {tokens(outcome) for outcome in outcomes} == {count}


def test_the_streams_of_a_silent_node_go_on_elsewhere(continuing: Cluster, figures: Figures) -> None:
    """Nothing closes their connections: the node's kernel is gone, too."""
    cluster, (engine, *_), before = continuing, at_work(continuing), continued(continuing)
    asks = [TokensAsk(chunks=400, within_s=600)] * 32
    with cluster.client.asking(asks) as streams:
        cluster.until(streams.have_started, lambda: [str(outcome) for outcome in streams.outcomes])
        time.sleep(50 * STEP_S)
        cluster.kuberay.lose(engine)
        outcomes = streams.wait()
    assert_whole(outcomes, 400)
    moved = continued(cluster) - before
    cluster.until(lambda: engine.address not in addresses(cluster), cluster.serve.messages)
    cluster.kuberay.remove_node(engine)  # its pod, whose end is not reported, counts until then
    cluster.until(lambda: len(at_work(cluster)) == 2, cluster.serve.messages, within_s=480)
    assert set(moved) == {("closed", "continued")}
    count = moved.total()
    assert 0 < count < len(outcomes), "each engine had some"
    pauses = sorted(outcome.paused_s for outcome in outcomes)[-count:]
    figures.add(
        "A node of engines stops responding under streams of real vLLM",
        f"0 of {len(outcomes)} streams lost, all with every token: {count} went on on the other node, after a pause of "
        f"{statistics.median(pauses):.1f} s (at most {pauses[-1]:.1f} s)",
    )


def test_the_streams_of_ten_minutes_of_a_stopped_pod_go_on_elsewhere(continuing: Cluster, figures: Figures) -> None:
    """The pod ends without them, within a spot node's notice: no client comes through its ingress."""
    cluster, before = continuing, continued(continuing)
    engine = at_work(cluster)[-1]
    assert engine.grace_s < NOTICE_S, "it started after the notice was given"
    count = round(600 / STEP_S)
    with cluster.client.asking([TokensAsk(chunks=count, within_s=1500)] * 16) as streams:
        cluster.until(streams.have_started, lambda: [str(outcome) for outcome in streams.outcomes])
        time.sleep(50 * STEP_S)
        engine.delete()
        gone = cluster.until(lambda: engine not in cluster.kuberay.pods, cluster.serve.messages)
        assert gone < engine.grace_s, "it was not killed"
        assert all(outcome.ended is None for outcome in streams.outcomes), [*map(str, streams.outcomes)]
        outcomes = streams.wait()
    assert_whole(outcomes, count)
    moved = continued(cluster) - before
    assert set(moved) == {("handover", "continued")}
    pauses = sorted(outcome.paused_s for outcome in outcomes)[-moved.total() :]
    shortest = min((outcome.ended or 0) - outcome.begun for outcome in outcomes)
    figures.add(
        f"SIGTERM to a pod of engines on a node with {NOTICE_S} s of notice, under streams of real vLLM",
        f"gone after {gone:.0f} s; 0 of {len(outcomes)} streams of {shortest / 60:.0f} min lost, all with every token: "
        f"{moved.total()} went on elsewhere, after a pause of {statistics.median(pauses):.1f} s (at most "
        f"{pauses[-1]:.1f} s)",
    )
