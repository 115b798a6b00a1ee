"""Applications that do not run, and the errors in their logs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.cli.main import main
from deployments.cli.operators import summary
from deployments.doctor import examination
from deployments.doctor.examination import examine
from deployments.doctor.finding import Level, ok, problem, warning
from deployments.doctor.service_checks import applications, errors_by_application, last_errors, states
from deployments.invocation import command
from deployments.local.dashboard import Application
from deployments.local.processes import Phase, Run
from tests.support.processes.installations import installation, levels, the_problem, the_warning
from tests.support.processes.servers import free_port

RUNNING = Application("router", "RUNNING", (), 1, 1)


def test_a_head_that_does_not_answer_is_found() -> None:
    run = Run(pid=1, run_id="x", port=8000, dashboard=f"http://127.0.0.1:{free_port()}", directory="/nowhere")
    (local,), (pod,) = (list(applications(installation(run=run, on_cluster=it))) for it in (False, True))
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
    found = list(last_errors(installation(logs=logs)))
    assert levels(found) == [Level.WARNING] * 3
    assert found[0].message.startswith("llama: torch.OutOfMemoryError")


def test_logs_without_errors_pass(tmp_path: Path) -> None:
    assert levels(last_errors(installation(logs=tmp_path))) == [Level.OK]


def test_a_check_that_raises_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(it: object) -> object:
        raise OSError("no such device")

    monkeypatch.setattr(examination, "CHECKS", (broken, applications))
    found = list(examine(installation()))
    assert levels(found) == [Level.PROBLEM, Level.OK]
    assert found[0].message == "the check failed: OSError: no such device"


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
    found = json.loads(capsys.readouterr().out)
    assert {it["level"] for it in found} >= {"ok", "problem"}


@pytest.mark.parametrize(
    ("problems", "warnings", "line"),
    [
        (0, 0, "All 2 checks passed."),
        (1, 0, "1 problem, 0 warnings, 2 passed."),
        (2, 1, "2 problems, 1 warning, 2 passed."),
    ],
)
def test_the_summary_counts_in_english(problems: int, warnings: int, line: str) -> None:
    found = [problem("a", "b", "c")] * problems + [warning("a", "b", "c")] * warnings + [ok("a", "b")] * 2
    assert summary(found) == line
