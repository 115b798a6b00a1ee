"""The autoscaling of every shipped example, explained in docs/operate/models.md#autoscaling."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from deployments.kubernetes.manifests import ray_service
from tests.support.clients.documents import PAGES, blocks
from tests.support.kubernetes.overlays import OVERLAYS, rendered
from tests.support.processes.project import ROOT

SERVED = {
    "serve_config.yaml": (ROOT / "serve_config.yaml").read_text(),
    **{f"k8s/chart:{overlay}": ray_service(rendered(overlay))["spec"]["serveConfigV2"] for overlay in OVERLAYS},
}
DELAYS = {"upscale_delay_s": 5, "downscale_delay_s": 300}
ENGINES = {
    **DELAYS,
    "policy": {"policy_function": "deployments.autoscaling:replicas_needed"},
    "look_back_period_s": 10,
    "metrics_interval_s": 2,
}


def examples() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every application with autoscaling in what the project serves, and those of the pages that have room to scale."""
    for file, text in SERVED.items():
        for application in yaml.safe_load(text)["applications"]:
            yield from ((f"{file}:{application['name']}", deployment) for deployment in scaled(application))
    for block in (block for page in PAGES for block in blocks(page) if block.language == "yaml"):
        example = yaml.safe_load(block.code)
        for application in example if isinstance(example, list) else []:
            for deployment in scaled(application):
                scaling = deployment["autoscaling_config"]
                if scaling["max_replicas"] > scaling["min_replicas"]:
                    yield f"{block.id}:{application['name']}", deployment


def scaled(application: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for deployment in application.get("deployments", []):
        if "autoscaling_config" in deployment:
            yield deployment


EXAMPLES = dict(examples())


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_an_example_scales_by_our_policy_and_delays(example: Mapping[str, Any]) -> None:
    expected = ENGINES if example["name"] == "Engine" else DELAYS
    assert expected.items() <= example["autoscaling_config"].items()


def test_the_examples_are_those_of_files_and_of_the_documentation() -> None:
    assert {name.rpartition(":")[0].partition(":")[0] for name in EXAMPLES} == {
        *(name.partition(":")[0] for name in SERVED),
        "docs/operate/models.md",
    }
