"""`switchyard experiments` on a ledger's directory, without a server."""

import csv
import io
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from deployments.cli.experiments_client import Check
from deployments.cli.main import main
from deployments.cli.options import ExitCode
from tests.support.experiments.recorded_ledger import recorded_ledger
from tests.support.experiments.world import START, World, config

REQUESTS = 3000
NAME = "green-float32"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A day in which green is 40 % slower than blue."""
    declared = config(
        secondary=[{"metric": "error", "minimal_effect": 0.2}, {"metric": "thumbs", "minimal_effect": 0.1}],
        feedback={"thumbs": {"window_s": 60}},
        guardrails=[{"event": "error"}],
        min_duration_s=3600,
    )
    return recorded_ledger(tmp_path_factory.mktemp("day"), World(slower=1.4), declared, REQUESTS)


class Shell:
    """Runs the command."""

    def __init__(self, ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.ledger, self._capsys = ledger, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        code = main(["experiments", *arguments, "--ledger", self.ledger])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err


@pytest.fixture
def shell(ledger: str, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(ledger, capsys)


def test_the_list_names_the_experiment_and_its_decision(shell: Shell) -> None:
    code, out, _ = shell("list")
    assert code == 0
    assert out.splitlines()[1].split()[0] == NAME
    assert "do not ship" in out


def test_the_report_is_the_controllers(shell: Shell) -> None:
    code, out, _ = shell("report", NAME)
    assert code == 0
    assert out.startswith(f"{NAME} on chat: ")
    assert max(len(line) for line in out.splitlines()) <= 100
    report = json.loads(shell("report", NAME, "--format", "json")[1])
    assert sum(report["requests"].values()) == REQUESTS
    assert report["primary"][0]["verdict"] == "worse"
    assert report["started_at"] == START
    assert shell("report", NAME, "--format", "markdown")[1].startswith("# ")


def test_feedback_is_found_again(shell: Shell) -> None:
    report = json.loads(shell("report", NAME, "--format", "json", "--at", str(START + 24 * 3600 + 60))[1])
    (thumbs,) = [comparison for comparison in report["secondary"] if comparison["metric"] == "thumbs"]
    assert thumbs["effect"]["lower"] < 0 < thumbs["effect"]["upper"]
    assert [arm["response_rate"] for arm in thumbs["values"]] == pytest.approx([0.5, 0.5], abs=0.05)


def test_reading_writes_nothing(shell: Shell, ledger: str) -> None:
    def files() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in Path(ledger).rglob("*")}

    before = files()
    shell("report", NAME)
    shell("aa", NAME, "--runs", "2")
    assert files() == before


def test_the_check_exits_by_the_decision(shell: Shell) -> None:
    code, out, _ = shell("report", NAME, "--check")
    assert code == Check.DO_NOT_SHIP
    assert out.startswith(f"{NAME} on chat: ")
    assert shell("report", NAME, "--check", "--format", "json")[0] == Check.DO_NOT_SHIP


def test_no_decision_has_the_exit_code_of_an_error() -> None:
    assert {exit_code.value for exit_code in Check} & {exit_code.value for exit_code in ExitCode} == {0}


def test_a_missing_report_has_the_exit_code_of_its_error(shell: Shell) -> None:
    code, out, error = shell("report", "red", "--check")
    assert (code, out) == (ExitCode.WRONG, "")
    assert error == f"No experiment 'red'; declared: {NAME}\n"
    assert shell("report", NAME, "--check", "--at", "yesterday")[0] == ExitCode.USAGE
    code, out, error = shell("report", NAME, "--check", "--at", "2100-01-01")
    assert (code, out) == (ExitCode.USAGE, "")
    assert error == "--at: The time of the report is later than now, and than everything recorded\n"


def test_a_report_of_an_earlier_time_has_what_was_recorded_by_then(shell: Shell) -> None:
    noon = START + 12 * 3600
    code, out, _ = shell("report", NAME, "--at", str(noon), "--format", "json")
    report = json.loads(out)
    assert code == 0
    assert report["at"] == noon
    assert 0.4 * REQUESTS < sum(report["requests"].values()) < 0.6 * REQUESTS
    assert shell("report", NAME, "--at", str(START - 60))[2] == f"No experiment '{NAME}'; declared: none\n"


def test_the_history_has_the_looks_of_the_controller(shell: Shell) -> None:
    code, out, _ = shell("history", NAME, "--metric", "ttft", "--format", "json")
    assert code == 0
    assert json.loads(out)["points"][0]["at"] >= START
    assert "BETWEEN" in shell("history", NAME)[1]


def test_the_planner_shows_units(shell: Shell) -> None:
    code, out, _ = shell("planner", NAME, "--effect", "0.02", "--power", "0.9")
    assert code == 0
    assert "units in both arms together" in out
    assert shell("planner", NAME, "--metric", "itl")[0] == ExitCode.WRONG


def test_aa_runs_are_waited_for(shell: Shell) -> None:
    code, out, _ = shell("aa", NAME, "--runs", "3")
    assert code == 0
    assert out.startswith(f"{NAME}: 3 A/A runs\n")
    assert "PEEKED T-TESTS" in out


def test_the_journal_has_the_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    declared = config(primary=[{"metric": "cost", "minimal_effect": 0.05}])
    costly = Shell(recorded_ledger(tmp_path, World(), declared, 500), capsys)
    code, out, _ = costly("report", NAME, "--format", "json")
    assert code == 0
    values = {arm["arm"]: arm["value"] for arm in json.loads(out)["primary"][0]["values"]}
    assert values["green"] > values["blue"], "green's answers cost three units for a million tokens, blue's two"


def segments_of(ledger: str) -> list[Path]:
    return sorted(Path(ledger).glob("exposures/*/*.parquet"))


def test_rows_of_a_version_without_newer_columns_count(
    ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(shutil.copytree(ledger, tmp_path / "older").as_posix(), capsys)
    for file in segments_of(shell.ledger):
        table = pq.read_table(file, partitioning=None)
        pq.write_table(table.drop_columns(["cold", "itl_max_s"]), file)
    report = json.loads(shell("report", NAME, "--format", "json")[1])
    assert sum(report["requests"].values()) == REQUESTS
    assert (report["decision"], report["incomplete"]) == ("do_not_ship", [])
    (warning,) = [warning for warning in report["warnings"] if "another version" in warning]
    assert warning.endswith(f"there: cold ({REQUESTS:,}), itl_max_s ({REQUESTS:,}).")


def test_a_file_that_cannot_be_read_is_named_and_no_verdict_stands(
    ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    shell = Shell(shutil.copytree(ledger, tmp_path / "damaged").as_posix(), capsys)
    first, *_ = segments_of(shell.ledger)
    first.write_bytes(first.read_bytes()[:-100])
    name = first.relative_to(shell.ledger).as_posix()
    report = json.loads(shell("report", NAME, "--format", "json")[1])
    (file,) = report["incomplete"]
    assert file.startswith(f"{name}: ")
    assert report["decision"] == "invalid"
    code, out, _ = shell("report", NAME, "--check")
    assert code == Check.INVALID
    assert out.startswith(f"{NAME} on chat: no verdict can be trusted, the ledger is incomplete.")
    assert f"1 part of the ledger is missing here: {name}: " in " ".join(out.split())
    shell("export", NAME)
    assert name in caplog.text


def test_a_line_of_the_journal_that_cannot_be_read_is_named(
    ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(shutil.copytree(ledger, tmp_path / "damaged").as_posix(), capsys)
    file = max(Path(shell.ledger).glob("journal/*/*.jsonl"))
    file.write_bytes(file.read_bytes() + b'{"at": 1.0, "ki')
    (named,) = json.loads(shell("report", NAME, "--format", "json")[1])["incomplete"]
    assert named.startswith(f"{file.relative_to(shell.ledger).as_posix()}: 1 of its ")


@pytest.mark.parametrize("directory", ["missing", "."])
def test_a_directory_without_a_ledger_is_an_error(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = Shell(str(tmp_path / directory), capsys)("list")
    assert code == ExitCode.WRONG
    assert error == f"The ledger cannot be read: {tmp_path / directory} holds no ledger\n"


def test_a_file_is_no_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    code, _, error = Shell(str(tmp_path / "file"), capsys)("list")
    assert code == ExitCode.WRONG
    assert error.startswith("The ledger cannot be read: ")
    assert error.count("\n") == 1


def test_at_needs_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiments", "report", NAME, "--at", "0", "--url", "http://127.0.0.1:9"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "--at needs --ledger: a running server reports the present\n"


# --- export ----------------------------------------------------------------------------------------


def test_exposures_are_exported_as_csv(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "exposures.csv"
    code, out, error = shell("export", "--output", str(file))
    assert (code, out, error) == (0, "", f"{REQUESTS} exposures.\n")
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert len(rows) == REQUESTS
    assert {row["assigned"] for row in rows} == {"blue", "green"}
    assert {row["finish"] for row in rows} == {"stop", "none"}
    assert all(len(row["unit"]) == 16 for row in rows)


def test_exposures_are_exported_as_json_lines_and_parquet(shell: Shell, tmp_path: Path) -> None:
    lines, parquet = tmp_path / "exposures.jsonl", tmp_path / "exposures.parquet"
    shell("export", "--output", str(lines), "--format", "jsonl")
    shell("export", "--output", str(parquet), "--format", "parquet")
    first = json.loads(lines.read_text().splitlines()[0])
    table = pq.read_table(parquet)
    assert table.num_rows == REQUESTS
    assert table.slice(0, 1).to_pylist()[0] == first
    assert first["endpoint"] == "chat"


def test_a_part_is_exported(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "part.jsonl"
    bounds = ["--since", str(START + 3600), "--until", str(START + 7200)]
    shell("export", "--output", str(file), "--format", "jsonl", *bounds)
    times = [json.loads(line)["at"] for line in file.read_text().splitlines()]
    assert 0 < len(times) < REQUESTS / 12
    assert all(START + 3600 <= at < START + 7200 for at in times)
    shell("export", "--output", str(file), "--endpoint", "embed")
    assert file.read_text() == ""


def test_an_experiments_run_is_exported(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    assert shell("export", NAME, "--output", str(file))[2] == f"{REQUESTS} exposures.\n"
    assert shell("export", NAME, "--output", str(file), "--endpoint", "embed")[2] == "0 exposures.\n"
    code, _, error = shell("export", "red", "--output", str(file))
    assert (code, error) == (ExitCode.WRONG, f"The ledger has no run of 'red'; it has {NAME}\n")


def test_parquet_needs_a_file(shell: Shell) -> None:
    code, _, error = shell("export", "--format", "parquet")
    assert (code, error) == (ExitCode.USAGE, "Parquet needs a file: --output exposures.parquet\n")


def test_a_file_that_cannot_be_written_is_an_error(shell: Shell, tmp_path: Path) -> None:
    code, _, error = shell("export", "--output", str(tmp_path / "missing" / "file.csv"))
    assert code == ExitCode.WRONG
    assert error.endswith("No such file or directory\n")
