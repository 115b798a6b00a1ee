"""Signals set an event and interrupt nothing: work in progress ends where it checks the event.

So the cleanup at the end of a run is never cut short, not even by a second signal.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """A signal arrived while the application was starting."""


@contextlib.contextmanager
def stop_event() -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM and SIGHUP set."""
    stop = threading.Event()
    handle_signals(stop)
    yield stop


def handle_signals(stop: threading.Event) -> None:
    """Installs the handlers. SIGINT too: a shell that starts a program with `&` has it ignored. SIGHUP, the signal of a
    closed terminal, stays ignored under `nohup`."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, lambda *_: stop.set())


def raise_if_stopped(stop: threading.Event, wait_s: float = 0.0) -> None:
    """Waits up to `wait_s`. Raises Stopped as soon as the event is set."""
    if stop.wait(wait_s):
        raise Stopped


def run_in_background(work: Callable[[], T], stop: threading.Event) -> T:
    """The result of `work`, which runs in a thread. Raises Stopped at once if a signal arrives first."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised again by `future.result()`)
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not future.done():
        raise_if_stopped(stop)
        wait([future], timeout=0.1)
    return future.result()
