"""Applications that do not run, and the errors in their logs.

Adapters that are missing, damaged, or too large for their engine.

Keys, an issuer and a limits store that are unavailable or broken.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.access.keys import append, create
from deployments.cli.main import main
from deployments.cli.operators import summary
from deployments.doctor.examination import examine
from deployments.doctor.finding import Finding, Installation, Level, ok, problem, warning
from deployments.doctor.service_checks import (
    applications,
    errors_by_application,
    issuer,
    keys,
    last_errors,
    limits_store,
    states,
    weights,
)
from deployments.invocation import command
from deployments.local.dashboard import Application
from deployments.local.processes import Phase, Run
from deployments.weights.errors import WeightsError
from tests.support.processes.installations import default, engine, installation, levels, the_problem, the_warning
from tests.support.processes.oidc_provider import AUDIENCE, LocalIssuer
from tests.support.processes.redis_server import RedisServer
from tests.support.processes.servers import free_port, serve

RUNNING = Application("router", "RUNNING", (), 1, 1)


def test_a_head_that_does_not_answer_is_found() -> None:
    run = Run(pid=1, run_id="x", port=8000, dashboard=f"http://127.0.0.1:{free_port()}", directory="/nowhere")
    (local,), (pod,) = (
        list(applications(installation(run=run, on_cluster=on_cluster))) for on_cluster in (False, True)
    )
    assert "does not answer" in the_problem([local])
    assert command("stop") in local.fix
    assert command("stop") not in pod.message + pod.fix
    assert levels(applications(installation())) == [Level.OK]
    assert "is starting" in the_warning(applications(installation(run=replace(run, phase=Phase.STARTING))))


def test_a_failed_application_is_found_with_its_reason() -> None:
    failed = Application("llama", "DEPLOY_FAILED", ("CUDA out of memory",), 0, 1)
    assert the_problem(states([RUNNING, failed])) == "llama is DEPLOY_FAILED: CUDA out of memory"
    assert levels(states([RUNNING])) == [Level.OK]


def test_replicas_that_are_pending_are_found_and_why() -> None:
    why = "Deployment 'Engine' in application 'llama' has 2 replicas that have taken more than 30s to be scheduled."
    (pending,) = states([Application("llama", "DEPLOYING", (why,), 0, 2)])
    assert (pending.level, "0 of 2 replicas" in pending.message, "maxReplicas" in pending.fix) == (
        Level.WARNING,
        True,
        True,
    )
    (starting,) = states([Application("llama", "DEPLOYING", (), 1, 2)])
    assert "loading weights" in starting.fix


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs as Ray writes them."""
    (tmp_path / "serve").mkdir()
    line = json.dumps(
        {"ts": "t", "level": "error", "event": "config_rejected", "problems": ["endpoints.chat: unknown"]}
    )
    info = json.dumps({"ts": "t", "level": "info", "event": "request", "error": "bad_request"})
    head = ":job_id:01\n:actor_name:ServeReplica:{}:Engine\n"
    (tmp_path / "worker-1.err").write_text(head.format("router") + f"{info}\n{line}\n{line}\n")
    traceback = "Traceback (most recent call last):\n  File 'x', line 1\ntorch.OutOfMemoryError: CUDA out of memory\n"
    (tmp_path / "worker-2.err").write_text(head.format("llama") + "INFO 11-22 fine\n" + traceback)
    (tmp_path / "worker-3.err").write_text(":actor_name:ServeController\nERROR is not an application's\n")
    build = "ERROR 2026-11-22 serve -- import_path: no module named 'deployment'\n"
    (tmp_path / "serve" / "controller_build_minilm_382.log").write_text(build)
    return tmp_path


