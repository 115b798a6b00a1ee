"""A replica ends with an engine that dies or hangs, and with no other."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.engine.watchdog import LEAST_S, MARGIN, RECENT_S, TICK_S, WORKING_S, Silence, Work
from tests.support.waiting import wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """An engine on a clock of its own, whose times are whole ticks."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.silence = Silence(self.clock)

    def tick(self, *, is_busy: bool = True, has_spoken: bool = False, works: bool = False) -> None:
        self.clock.now += TICK_S
        self.silence.tick(is_busy=is_busy, has_spoken=has_spoken, works=works)

    def takes(self, step: int, *, works: bool = False) -> None:
        """An output after so many ticks with a request, in which it rests or works."""
        for number in range(step):
            self.tick(has_spoken=number == step - 1, works=works)

    def idles(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick(is_busy=False)

    def hangs_after(self, *, works: bool = False) -> float:
        """The seconds of silence until it hangs."""
        begun = self.clock.now
        while not self.silence.is_hung:
            self.tick(works=works)
        return self.clock.now - begun


TICKS = st.integers(1, 2000)


@given(st.lists(st.tuples(TICKS, st.integers(0, 3000), st.booleans()), min_size=1, max_size=10))
def test_a_silence_may_last_a_multiple_of_what_was_seen_of_its_kind_lately(steps: list[tuple[int, int, bool]]) -> None:
    engine, ends = Watched(), []
    for step, idle, works in steps:
        engine.takes(step, works=works)
        ends.append((engine.clock.now, step, works))
        engine.idles(idle)
    engine.takes(1)
    recent = [(1, False), *((step, works) for end, step, works in ends if end >= engine.clock.now - RECENT_S)]
    may_rest = max(LEAST_S, MARGIN * max((step - 1) * TICK_S for step, works in recent if not works))
    may_last = max(WORKING_S, MARGIN * max(step * TICK_S for step, _ in recent))
    assert (engine.silence.may_rest_s, engine.silence.may_last_s) == (may_rest, may_last)
    assert min(may_rest, may_last) < engine.hangs_after() <= min(may_rest, may_last) + TICK_S


@pytest.mark.parametrize("step_s", [0.25, 3.0, 60.0])
def test_an_engine_that_stops_is_noticed_in_ten_seconds_however_long_it_has_worked_for_a_step(
    step_s: float,
) -> None:
    """As on a busy machine, or on one without a GPU."""
    engine = Watched()
    for _ in range(3):
        engine.takes(round(step_s / TICK_S), works=True)
    for _ in range(10):
        engine.tick(works=True)
    assert engine.hangs_after() <= 10


def test_an_engine_that_rests_in_its_steps_as_a_gpu_s_may_is_given_a_multiple_of_that() -> None:
    engine = Watched()
    engine.takes(round(2 / TICK_S))
    assert engine.hangs_after() > 30


def test_work_begins_a_rest_anew() -> None:
    engine = Watched()
    while engine.silence.lasts_s < WORKING_S - LEAST_S:
        for _ in range(round((LEAST_S - 1) / TICK_S)):
            engine.tick()
            assert not engine.silence.is_hung
        engine.tick(works=True)
    assert engine.hangs_after() <= LEAST_S + TICK_S


@given(st.lists(st.tuples(st.sampled_from(["idles", "speaks", "stands still"]), TICKS), max_size=8))
def test_no_engine_hangs_that_idles_or_speaks_however_long_this_process_stands_still(
    times: list[tuple[str, int]],
) -> None:
    engine = Watched()
    for what, ticks in times:
        if what == "stands still":  # the machine slept, or something held the event loop
            engine.clock.now += ticks
        for _ in range(ticks if what != "stands still" else 1):
            engine.tick(is_busy=what != "idles", has_spoken=what == "speaks")
            assert not engine.silence.is_hung


def test_an_engine_that_works_gets_more_time() -> None:
    engine = Watched()
    assert WORKING_S < engine.hangs_after(works=True) <= WORKING_S + TICK_S
    engine.takes(round(20 / TICK_S), works=True)
    assert engine.hangs_after(works=True) > MARGIN * 20


SPINS = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
RESTS = "import time; time.sleep(600)"


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", request.param], start_new_session=True) as process:
        time.sleep(1)
        yield process
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(("process", "works"), [(SPINS, True), (RESTS, False)], indirect=["process"])
def test_work_is_what_a_process_and_its_children_do(process: "subprocess.Popen[bytes]", works: bool) -> None:
    work = Work([process.pid])
    assert work.goes_on()
    time.sleep(1)
    assert work.goes_on() == works


@pytest.mark.parametrize("process", [SPINS], indirect=True)
def test_a_stopped_process_does_not_work(process: "subprocess.Popen[bytes]") -> None:
    family = [parent := psutil.Process(process.pid), *wait_until(parent.children)]
    os.killpg(process.pid, signal.SIGSTOP)
    wait_until(lambda: all(one.status() == psutil.STATUS_STOPPED for one in family))  # each stops once it has a core
    work = Work([process.pid])
    work.goes_on()
    time.sleep(1)
    assert not work.goes_on()
    work.begin()
    assert work.goes_on()


@pytest.mark.parametrize("process", [RESTS], indirect=True)
def test_an_engine_whose_times_are_not_known_is_taken_for_one_that_works(
    process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.open", _refused)
    for pids in ([process.pid], []):
        work = Work(pids)
        work.goes_on()
        assert work.goes_on()


def _refused(*_: object) -> int:
    raise PermissionError


REPLICA = textwrap.dedent("""
    import asyncio, multiprocessing, socket, sys, time
    from types import SimpleNamespace
    from deployments.engine.watchdog import Watchdog

    def engine(pipe):
        while True:
            time.sleep(0.02)
            pipe.send(1)

    async def main(port, is_held):
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=engine, args=(there,), daemon=True)
        process.start()
        client = socket.create_connection(("127.0.0.1", port))
        client.send(b"%d\\n" % process.pid)

        requests = []

        async def get_output_async():
            await asyncio.to_thread(here.recv)
            requests.append(1)

        core = SimpleNamespace(
            get_output_async=get_output_async,
            utility_results={},
            resources=SimpleNamespace(engine_manager=SimpleNamespace(processes=[process])),
        )
        vllm = SimpleNamespace(
            engine_core=core,
            errored=False,
            log_stats=True,
            output_processor=SimpleNamespace(has_unfinished_requests=lambda: bool(requests)),
            vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(distributed_executor_backend="mp")),
        )
        watching = asyncio.create_task(Watchdog(vllm).run())
        await core.get_output_async()
        if is_held:
            time.sleep(600)
        while True:
            await core.get_output_async()

    if __name__ == "__main__":
        asyncio.run(main(int(sys.argv[1]), sys.argv[2] == "held"))
""")


@contextmanager
def replica(tmp_path: Path, loop: str) -> Iterator[tuple[psutil.Process, Callable[[], None]]]:
    """One whose event loop is `held` or `free`: its engine's process, and what waits until its client's connection is
    closed, and the replica has ended."""
    script = tmp_path / "replica.py"
    script.write_text(REPLICA)
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, str(script), str(server.getsockname()[1]), loop]
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.getcwd()}) as process:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:

                def closes() -> None:
                    connection.settimeout(60)
                    assert lines.read() == b""
                    assert process.wait(10) == 1

                yield psutil.Process(int(lines.readline())), closes
                assert process.poll() is not None


def test_the_connections_of_a_replica_whose_engine_is_stopped_are_closed(tmp_path: Path) -> None:
    """Its client sees their end, on a busy machine a little later, and the engine's process is gone as well."""
    with replica(tmp_path, "free") as (engine, closes):
        time.sleep(LEAST_S + 2)
        engine.suspend()
        stopped = time.monotonic()
        closes()
        assert LEAST_S - 1 < time.monotonic() - stopped < 30
        wait_until(lambda: not engine.is_running() or engine.status() == "zombie", engine.status, within_s=10)


@pytest.mark.parametrize("loop", ["free", "held"])
def test_those_of_one_whose_engine_has_died_are_closed_whatever_its_event_loop_does(tmp_path: Path, loop: str) -> None:
    with replica(tmp_path, loop) as (engine, closes):
        time.sleep(LEAST_S / 4)  # it watches
        engine.kill()
        closes()
