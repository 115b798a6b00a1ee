import os
import threading
import time
import warnings
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own, when it is imported
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from deployments.engine.scheduler import (
        ALLOWED_S,
        COMPILATIONS,
        BoundedGrammar,
        CompilationThreads,
        scheduler_class,
    )


class Request:
    """Of vLLM's requests what the threads look at."""

    def __init__(self, *, is_aborted: bool = False) -> None:
        self.request_id = "1"
        self.is_aborted = is_aborted

    def is_finished(self) -> bool:
        return self.is_aborted


class Grammar:
    """It takes its time. `thread_time` counts only what the processor does."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls: list[str] = []

    def fill_bitmask(self, bitmask: Any, idx: int) -> None:
        self._work("fill")
        bitmask[idx].fill_(5)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        self._work("accept")
        return tokens != [9]

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        self._work("validate")
        return tokens

    def rollback(self, num_tokens: int) -> None:
        self.calls.append("rollback")

    def _work(self, name: str) -> None:
        self.calls.append(name)
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass


def test_the_scheduler_is_vllms_own_with_other_threads() -> None:
    for is_async, base in ((True, AsyncScheduler), (False, Scheduler)):
        scheduler: Any = resolve_obj_by_qualname(str(scheduler_class(None, is_async=is_async)))
        assert issubclass(scheduler, base)
        assert issubclass(scheduler, AsyncScheduler) is is_async


def test_the_operators_scheduler_stays() -> None:
    assert scheduler_class("a.Scheduler", is_async=True) == "a.Scheduler"


def test_a_short_compilation_ends_beside_long_ones_and_has_a_low_priority() -> None:
    is_over = threading.Event()
    priorities: list[int] = []

    def compile_short(request: Request) -> None:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    with CompilationThreads(print) as threads:
        long = [threads.submit(lambda request: is_over.wait(60), Request()) for _ in range(COMPILATIONS - 1)]
        try:
            threads.submit(compile_short, Request()).result(60)
            assert priorities[0] > os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            assert not any(future.done() for future in long)
        finally:
            is_over.set()


def test_what_waits_is_not_compiled_for_a_client_that_left() -> None:
    compiled: list[Request] = []
    with CompilationThreads(print) as threads:
        left = threads.submit(compiled.append, Request(is_aborted=True))
        with pytest.raises(RuntimeError, match="aborted"):
            left.result(60)
        threads.submit(compiled.append, Request()).result(60)
    assert len(compiled) == 1


def test_a_grammar_that_takes_too_long_to_follow_ends_its_request_once() -> None:
    ended: list[str] = []
    grammar = Grammar(seconds=0.05)
    with CompilationThreads(ended.append) as threads:
        bounded = threads.submit(lambda request: grammar, Request()).result(60)
    bitmask = torch.zeros((2, 3), dtype=torch.int32)
    steps = 0
    while not ended:
        bounded.fill_bitmask(bitmask, 1)
        steps += 1
    assert ended == ["1"]
    assert ALLOWED_S / grammar.seconds - 1 <= steps <= ALLOWED_S / grammar.seconds + 1
    assert bitmask.tolist() == [[0] * 3, [5] * 3]
    del grammar.calls[:]
    bounded.fill_bitmask(bitmask, 1)
    assert bitmask.tolist() == [[0] * 3, [-1] * 3]  # all tokens are allowed
    assert bounded.accept_tokens("1", [9])
    assert bounded.validate_tokens([1]) == []
    bounded.rollback(1)
    assert (grammar.calls, ended) == ([], ["1"])


def test_a_grammar_that_is_quick_is_followed_for_ever() -> None:
    grammar = Grammar(seconds=0.001)
    bounded = BoundedGrammar(grammar, lambda: pytest.fail("it was ended"), allowed_s=0.05, allowed_s_per_token=0.01)
    bitmask = torch.zeros((1, 3), dtype=torch.int32)
    for _ in range(100):
        bounded.fill_bitmask(bitmask, 0)
        assert bounded.accept_tokens("1", [1])
    assert not bounded.accept_tokens("1", [9])
    assert bounded.validate_tokens([1]) == [1]
    bounded.rollback(1)
    assert grammar.calls[-1] == "rollback"
