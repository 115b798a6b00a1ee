"""Ray's vLLM engine, with the model in the process of vLLM's scheduler where possible.

On CPUs vLLM starts a process for the model alongside that of its scheduler, since the threads of OpenMP are bound to
cores when a process starts. Where threads are not bound (VLLM_CPU_OMP_THREADS_BIND=nobind) and one process has the
whole model, that only costs: eight CPU-seconds at the start, half a gigabyte of memory, and a message each way per
step.
"""

import os
from typing import Any

from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine

from deployments.engine.scheduler import scheduler_class
from deployments.engine.tried_requests import try_constraints

NOT_BOUND = "nobind"
"""vLLM's value for threads that are not bound to cores."""


class Engine(VLLMEngine):  # type: ignore[misc]  # Ray ships no types
    """Chooses vLLM's executor after Ray, which knows one for CPUs alone, and its scheduler; tries constraints."""

    def _start_async_llm_engine(self, vllm_engine_args: Any, vllm_engine_config: Any, placement_group: Any) -> Any:
        parallel = vllm_engine_config.parallel_config
        parallel.distributed_executor_backend = executor(
            parallel.distributed_executor_backend,
            parallel.world_size,
            vllm_engine_config.device_config.device_type,
            os.environ.get("VLLM_CPU_OMP_THREADS_BIND", ""),
        )
        scheduler = vllm_engine_config.scheduler_config
        scheduler.scheduler_cls = scheduler_class(scheduler.scheduler_cls, is_async=scheduler.async_scheduling)
        client = super()._start_async_llm_engine(vllm_engine_args, vllm_engine_config, placement_group)
        try_constraints(client, vllm_engine_config)
        return client


def executor(chosen: str, processes: int, device: str, binding: str) -> str:
    """vLLM's executor: `uni`, in the scheduler's process, or the one that Ray and vLLM have `chosen`."""
    alone = chosen == "mp" and processes == 1
    return "uni" if alone and device == "cpu" and binding == NOT_BOUND else chosen
