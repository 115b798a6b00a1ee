"""`switchyard demo traffic` against the real router in front of fake engines."""

import re

import pytest

from deployments.cli.main import main
from deployments.cli.options import ExitCode
from tests.router.conftest import Rig
from tests.router.traffic.test_stops import EXPERIMENT
from tests.support.engine.fake_engine import chunk, frame, stream

# About 18 questions: fewer than may wait at once, so that none is skipped, however slow this machine is.
ARGUMENTS = ["--minutes", "0.03", "--rate", "10", "--users", "5", "--max-tokens", "4"]


def test_the_command_prints_every_deployments_answers(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.chat_endpoint(traffic={"blue": 50, "green": 50})
    assert main(["demo", "traffic", "chat", *ARGUMENTS, "--seed", "0", "--url", rig.url]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["DEPLOYMENT", "ANSWERED", "FAILED", "FIRST", "TOKEN", "(MEDIAN)"]
    assert [row.split()[0] for row in rows] == ["blue", "green"]
    assert all(int(row.split()[1]) > 0 and row.split()[2] == "0" for row in rows)


@pytest.mark.parametrize(
    ("ending", "problem"),
    [
        ([], "The stream was cut short: The deployment ended its response before it was complete"),
        ([frame({"error": {"message": "boom", "type": "x", "code": 500}})], "The stream was cut short: "),
    ],
    ids=["closed", "error"],
)
def test_a_stream_that_was_cut_short_has_failed(
    rig: Rig, capsys: pytest.CaptureFixture[str], ending: list[str], problem: str
) -> None:
    rig.chat_endpoint(traffic={"blue": 50, "green": 50})
    rig.blue.answer = lambda body: stream([chunk("Hel"), chunk("lo"), *ending])
    assert main(["demo", "traffic", "chat", *ARGUMENTS, "--seed", "0", "--url", rig.url]) == 0
    printed = capsys.readouterr().out
    blue, green = (line.split() for line in printed.splitlines()[1:3])
    assert (blue[1], green[2]) == ("0", "0")
    assert int(blue[2]) > 0 < int(green[1])
    assert f"The last error: {problem}" in printed


def test_an_unknown_endpoint_is_an_error_before_anything_is_announced(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "traffic", "nothing", *ARGUMENTS, "--url", rig.url]) == ExitCode.WRONG
    said = "The model 'nothing' does not exist; available endpoints: chat, embed\n"
    assert capsys.readouterr() == ("", said)


def test_every_run_has_new_users_unless_it_repeats_anothers_seed(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.change(experiments={"first": EXPERIMENT})
    rig.chat_endpoint(traffic={"blue": 50, "green": 50}, sticky={"by": "conversation"})
    counted = 0

    def units(*seed: str) -> tuple[set[int], str]:
        """Those of a run, and its seed."""
        nonlocal counted
        assert main(["demo", "traffic", "chat", *ARGUMENTS, *seed, "--url", rig.url]) == 0
        printed, before = capsys.readouterr(), counted
        counted += sum(int(row.split()[1]) for row in printed.out.splitlines()[1:])
        rows = rig.keeper.wait_for(rows=counted)[before:]
        (said,) = re.findall(r"--seed \d+", printed.err)
        return {row.item.unit for row in rows}, said

    first, seed = units()
    second, other = units()
    again, same = units(*seed.split())
    assert first & second == set()
    assert seed == same != other
    assert again == first
