"""vLLM's schedulers, with more threads for constraints. Importing it imports vLLM.

Before a request with a schema, grammar or regular expression is scheduled, the engine compiles that, in a thread: a
string with `maxLength: 200` takes two seconds of CPU time with a vocabulary of 49,000 tokens, and others take more.
Nothing can stop a compilation. vLLM has half as many threads as the machine has cores, in a queue, so that a few long
compilations delay every other constraint until they are over. Here those that are under way share the cores, at a low
priority: a short one is done first, and running answers hardly notice.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

COMPILATIONS = 16
"""At a time. Further ones wait."""

_NICENESS = 10


class CompilationThreads(ThreadPoolExecutor):
    """Takes the place of `StructuredOutputManager.executor`."""

    def __init__(self) -> None:
        super().__init__(COMPILATIONS, "constraint", initializer=_lower_priority)

    def submit(self, create: Callable[..., Any], /, request: Any) -> "Future[Any]":  # type: ignore[override]
        """The grammar that `create` makes for vLLM's `request`; an error if the client leaves while it waits."""
        return super().submit(_unless_aborted, create, request)


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)  # Linux has one for each thread


def _unless_aborted(create: Callable[..., Any], request: Any) -> Any:
    if request.is_finished():
        raise RuntimeError("the request has been aborted")
    return create(request)


class _WithThreads:
    def __init__(self, *args: Any, structured_output_manager: Any, **kwargs: Any) -> None:
        if hasattr(structured_output_manager, "executor"):  # not without a tokenizer
            structured_output_manager.executor.shutdown(wait=False)
            structured_output_manager.executor = CompilationThreads()
        super().__init__(*args, structured_output_manager=structured_output_manager, **kwargs)  # type: ignore[call-arg]


class SyncSchedulerWithThreads(_WithThreads, Scheduler):  # type: ignore[misc]  # vLLM ships no types
    """For vLLM without asynchronous scheduling."""


class AsyncSchedulerWithThreads(_WithThreads, AsyncScheduler):  # type: ignore[misc]
    """For vLLM with asynchronous scheduling."""


def scheduler_class(chosen: object, *, is_async: bool) -> object:
    """vLLM's `scheduler_cls`: the one that is `chosen` by the operator, else one of these, by its name."""
    if chosen is not None:
        return chosen
    return f"{__name__}.{'Async' if is_async else 'Sync'}SchedulerWithThreads"
