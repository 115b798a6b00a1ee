"""The overlays' configurations, read by Ray's own code."""

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
    from ray.serve.config import AutoscalingConfig
    from ray.serve.llm import LLMConfig
    from ray.serve.schema import DeploymentSchema, ServeApplicationSchema, ServeDeploySchema


def served(overlay: str) -> Any:
    return yaml.safe_load(ray_service(rendered(overlay))["spec"]["serveConfigV2"])


pytestmark = pytest.mark.filterwarnings("ignore:.*metrics_interval_s.*:DeprecationWarning")


def unknown(document: Any) -> set[str]:
    """Keys that Serve drops silently: its schema is open."""
    parts = [(ServeDeploySchema, document)]
    for application in document["applications"]:
        parts.append((ServeApplicationSchema, application))
        for deployment in application["deployments"]:
            parts.append((DeploymentSchema, deployment))
            parts.append((AutoscalingConfig, deployment.get("autoscaling_config", {})))
    return {str(key) for schema, part in parts for key in part if key not in schema.model_fields}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_serve_accepts_what_the_overlays_serve(overlay: str) -> None:
    assert len(ServeDeploySchema.model_validate(served(overlay)).applications) == 5
    assert unknown(served(overlay)) == set()


def test_fields_unknown_to_serve_are_found() -> None:
    document = served("gpu")
    (router,) = document["applications"][0]["deployments"]
    router["autoscaling_config"]["min_replica"] = 1
    router["max_ongoing_request"] = 1
    assert unknown(document) == {"min_replica", "max_ongoing_request"}
    router["max_ongoing_requests"] = "many"
    with pytest.raises(ValueError, match="max_ongoing_requests"):
        ServeDeploySchema.model_validate(document)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_engines_request_the_resources_that_the_check_counts(overlay: str) -> None:
    document = served(overlay)
    engines = {
        application["name"]: application["args"]["llm_config"]
        for application in document["applications"]
        if "llm_config" in application["args"]
    }
    assert len(engines) == 3
    counted = {demand.application: demand.bundles for demand in demands(document)}
    for name, config in engines.items():
        options = LLMServer.get_deployment_options(LLMConfig.model_validate(config))
        calls = [
            {key: value for key, value in bundle.items() if value} for bundle in options["placement_group_bundles"]
        ]
        assert calls == list(counted[name])
