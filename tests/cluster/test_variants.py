"""A new variant, the overlay's own model with real vLLM, is added to a running cluster."""

import copy

import openai
import pytest
import yaml

from deployments.weights.cache import default_cache, prepare
from tests.cluster.conftest import BLUE, GREEN, served
from tests.support.cluster.clients import lost
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture
def awake(cluster: Cluster, the_lab: Lab) -> Cluster:
    """One replica of the engine."""
    cluster.apply(served(the_lab, min_replicas=1, max_replicas=1))
    cluster.until(lambda: len(cluster.replicas(BLUE)) == 1, cluster.serve.messages)
    return cluster


def test_a_new_variant_leaves_the_others_running(awake: Cluster, the_lab: Lab, figures: Figures) -> None:
    prepare(MODEL, default_cache())
    overlay = yaml.safe_load(the_lab.service_object()["spec"]["serveConfigV2"])
    variant = next(copy.deepcopy(it) for it in overlay["applications"] if it["name"] == GREEN)
    changed = served(the_lab, min_replicas=1, max_replicas=1)
    user_config = changed["applications"][0]["deployments"][0]["user_config"]
    user_config["deployments"][GREEN] = {"app": GREEN, "model": MODEL}
    user_config["endpoints"]["variant"] = {"tasks": ["chat"], "traffic": {GREEN: 100}}
    changed["applications"].append(variant)
    before = {**awake.replicas(BLUE), **awake.routers()}
    with awake.client.dripping() as drip:
        awake.apply(changed)
        awake.until(lambda: bool(awake.replicas(GREEN)), awake.serve.messages)
    assert lost(drip.outcomes) == []
    assert {**awake.replicas(BLUE), **awake.routers()} == before
    address = awake.kuberay.endpoints()[0]
    client = openai.OpenAI(base_url=f"http://{address}:8000/v1", api_key=the_lab.key, timeout=120, max_retries=0)
    question = "What are the primary colors?"
    chunks = client.chat.completions.create(
        model="variant", messages=[{"role": "user", "content": question}], stream=True, max_tokens=24, temperature=0
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    client.close()
    assert "red" in text.lower(), text
    figures.add(
        "One more variant (the overlay's own model, real vLLM), applied as a new configuration",
        f"the other variant's and the routers' processes stay; 0 of {len(drip.outcomes)} requests lost",
    )
