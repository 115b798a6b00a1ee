"""vLLM's schedulers, with bounds for what constraints cost, and requests that have begun elsewhere.

Importing it imports vLLM.

Before a request with a schema, grammar or regular expression is scheduled, the engine compiles that, in a thread: a
string with `maxLength: 200` takes two seconds of CPU time with a vocabulary of 49,000 tokens, and others take more.
Nothing can stop a compilation; `deployments.engine.trial` refuses before what would take too long. vLLM has half as
many threads as the machine has cores, in a queue, so that a few long compilations delay every other constraint until
they are over. Here those that are under way share the cores, at a low priority: a short one is done first, and running
answers hardly notice.

In each step the scheduler asks the grammar of each request which tokens may come next, and tells it which one came. All
answers wait for this. xgrammar parses as Earley did: with an ambiguous grammar, or an expression like `(a*)*b`, a token
takes longer the more came before, up to the square or cube of their number. So an answer ends when its grammar takes
too long to follow.

A request may come with output tokens that another engine has generated (`deployments.engine.continuation`). vLLM knows
such requests: those that it has preempted. They are computed again from prompt and output, and go on where they were.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

COMPILATIONS = 16
"""At a time. Further ones wait."""

_NICENESS = 10

ALLOWED_S, ALLOWED_S_PER_TOKEN = 1.0, 0.005
"""CPU time that one answer may take from all others."""

OUTPUT = "switchyard_output_token_ids"
"""The key of a request's `SamplingParams.extra_args`: the output tokens that it comes with, a list of ids."""

_logger = init_logger(__name__)


class BoundedGrammar(StructuredOutputGrammar):  # type: ignore[misc]  # vLLM ships no types
    """Follows `grammar` while there is time; then it calls `end` once and allows everything without following it."""

    def __init__(
        self,
        grammar: Any,
        end: Callable[[], object],
        *,
        allowed_s: float = ALLOWED_S,
        allowed_s_per_token: float = ALLOWED_S_PER_TOKEN,
    ) -> None:
        self._grammar, self._end = grammar, end
        self._left_s, self._s_per_token = allowed_s, allowed_s_per_token

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Whether the tokens continue the text. vLLM's scheduler does not survive a False for a draft."""
        if self._left_s < 0:
            return True
        with self._timed(len(tokens)):
            accepted: bool = self._grammar.accept_tokens(request_id, tokens)
        return accepted

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Those of the drafts `tokens` that continue the text."""
        if self._left_s < 0:
            return []
        with self._timed():
            valid: list[int] = self._grammar.validate_tokens(tokens)
        return valid

    def fill_bitmask(self, bitmask: Any, idx: int) -> None:
        """Writes which tokens may come next to row `idx`: a bit each."""
        if self._left_s < 0:
            bitmask[idx].fill_(-1)
            return
        with self._timed():
            self._grammar.fill_bitmask(bitmask, idx)

    def rollback(self, num_tokens: int) -> None:
        """Takes the last tokens back."""
        if self._left_s >= 0:
            self._grammar.rollback(num_tokens)

    def is_terminated(self) -> bool:
        """Whether the text is complete."""
        terminated: bool = self._grammar.is_terminated()
        return terminated

    def reset(self) -> None:
        """Begins the text anew; the time that is used stays so."""
        self._grammar.reset()

    @contextmanager
    def _timed(self, tokens: int = 0) -> Iterator[None]:
        start = time.thread_time()
        try:
            yield
        finally:
            self._left_s += tokens * self._s_per_token - (time.thread_time() - start)
            if self._left_s < 0:
                self._end()


class CompilationThreads(ThreadPoolExecutor):
    """Takes the place of `StructuredOutputManager.executor`."""

    def __init__(self, end: Callable[[str], object]) -> None:
        """`end` ends the request with that id: its grammar takes too long to follow."""
        super().__init__(COMPILATIONS, "constraint", initializer=_lower_priority)
        self._end = end

    def submit(self, create: Callable[..., Any], /, request: Any) -> "Future[Any]":  # type: ignore[override]
        """The grammar that `create` makes for vLLM's `request`; an error if the client leaves while it waits."""
        return super().submit(self._bounded, create, request)

    def _bounded(self, create: Callable[..., Any], request: Any) -> BoundedGrammar:
        if request.is_finished():
            raise RuntimeError("the request has been aborted")
        return BoundedGrammar(create(request), partial(self._end, request.request_id))


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)  # Linux has one for each thread


