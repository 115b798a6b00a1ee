"""What the continuation of streams uses of vLLM beyond its public API is as of the version that it was written for.

A wrong token is no error, so an update of vLLM must not pass unseen: if a test here fails, read what has changed, and
see `docs/internals/architecture.md`.
"""

import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from app.engine.errors import ENGINE_DEAD
from app.exchange.engine_input import TOKENIZER_ARGUMENTS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own, when it is imported
    import vllm.utils
    from transformers import MistralCommonBackend, PreTrainedTokenizerBase, PythonBackend
    from vllm.entrypoints.anthropic import serving as messages
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
    from vllm.v1.engine import utils as engine_utils
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import AsyncMPClient, DPAsyncMPClient
    from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer
    from vllm.v1.engine.exceptions import EngineDeadError
    from vllm.v1.engine.logprobs import LogprobsProcessor
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector, RequestState
    from vllm.v1.outputs import LogprobsLists
    from vllm.v1.request import Request, RequestStatus
    from vllm.v1.sample.ops import topk_topp_sampler as sampler
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.structured_output.request import StructuredOutputRequest
    from vllm.v1.worker import gpu_model_runner as runner
    from vllm.v1.worker.gpu_input_batch import CachedRequestState
    from vllm.v1.worker.worker_base import WorkerWrapperBase

CALLS: dict[Any, str] = {
    # The scheduler: a request that comes with output is one that it has preempted.
    Scheduler.add_request: "self, request",
    Scheduler._try_promote_blocked_waiting_request: "self, request",
    Request.append_output_token_ids: "self, token_ids",
    StructuredOutputManager.should_fill_bitmask: "self, request",
    StructuredOutputManager.should_advance: "self, request, new_token_ids",
    StructuredOutputManager.trim_reasoning_for_advance: "self, request, new_token_ids",
    # The worker: its state, and what a draw fills.
    sampler.empty_exponential_noise_like: "probs, use_fp64_gumbel",
    # The API layer: reads tokens without an engine.
    AsyncMPClient.add_request_async: "self, request",
    DPAsyncMPClient.add_request_async: "self, request",
    OutputProcessor.abort_requests: "self, request_ids, internal",
    RequestState.make_request_output: (
        "self, new_token_ids, pooling_output, finish_reason, stop_reason, kv_transfer_params, ec_transfer_params"
    ),
    BaseIncrementalDetokenizer.update: "self, new_token_ids, stop_terminated",
    LogprobsProcessor.update_from_output: "self, output",
    RequestOutputCollector.__init__: "self, output_kind, request_id",
    RequestOutputCollector.put: "self, output",
    RequestOutputCollector.get: "self",
    RequestOutputCollector.get_nowait: "self",
}


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__qualname__)
def test_functions_take_what_they_took(function: Any) -> None:
    assert ", ".join(inspect.signature(function).parameters) == CALLS[function]


STATE: dict[Any, str] = {
    CachedRequestState: "prompt_token_ids sampling_params generator output_token_ids",
    EngineCoreRequest: "request_id prompt_token_ids prompt_embeds sampling_params",
    EngineCoreOutput: "request_id new_token_ids new_logprobs",
    LogprobsLists: "logprob_token_ids logprobs sampled_token_ranks cu_num_generated_tokens",
    StructuredOutputRequest: "_grammar reasoning_ended reasoning_end_token_index",
}


@pytest.mark.parametrize("kind", STATE, ids=lambda kind: kind.__name__)
def test_records_have_their_fields(kind: Any) -> None:
    fields = getattr(kind, "_fields", None) or getattr(kind, "__struct_fields__", None) or kind.__dataclass_fields__
    assert set(STATE[kind].split()) <= set(fields)


