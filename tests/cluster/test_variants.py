"""A new variant, the overlay's own model with real vLLM, is added to a running cluster before its weights are there."""

import copy
import time
from typing import Any

import openai
import pytest
import yaml

from app.internal_api import AWAIT_WEIGHTS_VARIABLE, ROUTER
from tests.cluster.conftest import BLUE, GREEN, served
from tests.support.cluster.clients import lost
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture
def awake(cluster: Cluster, the_lab: Lab) -> Cluster:
    """One replica of the engine."""
    cluster.apply(served(the_lab, min_replicas=1, max_replicas=1))
    cluster.until(lambda: len(cluster.replicas(BLUE)) == 1, cluster.serve.messages)
    return cluster


def with_variant(the_lab: Lab, environment: dict[str, str]) -> Any:
    """The configuration with one more application, in an endpoint of its own."""
    overlay = yaml.safe_load(the_lab.service_object()["spec"]["serveConfigV2"])
    variant = next(
        copy.deepcopy(application) for application in overlay["applications"] if application["name"] == GREEN
    )
    variant["args"]["llm_config"]["runtime_env"]["env_vars"] |= environment
    changed = served(the_lab, min_replicas=1, max_replicas=1)
    user_config = changed["applications"][0]["deployments"][0]["user_config"]
    router = next(application for application in overlay["applications"] if application["name"] == ROUTER)
    known = router["deployments"][0]["user_config"]["deployments"]
    user_config["deployments"][GREEN] = known[GREEN]
    user_config["endpoints"]["variant"] = {"tasks": ["chat"], "traffic": {GREEN: 100}}
    return {**changed, "applications": [*changed["applications"], variant]}


def status(cluster: Cluster) -> str | None:
    return cluster.serve.statuses().get(GREEN)


def test_a_new_variant_waits_for_its_weights_and_leaves_the_others_running(
    awake: Cluster, the_lab: Lab, figures: Figures
) -> None:
    """The Job begins when an engine that does not wait would long have been given up."""
    awake.serve.put(with_variant(the_lab, {AWAIT_WEIGHTS_VARIABLE: "0"}))
    gave_up = awake.until(lambda: status(awake) == "DEPLOY_FAILED", awake.serve.messages)
    awake.serve.put(served(the_lab, min_replicas=1, max_replicas=1))
    awake.until(lambda: status(awake) is None and len(awake.routers()) == 2, awake.serve.messages)
    before = {**awake.replicas(BLUE), **awake.routers()}
    assert "Waiting for the weights" not in the_lab.logs()
    begun = time.monotonic()
    with awake.client.dripping() as drip:
        awake.serve.put(with_variant(the_lab, {}))
        said = f"Waiting for the weights package:{MODEL}: no Job has begun to fetch it"
        awake.until(lambda: said in the_lab.logs(), awake.serve.messages)
        awake.until(lambda: time.monotonic() > begun + 2 * gave_up, awake.serve.messages)
        assert status(awake) == "DEPLOYING"
        assert len(awake.serve.replicas(GREEN, "STARTING")) == 1
        with the_lab.job() as job:
            awake.until(lambda: job.has_ended, lambda: job.log.read_text())
            assert job.exit_code == 0, job.log.read_text()
        awake.runs(within_s=900)
        waited = time.monotonic() - begun
    assert the_lab.logs().count(said) == 1, "its first start went on"
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
        "One more variant (the overlay's own model, real vLLM), applied before its weights are there",
        f"it waits, while without the wait Serve gives it up after {gave_up:.0f} s; the Job begins {2 * gave_up:.0f} s "
        f"after it, and it runs after {waited:.0f} s; the other variant's and the routers' processes stay; 0 of "
        f"{len(drip.outcomes)} requests lost",
    )