def test_the_last_errors_of_each_application_are_found(logs: Path) -> None:
    assert errors_by_application(logs) == {
        "router": ["config_rejected: endpoints.chat: unknown"],
        "llama": ["torch.OutOfMemoryError: CUDA out of memory"],
        "minilm": ["ERROR 2026-11-22 serve -- import_path: no module named 'deployment'"],
    }
    findings = list(last_errors(installation(logs=logs)))
    assert levels(findings) == [Level.WARNING] * 3
    assert findings[0].message.startswith("llama: torch.OutOfMemoryError")


def test_logs_without_errors_pass(tmp_path: Path) -> None:
    assert levels(last_errors(installation(logs=tmp_path))) == [Level.OK]
    (tmp_path / "gcs_server.out").write_text(
        "[2026-11-26 10:14:58,001 I 7 7] (gcs_server) gcs_worker_manager.cc:70: exit_type = INTENDED_SYSTEM_EXIT\n"
        "[2026-11-26 10:15:10,123 W 7 7] (gcs_server) gcs_worker_manager.cc:75: exit_type = NODE_OUT_OF_MEMORY, …\n"
    )
    (killed,) = last_errors(installation(logs=tmp_path))
    assert killed.level == Level.PROBLEM
    assert killed.message == "Ray ended processes, since the memory was nearly full, last at 2026-11-26 10:15:10"


def test_a_check_that_raises_does_not_stop_the_others() -> None:
    def broken(installation: Installation) -> Iterator[Finding]:
        raise OSError("no such device")

    findings = list(examine(installation(), (broken, applications)))
    assert levels(findings) == [Level.PROBLEM, Level.OK]
    assert findings[0].message == "the check failed: OSError: no such device"


def test_the_command_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCHYARD_RUN_DIR", str(tmp_path))
    (tmp_path / "serve_config.yaml").write_text("applications: []\n")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "PROBLEM configuration: serve_config.yaml: applications: no application is named 'router'" in out
    assert f"-> correct it; `{command('check serve_config.yaml')}` checks it" in out
    assert re.search(r"^\d+ problems?, \d+ warnings?, \d+ passed\.$", out, re.MULTILINE)
    assert main(["doctor", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)
    assert {finding["level"] for finding in findings} >= {"ok", "problem"}


@pytest.mark.parametrize(
    ("problems", "warnings", "line"),
    [
        (0, 0, "All 2 checks passed."),
        (1, 0, "1 problem, 0 warnings, 2 passed."),
        (2, 1, "2 problems, 1 warning, 2 passed."),
    ],
)
def test_the_summary_counts_in_english(problems: int, warnings: int, line: str) -> None:
    findings = [problem("a", "b", "c")] * problems + [warning("a", "b", "c")] * warnings + [ok("a", "b")] * 2
    assert summary(findings) == line


def adapter(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, **config}))
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


def finding(path: Path | str, environment: dict[str, str] | None = None, **kwargs: Any) -> Finding:
    """The finding for an engine's only adapter."""
    document = default()
    modules = [{"name": "french", "path": str(path)}]
    engine(document)["engine_kwargs"].update(lora_modules=modules, **kwargs)
    findings = weights(installation(document, environment=environment or {}))
    (about,) = [finding for finding in findings if str(path) in finding.message]
    return about


def test_an_adapter_that_exists_passes(tmp_path: Path) -> None:
    assert finding(adapter(tmp_path / "french")).level is Level.OK
    assert finding(adapter(tmp_path / "large", r=32), max_lora_rank=64).level is Level.OK


@pytest.mark.parametrize(
    ("damage", "said", "fix"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), "has no adapter_config.json", "mount the volume"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "with a rank", "mount the volume"),
        (
            lambda folder: (folder / "adapter_model.safetensors").unlink(),
            "has no adapter_model",
            "download the adapter again",
        ),
        (
            lambda folder: (folder / "adapter_config.json").write_text('{"r": 24}'),
            "has rank 24; the engine accepts up to 16",
            "set `max_lora_rank: 32`",
        ),
    ],
)
def test_a_damaged_adapter_is_a_problem_with_its_fix(tmp_path: Path, damage: Any, said: str, fix: str) -> None:
    damage(adapter(tmp_path / "french"))
    problem_found = finding(tmp_path / "french")
    assert (problem_found.level, said in problem_found.message, fix in problem_found.fix) == (
        Level.PROBLEM,
        True,
        True,
    ), problem_found


