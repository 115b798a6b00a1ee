"""`switchyard experiments export` as a trace: of recordings, or of an experiment's exposures."""

import json
from pathlib import Path

import pytest

from app.request_recordings.recorder import encoder
from deployments.cli.main import main
from tests.support.experiments.recorded_ledger import recorded_ledger
from tests.support.experiments.world import World, config
from tests.unit.app.experiments.replay.test_traces import request_requests

NAME, REQUESTS = "green-float32", 200


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exposures of an experiment, without recordings."""
    return Path(recorded_ledger(tmp_path_factory.mktemp("day"), World(), config(), REQUESTS))


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    recorded = [
        request_requests(at=1010.0, prompt_tokens=20, completion_tokens=5),
        request_requests(at=1000.0, prompt_tokens=10, completion_tokens=4),
        request_requests(at=1030.0, endpoint="other", prompt_tokens=9, completion_tokens=9),
    ]
    file = tmp_path / "recordings" / "date=2026-11-12" / "it.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"".join(encoder.encode(request) + b"\n" for request in recorded))
    return tmp_path


def export(capsys: pytest.CaptureFixture[str], ledger: Path, *arguments: str) -> tuple[int, str, str]:
    code = main(["experiments", "export", "--ledger", str(ledger), *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("form", ["guidellm", "vllm-bench"])
def test_recordings_become_a_trace(capsys: pytest.CaptureFixture[str], recording: Path, form: str) -> None:
    code, out, error = export(capsys, recording, "--format", form, "--endpoint", "chat")
    assert (code, error) == (0, "2 requests.\n")
    lines = [json.loads(line) for line in out.splitlines()]
    keys = ("timestamp", "input_length", "output_length")
    assert [tuple(line[key] for key in keys) for line in lines] == [(0, 10, 4), (10, 20, 5)]
    file = recording / "trace.jsonl"
    code, out, _ = export(capsys, recording, "--format", form, "--endpoint", "chat", "--output", str(file))
    assert (code, out) == (0, "")
    assert [json.loads(line) for line in file.read_text().splitlines()] == lines


def test_a_part_of_a_recording_becomes_a_trace(capsys: pytest.CaptureFixture[str], recording: Path) -> None:
    arguments = ("--format", "guidellm", "--since", "1005", "--until", "1030")
    code, out, _ = export(capsys, recording, *arguments)
    assert (code, len(out.splitlines())) == (0, 1)


def test_an_experiments_exposures_become_a_trace(capsys: pytest.CaptureFixture[str], ledger: Path) -> None:
    code, out, error = export(capsys, ledger, NAME, "--format", "guidellm")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert error.startswith(f"{len(lines)} requests.\n")
    assert REQUESTS * 0.9 < len(lines) <= REQUESTS
    times = [line["timestamp"] for line in lines]
    assert times == sorted(times)
    assert times[-1] > 3600, "the world's day"
    assert len({line["input_length"] for line in lines}) > 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        pytest.param([], 2, "A trace is of one endpoint; name it: --endpoint chat", id="several endpoints"),
        pytest.param(["--output", "/"], 1, "/: Is a directory", id="no file"),
        pytest.param(["nobody"], 1, "The ledger has no run of 'nobody'", id="no such experiment"),
    ],
)
def test_errors_are_one_line_with_the_fix(
    capsys: pytest.CaptureFixture[str], recording: Path, arguments: list[str], code: int, says: str
) -> None:
    if arguments:
        arguments = [*arguments, "--endpoint", "chat"]
    status, out, error = export(capsys, recording, "--format", "guidellm", *arguments)
    assert (status, out) == (code, "")
    assert says in error
    assert error.count("\n") == 1


def test_a_ledger_without_recordings_says_what_to_do(capsys: pytest.CaptureFixture[str], ledger: Path) -> None:
    code, out, error = export(capsys, ledger, "--format", "guidellm")
    assert (code, out) == (1, "")
    assert "an endpoint with `record` has some. Or name an experiment" in error
