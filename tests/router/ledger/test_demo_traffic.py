"""`switchyard demo traffic` against the real router in front of fake engines."""

import pytest

from deployments.cli.main import main
from deployments.cli.options import ExitCode
from tests.router.conftest import Rig

ARGUMENTS = ["--minutes", "0.03", "--rate", "20", "--users", "5", "--max-tokens", "4"]


def test_the_command_prints_every_deployments_answers(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.chat_endpoint(traffic={"blue": 50, "green": 50})
    assert main(["demo", "traffic", "chat", *ARGUMENTS, "--url", rig.url]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["DEPLOYMENT", "ANSWERED", "FAILED", "FIRST", "TOKEN", "(MEDIAN)"]
    assert [row.split()[0] for row in rows] == ["blue", "green"]
    assert all(int(row.split()[1]) > 0 and row.split()[2] == "0" for row in rows)


def test_an_unknown_endpoint_is_an_error(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "traffic", "nothing", *ARGUMENTS, "--url", rig.url]) == ExitCode.UNREACHABLE
    printed = capsys.readouterr()
    assert "The last error: The model 'nothing' does not exist" in printed.out
    assert printed.err.splitlines()[-1] == "No request was answered"
