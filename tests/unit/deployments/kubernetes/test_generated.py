"""The manifests that are generated from what a cluster serves."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from app.config.base import ConfigError
from deployments.haproxy import cluster_settings
from deployments.kubernetes.generated import GENERATED, GENERATED_JOB, SERVED, SIZE, generate, group_of, is_current
from deployments.kubernetes.manifests import Manifest, ray_service, read
from tests.support.processes.project import ROOT

OVERLAYS = sorted(path.parent for path in (ROOT / "k8s/overlays").glob(f"*/{SERVED}"))


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_the_committed_parts_are_the_generated_ones(overlay: Path) -> None:
    assert is_current(overlay), "run `make k8s`"


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_the_served_configuration_survives_as_it_is(overlay: Path) -> None:
    patch, _ = yaml.safe_load_all(generate(overlay)[GENERATED])
    assert yaml.safe_load(patch["spec"]["serveConfigV2"]) == yaml.safe_load((overlay / SERVED).read_text())


def write(overlay: Path) -> None:
    for name, content in generate(overlay).items():
        (overlay / name).write_text(content)


def test_a_changed_configuration_is_not_current(tmp_path: Path) -> None:
    served = (OVERLAYS[0] / SERVED).read_text()
    (tmp_path / SERVED).write_text(served)
    assert not is_current(tmp_path)
    write(tmp_path)
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


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    """A copy of the overlay `gpu`, and of what it refers to."""
    shutil.copytree(ROOT / "k8s", tmp_path / "k8s")
    return tmp_path / "k8s/overlays/gpu"


def resize(overlay: Path, most: int) -> None:
    """Gives its engine group up to `most` nodes."""
    group = overlay / "gpu-l4.yaml"
    group.write_text(re.sub(r"maxReplicas: \d+", f"maxReplicas: {most}", group.read_text()))


def settings(overlay: Path) -> dict[str, str]:
    _, size = yaml.safe_load_all(generate(overlay)[GENERATED])
    assert size["metadata"]["name"] == SIZE
    return dict(size["data"])


def test_the_settings_are_for_as_many_nodes_as_there_may_be(gpu: Path) -> None:
    resize(gpu, 194)  # with the head and 5 routers: 200
    assert settings(gpu) == dict(cluster_settings(200))
    assert not is_current(gpu)
    write(gpu)
    assert is_current(gpu)
    resize(gpu, 4)
    assert settings(gpu) == {}, "Ray's own"


def test_new_groups_come_last(gpu: Path) -> None:
    """KubeRay adds a group to a running cluster only at the end of the list; kustomize puts a patch's group first."""
    before = names(gpu)
    (gpu / "gpu-a100.yaml").write_text((gpu / "gpu-l4.yaml").read_text().replace("gpu-l4", "gpu-a100"))
    kustomization = gpu / "kustomization.yaml"
    text = kustomization.read_text().replace(
        "  - path: gpu-l4.yaml\n", "  - path: gpu-l4.yaml\n  - path: gpu-a100.yaml\n"
    )
    copy, replace = (f"      - {{op: {op}, " for op in ("copy", "replace"))
    first = "/spec/rayClusterConfig/workerGroupSpecs"
    more = f"{copy}from: {first}/1, path: {first}/-}}\n{replace}path: {first}/2/groupName, value: gpu-a100}}\n"
    kustomization.write_text(text.replace("  - path: gpu-l4.yaml\n", f"{more}  - path: gpu-l4.yaml\n", 1))
    write(gpu)
    assert names(gpu) == [*before, "gpu-a100"]
    assert is_current(gpu)


def names(overlay: Path) -> list[str]:
    """The groups as the API server gets them."""
    return [it["groupName"] for it in ray_service(read(overlay))["spec"]["rayClusterConfig"]["workerGroupSpecs"]]


def job(overlay: Path) -> Manifest:
    return next(it for it in read(overlay) if it["kind"] == "Job")


def test_the_job_has_another_name_for_whatever_it_does_otherwise(gpu: Path) -> None:
    """A Job's template cannot be changed, and `kubectl apply` does not run a Job again."""
    seen = {job(gpu)["metadata"]["name"]}
    for file, before, after in (
        (SERVED, "BAAI/bge-base-en-v1.5", "BAAI/bge-large-en-v1.5"),
        ("kustomization.yaml", "newTag: 0.1.0-", "newTag: 0.1.1-"),
        ("../../base/weights.yaml", "memory: 4Gi", "memory: 5Gi"),
    ):
        path = gpu / file
        path.write_text(path.read_text().replace(before, after))
        assert not is_current(gpu), file
        write(gpu)
        seen.add(job(gpu)["metadata"]["name"])
    assert len(seen) == 4
    assert all(re.fullmatch(r"switchyard-weights-[0-9a-f]{8}", name) for name in seen)


def test_adapters_are_fetched_with_the_weights(tmp_path: Path) -> None:
    document = yaml.safe_load((OVERLAYS[0] / SERVED).read_text())
    engine = next(it["args"]["llm_config"] for it in document["applications"] if "llm_config" in it.get("args", {}))
    modules = [{"name": "fr", "path": "/models/acme/french@abc"}, {"name": "de", "path": "acme/german"}]
    engine.setdefault("engine_kwargs", {})["lora_modules"] = modules
    (tmp_path / SERVED).write_text(yaml.safe_dump(document))
    _, arguments = yaml.safe_load(generate(tmp_path)[GENERATED_JOB])
    assert "hf:acme/french@abc" in arguments["value"]
    assert "package:all-MiniLM-L6-v2" in arguments["value"]
    assert "german" not in str(arguments), "the Job fills only the volume; `switchyard check` finds the others"
