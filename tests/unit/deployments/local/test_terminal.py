"""The display of a start: lines for a log, a spinner for a terminal."""

import io
import re

import pytest

from deployments.local.dashboard import StartDisplay
from deployments.local.processes import ROOT, home
from tests.support.processes import project
from tests.support.waiting import wait_until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_is_a_line_for_each_change() -> None:
    stream = io.StringIO()
    with StartDisplay(stream) as display:
        display.update({"router": "RUNNING", "chat": "DEPLOYING", "embed": "DEPLOYING"})
        display.update({"router": "RUNNING", "chat": "DEPLOYING", "embed": "DEPLOYING"})
        display.update({"router": "RUNNING", "chat": "RUNNING", "embed": "DEPLOYING"})
        display.update({"router": "RUNNING", "chat": "RUNNING", "embed": "RUNNING"})
    assert stream.getvalue() == "Waiting for: chat, embed\nWaiting for: embed\n"


def test_a_start_says_at_once_what_it_does_and_is_never_silent_for_long() -> None:
    stream = io.StringIO()
    with StartDisplay(stream, every_s=0.02) as display:
        display.step("Starting Ray")
        assert stream.getvalue() == "Starting Ray\n"
        display.step("Starting Ray")
        wait_until(lambda: stream.getvalue().count("\n") > 3, stream.getvalue)
        display.step("Starting Ray Serve")
        wait_until(lambda: "Starting Ray Serve (0 s so far)" in stream.getvalue(), stream.getvalue)
    step = r"(\w+( \w+)*)\n(\1 \(0 s so far\)\n)+"
    assert re.fullmatch(f"({step})+".replace(r"\1", r"\2"), stream.getvalue())


def test_a_terminal_shows_the_step_and_how_long_the_start_takes() -> None:
    stream = Terminal()
    with StartDisplay(stream, every_s=0.02) as display:
        display.step("Starting Ray")
        wait_until(lambda: re.search(r"Starting Ray \(.*0.* s\)", stream.getvalue()), stream.getvalue)


def test_a_terminal_shows_the_state_of_every_application() -> None:
    stream = Terminal()
    with StartDisplay(stream) as display:
        display.update({"router": "RUNNING", "chat": "DEPLOYING (0/1 replicas)"})
    shown = stream.getvalue()
    assert "router  RUNNING" in shown
    assert "chat    DEPLOYING (0/1 replicas)" in shown


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["log", "terminal"])
def test_a_message_stays_while_others_change(stream: io.StringIO) -> None:
    message = f"It answers: curl http://127.0.0.1/v1 -d '[bold] {'word ' * 40}'"
    with StartDisplay(stream) as display:
        display.say(message)
    assert message in stream.getvalue()


def test_a_checkout_keeps_its_files_at_its_top() -> None:
    assert home() == ROOT == project.ROOT
