"""What a machine with GPUs, or without, can hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

from app.config.loading import load_document
from deployments.local import accelerator
from deployments.local.accelerator import Gpu, NoGpus
from deployments.local.fit import engine_problems, memory_misfits, misfits
from deployments.local.own_model import OwnModel, Placement, Variant
from tests.support.processes.installations import engine

L4 = Gpu("NVIDIA L4", "580.95.05", 23034, 1)
H100 = Gpu("NVIDIA H100 80GB HBM3", "580.95.05", 81559, 1)


def model(placement: Placement, *variants: dict[str, Any]) -> dict[str, Any]:
    """The configuration of variants with these engine arguments: `v0`, `v1` …"""
    named = [Variant(f"v{number}", "org/name", arguments) for number, arguments in enumerate(variants)]
    text = OwnModel("chat", "org/name", named, placement).as_yaml()
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def unfit(document: dict[str, Any], gpus: Sequence[Gpu] | NoGpus, *, is_cuda_build: bool = True) -> list[str]:
    def listed() -> Sequence[Gpu]:
        if isinstance(gpus, NoGpus):
            raise gpus
        return gpus

    return list(misfits(document, load_document(document), lambda: is_cuda_build, listed))


def test_variants_that_share_a_gpu_fit_it() -> None:
    shared = model(Placement("gpu", "L4", 1), {}, {})
    assert list(engine_problems(shared)) == []
    assert unfit(shared, [L4]) == []


@pytest.mark.parametrize(("share", "planned", "most"), [(0.5, None, 0.45), (0.25, 0.3, 0.225)])
def test_an_engine_that_takes_more_memory_than_its_part_of_a_gpu_is_a_problem(
    share: float, planned: float | None, most: float
) -> None:
    document = model(Placement("gpu"), {"gpu_memory_utilization": planned} if planned else {})
    engine(document, "v0")["placement_group_config"] = {"bundle_per_worker": {"GPU": share}}
    (said,) = engine_problems(document)
    taken = "0.3 of the GPU's memory" if planned else "0.92 of the GPU's memory by vLLM's default"
    assert said == (
        f"applications.v0.args.llm_config.engine_kwargs.gpu_memory_utilization: the engine takes {taken}, and has "
        f"{share:g} of the GPU; set at most {most:g}"
    )
    engine(document, "v0")["engine_kwargs"]["kv_cache_memory_bytes"] = 10**9  # vLLM then ignores the other
    assert list(engine_problems(document)) == []


def test_workers_of_one_engine_do_not_share_a_gpu() -> None:
    document = model(Placement("gpu"), {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.4})
    engine(document, "v0")["placement_group_config"] = {"bundle_per_worker": {"GPU": 0.5}}
    (said,) = engine_problems(document)
    assert said.startswith("applications.v0.args.llm_config.placement_group_config: the 2 workers of an engine could")


def test_a_machine_with_too_few_gpus_of_another_type_or_without_any_says_so() -> None:
    two = model(Placement("gpu", "L4", 2), {}, {})
    assert unfit(two, [L4, L4]) == []
    (few,) = unfit(two, [L4])
    assert few.startswith("v0/Engine, v1/Engine: together they need 2 GPUs, and this machine has 1; let them share one")
    (large,) = unfit(model(Placement("gpu"), {"tensor_parallel_size": 2}), [L4])
    assert large == (
        "v0/Engine: a replica needs 2 GPUs, and this machine has 1; lower tensor_parallel_size or "
        "pipeline_parallel_size"
    )
    others = unfit(two, [H100, H100])
    assert others[0] == ("v0/Engine: accelerator_type is L4, and this machine has H100; leave it out, or correct it")
    (none,) = unfit(two, NoGpus("nvidia-smi is not installed", "install the driver"))
    assert none == "v0/Engine, v1/Engine: nvidia-smi is not installed, and an engine needs a GPU; install the driver"
    (build,) = unfit(two, [L4, L4], is_cuda_build=False)
    assert "the CPU build of vLLM is installed; run: " in build
    assert unfit(model(Placement(), {}, {}), NoGpus("nothing", "nothing")) == []


def test_weights_that_do_not_fit_their_part_of_the_memory_are_found_before_a_start(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(16 * 2**30)  # sparse: it takes no room
    folders = {"org/name": tmp_path}
    assert list(memory_misfits(model(Placement("gpu"), {}), folders, [L4])) == []
    shared = model(Placement("gpu"), {}, {"quantization": "fp8"})
    (said,) = memory_misfits(shared, folders, [L4])
    assert said.startswith("v0: its weights take 16.0 GiB of a GPU, and it may take 0.45 of 22.5 GiB; use a smaller ")
    assert list(memory_misfits(shared, folders, [H100])) == []
    assert list(memory_misfits(model(Placement("gpu"), {"tensor_parallel_size": 2}), folders, [L4, L4])) == []
    assert list(memory_misfits(shared, {}, [L4])) == []


NAMES = (
    "NVIDIA L4",
    "NVIDIA L40S",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA GH200 480GB",
    "NVIDIA GB10",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "NVIDIA GeForce RTX 4090",
    "Tesla T4",
    "Tesla V100-SXM2-16GB",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_gpus_type_is_the_one_that_ray_gives_it(name: str) -> None:
    assert Gpu(name, "580", 1, 0).type == NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(name)


def test_the_driver_lists_the_gpus(tmp_path: Path) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(
        "#!/bin/sh\necho 'NVIDIA L4, 580.95.05, 23034, 1'\necho 'NVIDIA GB10, 580.95.05, [N/A], [N/A]'\n"
    )
    command.chmod(0o755)
    assert accelerator.gpus({"PATH": str(tmp_path)}) == [L4, Gpu("NVIDIA GB10", "580.95.05", 0, 0)]


@pytest.mark.parametrize(
    ("config", "arguments", "problem"),
    [
        ({}, {"max_model_len": 10**6}, None),
        ({"max_position_embeddings": 8192}, {"max_model_len": 8192}, None),
        (
            {"max_position_embeddings": 8192},
            {"max_model_len": 131072},
            "max_model_len: the model has positions for 8192 tokens, not 131072",
        ),
        (
            {"text_config": {"max_position_embeddings": 8192}},
            {"max_model_len": 8193},
            "max_model_len: the model has positions for 8192 tokens, not 8193",
        ),
        ({"max_position_embeddings": 8192, "rope_scaling": {"type": "yarn"}}, {"max_model_len": 8193}, None),
        ({"max_position_embeddings": 8192, "model_max_length": 9000}, {"max_model_len": 8193}, None),
        ({"max_position_embeddings": 8192}, {"max_model_len": 8193, "hf_overrides": {"rope_parameters": {}}}, None),
        ({"num_attention_heads": 12}, {"tensor_parallel_size": 4}, None),
        (
            {"num_attention_heads": 12},
            {"tensor_parallel_size": 8},
            "tensor_parallel_size: the model's 12 attention heads cannot be divided among 8 GPUs; set a divisor of 12",
        ),
    ],
)
def test_arguments_that_the_model_excludes_are_problems(
    config: dict[str, Any], arguments: dict[str, Any], problem: str | None
) -> None:
    document = model(Placement("gpu"), arguments)
    where = "applications.v0.args.llm_config.engine_kwargs."
    assert list(engine_problems(document, lambda source: config)) == ([where + problem] if problem else [])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}, None),
        ({"enable_auto_tool_choice": False}, None),
        (
            {"enable_auto_tool_choice": True},
            "enable_auto_tool_choice: needs `tool_call_parser`, the form in which the model writes its calls",
        ),
        ({"max_num_batched_tokens": 16, "max_num_seqs": 16}, None),
        ({"max_num_batched_tokens": 256}, None),
        (
            {"max_num_batched_tokens": 15, "max_num_seqs": 16},
            "max_num_batched_tokens: 15 is less than max_num_seqs, 16; raise it",
        ),
        ({"max_num_batched_tokens": 512, "max_model_len": 1024}, None),
        (
            {"max_num_batched_tokens": 512, "max_model_len": 1024, "enable_chunked_prefill": False},
            "max_num_batched_tokens: 512 is less than max_model_len, 1024, and prompts are not cut "
            "(enable_chunked_prefill: false); raise it",
        ),
    ],
)
def test_arguments_that_exclude_each_other_are_problems(arguments: dict[str, Any], problem: str | None) -> None:
    where = "applications.v0.args.llm_config.engine_kwargs."
    reported = list(engine_problems(model(Placement("gpu"), arguments), lambda source: {}))
    assert reported == ([where + problem] if problem else [])


@pytest.mark.parametrize(("size", "is_read"), [("4", True), ("1GiB", False), ("0.1", False)])
def test_a_size_of_the_cpu_cache_that_vllm_cannot_read_is_a_problem(size: str, *, is_read: bool) -> None:
    document = model(Placement(), {})
    engine(document, "v0")["runtime_env"] = {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": size}}
    assert [line.rpartition(": ")[2] for line in engine_problems(document, lambda source: {})] == (
        [] if is_read else [f"expected whole GiB, such as 4, not {size}"]
    )


def test_a_missing_chat_template_and_folder_are_told(tmp_path: Path) -> None:
    document = model(Placement("gpu"), {"chat_template": str(tmp_path / "none.jinja")})
    engine(document, "v0")["model_loading_config"]["model_source"] = str(tmp_path / "none")
    assert unfit(document, [L4]) == [
        f"v0: model_source: {tmp_path}/none does not exist; correct it",
        f"v0: chat_template: there is no file {tmp_path}/none.jinja; correct it",
    ]
    (tmp_path / "none").mkdir()
    engine(document, "v0")["engine_kwargs"]["chat_template"] = "{{ messages }}"
    assert unfit(document, [L4]) == [
        f"v0: model_source: {tmp_path}/none has no config.json: it is no model's folder; correct it"
    ]