class _WithBounds:
    grammar_compile_error_reqs: set[str]
    """vLLM's: requests that it ends with an error after the present step."""

    def __init__(self, *args: Any, structured_output_manager: Any, **kwargs: Any) -> None:
        if hasattr(structured_output_manager, "executor"):  # not without a tokenizer
            structured_output_manager.executor.shutdown(wait=False)
            structured_output_manager.executor = CompilationThreads(self._end)
            _fix_backend(structured_output_manager)
        super().__init__(*args, structured_output_manager=structured_output_manager, **kwargs)  # type: ignore[call-arg]

    def _end(self, request_id: str) -> None:
        _logger.warning("Request %s ends: its grammar is too ambiguous to be followed", request_id)
        self.grammar_compile_error_reqs.add(request_id)


def _fix_backend(manager: Any) -> None:
    """With `auto`, vLLM follows all constraints with what the first one after its start asks for. Some need outlines,
    which refuses grammars and compiles without a bound. So take what most ask for, and what `trial` tries.
    """
    config = manager.vllm_config
    if config.structured_outputs_config.backend == "auto" and config.model_config.runner_type == "generate":
        with suppress(ValueError):  # a tokenizer that it does not know: vLLM says so when there is a constraint
            manager.backend = XgrammarBackend(config, manager.tokenizer, config.model_config.get_vocab_size())


def output_of(params: Any) -> list[int]:
    """The output tokens that a request with these `SamplingParams` comes with."""
    return list(((params and params.extra_args) or {}).get(OUTPUT, ()))


class _WithOutput:
    """Takes requests that come with output tokens as if it had preempted them."""

    structured_output_manager: Any
    """vLLM's."""

    def add_request(self, request: Any) -> None:
        if output := output_of(request.sampling_params):
            request.append_output_token_ids(output)
            request.num_preemptions = 1  # otherwise vLLM asserts that the prefix cache has no more than its prompt
        super().add_request(request)  # type: ignore[misc]

    def _try_promote_blocked_waiting_request(self, request: Any) -> bool:
        waited = request.status
        promoted: bool = super()._try_promote_blocked_waiting_request(request)  # type: ignore[misc]
        if not promoted or waited != RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR or self._follows(request):
            return promoted
        request.structured_output_request.grammar = ValueError("the grammar does not accept the request's output")
        request.status = waited
        return super()._try_promote_blocked_waiting_request(request)  # type: ignore[misc,no-any-return]

    def _follows(self, request: Any) -> bool:
        """Whether the request's grammar accepts the output that it comes with, as far as that is not reasoning."""
        output, manager = output_of(request.sampling_params), self.structured_output_manager
        if not output:
            return True
        manager.should_fill_bitmask(request)  # so vLLM sees in the prompt whether there is reasoning at all
        if not manager.should_advance(request, new_token_ids=output):
            return True
        rest = manager.trim_reasoning_for_advance(request, output)
        return not rest or request.structured_output_request.grammar.accept_tokens(request.request_id, rest)


class SyncBoundedScheduler(_WithOutput, _WithBounds, Scheduler):  # type: ignore[misc]  # vLLM ships no types
    """For vLLM without asynchronous scheduling."""


class AsyncBoundedScheduler(_WithOutput, _WithBounds, AsyncScheduler):  # type: ignore[misc]
    """For vLLM with asynchronous scheduling."""


def scheduler_class(chosen: object, *, is_async: bool) -> object:
    """vLLM's `scheduler_cls`: the one that is `chosen` by the operator, else one of these, by its name."""
    if chosen is not None:
        return chosen
    return f"{__name__}.{'Async' if is_async else 'Sync'}BoundedScheduler"
