"""The manifests that are generated from what a cluster serves."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from app.config.base import ConfigError
from deployments.haproxy import cluster_settings
from deployments.kubernetes.generated import GENERATED, SERVED, generate, group_of, is_current
from tests.support.processes.project import ROOT

OVERLAYS = sorted(path.parent for path in (ROOT / "k8s/overlays").glob(f"*/{SERVED}"))


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_the_committed_parts_are_the_generated_ones(overlay: Path) -> None:
    assert is_current(overlay), "run `make k8s`"


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_the_served_configuration_survives_as_it_is(overlay: Path) -> None:
    patch, _ = yaml.safe_load_all(generate(overlay))
    assert yaml.safe_load(patch["spec"]["serveConfigV2"]) == yaml.safe_load((overlay / SERVED).read_text())


def test_a_changed_configuration_is_not_current(tmp_path: Path) -> None:
    served = (OVERLAYS[0] / SERVED).read_text()
    (tmp_path / SERVED).write_text(served)
    assert not is_current(tmp_path)
    (tmp_path / GENERATED).write_text(generate(tmp_path))
    assert is_current(tmp_path)
    (tmp_path / SERVED).write_text(served.replace("keep_alive_timeout_s: 120", "keep_alive_timeout_s: 119"))
    assert not is_current(tmp_path)


def test_an_invalid_file_generates_nothing(tmp_path: Path) -> None:
    (tmp_path / SERVED).write_text((OVERLAYS[0] / SERVED).read_text().replace("traffic:", "trafic:", 1))
    with pytest.raises(ConfigError, match="trafic"):
        generate(tmp_path)


@pytest.mark.parametrize(
    ("resource", "group"),
    [("accelerator_type:L4", "gpu-l4"), ("accelerator_type:A100-80G", "gpu-a100-80g"), ("engines", "engines")],
)
def test_a_resource_names_its_group(resource: str, group: str) -> None:
    assert group_of(resource) == group


def overlay(directory: Path, most: int) -> Path:
    """A copy of `gpu` and of what it refers to, whose engine group may have up to `most` nodes."""
    shutil.copytree(ROOT / "k8s", directory / "k8s")
    found = directory / "k8s/overlays/gpu"
    group = found / "gpu-l4.yaml"
    group.write_text(re.sub(r"maxReplicas: \d+", f"maxReplicas: {most}", group.read_text()))
    (found / GENERATED).unlink()
    return found


def settings(generated: str) -> list[dict[str, str]]:
    """The environment of the head, and of each group."""
    patch, _ = yaml.safe_load_all(generated)
    cluster = patch["spec"]["rayClusterConfig"]
    parts = [it["template"] for it in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]) if "template" in it]
    return [
        {it["name"]: it["value"] for it in container["env"]}
        for part in parts
        for container in part["spec"]["containers"]
    ]


def test_the_settings_are_for_as_many_nodes_as_there_may_be(tmp_path: Path) -> None:
    large = overlay(tmp_path, most=194)  # with the head and 5 routers: 200
    assert settings(generate(large)) == [dict(cluster_settings(200))] * 3
    (large / GENERATED).write_text(generate(large))
    assert is_current(large)
    group = large / "gpu-l4.yaml"
    group.write_text(group.read_text().replace("194", "294"))
    assert not is_current(large)


def test_a_small_cluster_keeps_rays_settings(tmp_path: Path) -> None:
    patch, _ = yaml.safe_load_all(generate(overlay(tmp_path, most=4)))
    assert "headGroupSpec" not in patch["spec"]["rayClusterConfig"]


def test_adapters_are_fetched_with_the_weights(tmp_path: Path) -> None:
    document = yaml.safe_load((OVERLAYS[0] / SERVED).read_text())
    engine = next(it["args"]["llm_config"] for it in document["applications"] if "llm_config" in it.get("args", {}))
    modules = [{"name": "fr", "path": "/models/acme/french"}, {"name": "de", "path": "acme/german"}]
    engine.setdefault("engine_kwargs", {})["lora_modules"] = modules
    (tmp_path / SERVED).write_text(yaml.safe_dump(document))
    *_, weights = yaml.safe_load_all(generate(tmp_path))
    script = weights["data"]["fetch.sh"]
    assert "hf download acme/french --local-dir /models/acme/french" in script
    assert "german" not in script, "the Job fills only the volume; `switchyard check` finds the others"