SOURCES: list[tuple[Any, str]] = [
    (Request.__init__, r"self\.num_preemptions = 0"),
    # A preempted request's prefix cache may reach beyond its prompt.
    (
        Scheduler.schedule,
        r"if request\.prefill_stats and request\.num_preemptions <= 0:\n\s+assert num_comp",
    ),
    (Scheduler.update_from_output, r"set\(self\.grammar_compile_error_reqs\)"),
    (Scheduler._try_promote_blocked_waiting_request, r"isinstance\(structured_output_req\.grammar, Exception\)"),
    # The V1 model runner makes a state by this name, with an empty output, and takes draws back by the offset.
    (runner.GPUModelRunner._update_states, r"req_state = CachedRequestState\([^)]*output_token_ids=\[\],"),
    (runner.GPUModelRunner._bookkeeping_sync, r"gen\.set_offset\(gen\.get_offset\(\) - 4\)"),
    (sampler.random_sample, r"q\[i\]\.exponential_\(generator=generator\)"),
    (sampler.TopKTopPSampler.forward_cpu, r"q\[i\]\.exponential_\(generator=generator\)"),
    (WorkerWrapperBase.init_worker, r"worker_extension_cls"),
    # The API layer knows a request before its engine does, and asks for outputs one by one.
    (AsyncLLM._add_request, r"(?s)output_processor\.add_request\(.*await self\.engine_core\.add_request_async\("),
    (AsyncLLM.add_request, r"queue = RequestOutputCollector\(params\.output_kind, request\.request_id\)"),
    (AsyncLLM.generate, r"q\.get_nowait\(\) or await q\.get\(\)"),
    (OutputProcessor.__init__, r"self\.request_states: dict\[str, RequestState\]"),
    (RequestState.__init__, r"(?s)self\.queue = queue.*self\.stream_interval = .*self\.sent_tokens_offset = 0"),
    (RequestOutputCollector.put, r"self\.output = output"),
    # Its servers ask `engine_client`, and make ids from these.
    (OpenAIServingChat._create_chat_completion, r"self\.engine_client\.generate\("),
    (OpenAIServingCompletion._create_completion, r"self\.engine_client\.generate\("),
    (OpenAIServingResponses._generate_with_builtin_tools, r"self\.engine_client\.generate\("),
    (OpenAIServingChat.__init__, r"self\.parser_cls = "),
    (OpenAIServingResponses.__init__, r"self\.enable_store = "),
    (vllm.utils.random_uuid, r"uuid\.uuid4\(\)"),
    (messages, r"uuid\.uuid4\(\)\.hex"),
    # `deployments.engine.fork` has it make the engine's process.
    (engine_utils.CoreEngineProcManager.__init__, r"(?s)context = get_mp_context\(\).*context\.Process\("),
]


@pytest.mark.parametrize(("where", "pattern"), SOURCES, ids=[f"{where.__name__} {p[:40]}" for where, p in SOURCES])
def test_what_they_do_is_what_they_did(where: Any, pattern: str) -> None:
    assert re.search(pattern, inspect.getsource(where))


def test_requests_that_wait_for_their_grammar_have_this_status() -> None:
    assert RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR is not RequestStatus.WAITING
    assert issubclass(messages.AnthropicServingMessages, OpenAIServingChat)
    assert inspect.ismodule(runner.CachedRequestState) is False


def test_a_dead_engine_says_so() -> None:
    assert str(EngineDeadError()).startswith(ENGINE_DEAD)


def test_only_these_modules_read_the_tensors_of_prompts() -> None:
    """`deployments.engine.server.harden` closes them."""
    root = Path(vllm.__file__).parent
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if "load_prompt_embeds" in path.read_text()}
    assert found == {"entrypoints/chat_utils.py", "renderers/base.py", "renderers/embed_utils.py"}


def test_the_arguments_of_tokenizers_are_known() -> None:
    """vLLM passes variables of a template on as these (`app.exchange.engine_input.check_costly_params`)."""
    harmless = {"tools", "documents", "add_generation_prompt", "continue_final_message", "reasoning_effort"}
    for kind in (PreTrainedTokenizerBase, PythonBackend, MistralCommonBackend):
        parameters = inspect.signature(kind.apply_chat_template).parameters.values()
        names = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD} - {"self"}
        assert names <= harmless | TOKENIZER_ARGUMENTS, kind
