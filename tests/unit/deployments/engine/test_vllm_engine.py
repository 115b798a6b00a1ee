import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, when it is imported
    from deployments.engine.server import executor


def test_a_model_on_cpus_runs_beside_its_scheduler_where_threads_are_not_bound() -> None:
    assert executor("mp", 1, "cpu", "nobind") == "uni"


@pytest.mark.parametrize(
    ("chosen", "processes", "device", "binding"),
    [
        ("mp", 1, "cpu", "auto"),  # vLLM binds the threads of a separate process
        ("mp", 1, "cpu", ""),  # its default is `auto`
        ("mp", 1, "cpu", "0-3"),
        ("mp", 2, "cpu", "nobind"),  # the model is in two processes
        ("ray", 1, "cuda", "nobind"),
        ("mp", 1, "cuda", "nobind"),
        ("external_launcher", 1, "cpu", "nobind"),
    ],
)
def test_another_executor_chosen_by_ray_or_vllm_stays(chosen: str, processes: int, device: str, binding: str) -> None:
    assert executor(chosen, processes, device, binding) == chosen
