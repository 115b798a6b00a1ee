"""What the overlays serve, by Ray's own code."""

import warnings
from typing import Any

import pytest
import yaml

from deployments.kubernetes.demands import demands
from deployments.kubernetes.manifests import ray_service
from tests.support.kubernetes.overlays import OVERLAYS, rendered

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, when it is imported
    from ray.llm._internal.serve.core.server.llm_server import LLMServer
    from ray.serve.llm import LLMConfig
    from ray.serve.schema import ServeDeploySchema


def served(overlay: str) -> Any:
    return yaml.safe_load(ray_service(rendered(overlay))["spec"]["serveConfigV2"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_serve_takes_what_is_served(overlay: str) -> None:
    assert len(ServeDeploySchema.model_validate(served(overlay)).applications) == 5


def test_a_field_that_serve_does_not_know_is_found() -> None:
    document = served("gpu")
    document["applications"][0]["deployments"][0]["autoscaling_config"]["min_replica"] = 1
    with pytest.raises(ValueError, match="min_replica"):
        ServeDeploySchema.model_validate(document)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_engines_ask_ray_for_what_the_check_counts(overlay: str) -> None:
    document = served(overlay)
    engines = {it["name"]: it["args"]["llm_config"] for it in document["applications"] if "llm_config" in it["args"]}
    assert len(engines) == 3
    counted = {it.application: it.bundles for it in demands(document)}
    for name, config in engines.items():
        options = LLMServer.get_deployment_options(LLMConfig.model_validate(config))
        asked = [{key: it for key, it in bundle.items() if it} for bundle in options["placement_group_bundles"]]
        assert asked == list(counted[name])