def test_an_adapter_of_a_hub_needs_the_hub() -> None:
    document = default()
    engine(document)["engine_kwargs"].update(lora_modules=[{"name": "french", "path": "acme/french"}])
    asked: list[tuple[str, str]] = []

    def ask(source: str, file: str) -> Path | None:
        asked.append((source, file))
        raise WeightsError("The model acme/french is gated. Accept its conditions")

    problems = [finding for finding in weights(installation(document), ask) if finding.level is Level.PROBLEM]
    assert [(finding.message, finding.fix) for finding in problems] == [
        ("The model acme/french is gated", "accept its conditions")
    ]
    assert asked == [("acme/french", "adapter_config.json")]
    assert "is in the hub's cache" in str([*weights(installation(document), lambda source, file: None)])
    pod = installation(document, environment={"HF_HUB_OFFLINE": "1"}, on_cluster=True)
    assert any("comes from a model hub" in finding.message for finding in weights(pod, ask))
    assert len(asked) == 1


def with_access(**access: Any) -> Installation:
    return installation(default(access=access))


def test_a_missing_broken_or_empty_keys_file_is_found(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    examined = with_access(keys_file=str(file))
    assert str(file) in the_problem(keys(examined))
    file.write_text("- name: [")
    assert str(file) in the_problem(keys(examined))
    file.write_text("")
    assert the_warning(keys(examined)) == f"{file} has no keys"
    append(file, create("team")[1].line)
    assert levels(keys(examined)) == [Level.OK]


def test_keys_that_this_node_does_not_mount_are_a_warning(tmp_path: Path) -> None:
    examined = replace(with_access(keys_file=str(tmp_path / "secret/keys.yaml")), on_cluster=True)
    assert the_warning(keys(examined)).startswith(f"{tmp_path}/secret is not mounted on this node")
    (tmp_path / "secret").mkdir()
    assert "keys.yaml" in the_problem(keys(examined))


def test_stores_that_are_not_configured_have_no_findings() -> None:
    assert [*keys(installation()), *issuer(installation()), *limits_store(installation())] == []


def test_an_issuer_that_does_not_answer_is_found() -> None:
    provider = LocalIssuer()
    with serve(provider.app) as provider.url:
        examined = with_access(oidc={"issuer": provider.url, "audience": AUDIENCE})
        assert levels(issuer(examined)) == [Level.OK]
        provider.up = False
        assert "does not answer with its keys" in the_problem(issuer(examined))
    assert "does not answer with its keys" in the_problem(issuer(examined))


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.stop()


def test_a_store_that_does_not_answer_is_found(redis: RedisServer) -> None:
    examined = with_access(limits={"store": {"url": redis.url}})
    assert levels(limits_store(examined)) == [Level.OK]
    redis.stop()
    assert the_problem(limits_store(examined)).startswith("it does not answer")


def test_a_store_with_a_missing_or_invalid_url_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    examined = with_access(limits={"store": {"url_env": "LIMITS_URL"}})
    monkeypatch.delenv("LIMITS_URL", raising=False)
    assert the_problem(limits_store(examined)) == "its URL cannot be read from the variable LIMITS_URL"
    assert "this node cannot read" in the_warning(limits_store(replace(examined, on_cluster=True)))
    monkeypatch.setenv("LIMITS_URL", "nonsense")
    assert "is not a redis:// URL" in the_problem(limits_store(examined))
    monkeypatch.setenv("LIMITS_URL", f"redis://:secret@127.0.0.1:{free_port()}/0")
    assert "secret" not in the_problem(limits_store(examined))
