"""Clients that disconnect: in every dialect and at any time, the engine stops working for them."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import pytest

from tests.real.conftest import Application
from tests.support.processes.load import Lane, lanes, sent
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

GREEN = "smollm2-green"
CLIENTS = 9
"""Of each dialect, in each case: more than 200 in all."""
IDLE_WITHIN_S = 10.0
"""A quiet machine needs less than one; the answers would take minutes."""

LANES = lanes(GREEN, tokens=2000)


@contextmanager
def clients(url: str, lanes: Sequence[Lane]) -> Iterator[list[socket.socket]]:
    """CLIENTS requests of each lane, whose clients have disconnected at the end of the block."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(sent(url, lane))) for lane in lanes for _ in range(CLIENTS)]


def first_token(client: socket.socket) -> None:
    """Waits for the second event, the first that may have generated text."""
    received = b""
    while received.count(b"data:") < 2:
        chunk = client.recv(65536)
        assert chunk, received
        received += chunk


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: f"{lane.name}-{'streamed' if lane.streamed else 'whole'}")
def test_the_engine_is_idle_soon_after_its_clients_have_gone(application: Application, lane: Lane) -> None:
    wait_until(lambda: application.running(GREEN) == 0, within_s=30)
    with clients(application.url, [lane]) as connections:
        if lane.streamed:
            for connection in connections:
                first_token(connection)
            assert application.running(GREEN) > 0
        else:
            wait_until(lambda: application.running(GREEN) > CLIENTS // 2, within_s=30)
    assert_idle_soon(application)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_the_engine_is_idle_soon_after_clients_that_left_at_once(application: Application, streamed: bool) -> None:
    wait_until(lambda: application.running(GREEN) == 0, within_s=30)
    with clients(application.url, [lane for lane in LANES if lane.streamed == streamed]):
        time.sleep(0.05)
    time.sleep(1)  # a request may still be on its way to the engine
    assert_idle_soon(application)


def assert_idle_soon(application: Application) -> None:
    wait_until(lambda: application.running(GREEN) == 0, within_s=IDLE_WITHIN_S)
    time.sleep(0.2)  # and no late request may start
    assert application.running(GREEN) == 0
