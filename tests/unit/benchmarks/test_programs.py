"""What disturbs a benchmark's programs."""

import asyncio
import os
import resource
import threading
from dataclasses import dataclass, replace

import pytest

from benchmarks.programs import AGAIN, MOST_FAULTS, MOST_OTHER_CORES, Stalls, undisturbed


@dataclass
class Turn:
    number: int
    major_faults: int = 0
    other_cores: float = 0.0


@pytest.mark.parametrize(
    "disturbed", [Turn(0, major_faults=MOST_FAULTS + 1), Turn(0, other_cores=MOST_OTHER_CORES + 0.1)]
)
@pytest.mark.parametrize("times", [0, 1, AGAIN, AGAIN + 5])
def test_a_disturbed_turn_is_repeated_until_one_is_not_or_it_has_been_tried_often(
    disturbed: Turn, times: int, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [replace(disturbed, number=number) if number < times else Turn(number) for number in range(AGAIN + 6)]
    left = iter(turns)

    async def turn() -> Turn:
        return next(left)

    assert asyncio.run(undisturbed(turn)).number == min(times, AGAIN)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == min(times, AGAIN + 1)
    assert [line.endswith("counted nevertheless") for line in told] == [number == AGAIN for number in range(len(told))]


def test_major_faults_are_the_kernels_count() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    read = Stalls.of([os.getpid()]).major_faults
    assert before <= read <= resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def test_threads_that_share_a_core_wait_for_it() -> None:
    cores = os.sched_getaffinity(0)
    stop = threading.Event()

    def work() -> None:
        os.sched_setaffinity(0, {min(cores)})  # of this thread alone
        while not stop.is_set():
            sum(os.urandom(4096))  # urandom releases the interpreter's lock

    threads = [threading.Thread(target=work) for _ in range(3)]
    before = Stalls.of([os.getpid()])
    for thread in threads:
        thread.start()
    try:
        stop.wait(0.5)
        assert Stalls.of([os.getpid()]).since(before).waited_s > 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_process_that_has_ended_has_no_stalls() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert Stalls.of([pid]) == Stalls(0, 0.0)
