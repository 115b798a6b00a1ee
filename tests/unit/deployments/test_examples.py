"""The autoscaling of every shipped example, explained in docs/operate/models.md#autoscaling."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.support.clients.documents import PAGES, blocks
from tests.support.processes.project import ROOT

FILES = (ROOT / "serve_config.yaml", *sorted((ROOT / "k8s/overlays").glob("*/serve_config.yaml")))
DELAYS = {"upscale_delay_s": 5, "downscale_delay_s": 300}
ENGINES = {
    **DELAYS,
    "policy": {"policy_function": "deployments.autoscaling:replicas_needed"},
    "look_back_period_s": 10,
    "metrics_interval_s": 2,
}


def examples() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every application with autoscaling in the files, and those in the documentation that have room to scale."""
    for file in FILES:
        for application in yaml.safe_load(file.read_text())["applications"]:
            yield from ((f"{file.relative_to(ROOT)}:{application['name']}", it) for it in scaled(application))
    for block in (block for page in PAGES for block in blocks(page) if block.language == "yaml"):
        example = yaml.safe_load(block.code)
        for application in example if isinstance(example, list) else []:
            for it in scaled(application):
                scaling = it["autoscaling_config"]
                if scaling["max_replicas"] > scaling["min_replicas"]:
                    yield f"{block.id}:{application['name']}", it


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
        *(str(file.relative_to(ROOT)) for file in FILES),
        "docs/operate/models.md",
    }
