import os
import threading
import warnings
from concurrent.futures import Future
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own, when it is imported
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from deployments.engine.scheduler import COMPILATIONS, CompilationThreads, scheduler_class


class Request:
    """Of vLLM's requests what the threads look at."""

    def __init__(self, *, is_aborted: bool = False) -> None:
        self.is_aborted = is_aborted

    def is_finished(self) -> bool:
        return self.is_aborted


def test_the_scheduler_is_vllms_own_with_other_threads() -> None:
    for is_async, base in ((True, AsyncScheduler), (False, Scheduler)):
        found: Any = resolve_obj_by_qualname(str(scheduler_class(None, is_async=is_async)))
        assert issubclass(found, base)
        assert issubclass(found, AsyncScheduler) is is_async


def test_the_operators_scheduler_stays() -> None:
    assert scheduler_class("a.Scheduler", is_async=True) == "a.Scheduler"


def test_a_short_compilation_ends_beside_long_ones_and_has_a_low_priority() -> None:
    is_over = threading.Event()
    with CompilationThreads() as threads:
        long = [threads.submit(lambda request: is_over.wait(60), Request()) for _ in range(COMPILATIONS - 1)]
        try:
            short: Future[int] = threads.submit(
                lambda request: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), Request()
            )
            assert short.result(60) > os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            assert not any(future.done() for future in long)
        finally:
            is_over.set()


def test_what_waits_is_not_compiled_for_a_client_that_left() -> None:
    compiled: list[Request] = []
    with CompilationThreads() as threads:
        left = threads.submit(compiled.append, Request(is_aborted=True))
        with pytest.raises(RuntimeError, match="aborted"):
            left.result(60)
        threads.submit(compiled.append, Request()).result(60)
    assert len(compiled) == 1
