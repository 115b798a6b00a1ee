"""What one request may cost an engine that others share. Importing it imports vLLM.

vLLM's API layer takes from anybody what this project's does not (`harden`). And it registers a request before the
engine has it: what is refused then must be forgotten, too, or the watchdog waits for its answer, and takes the engine
for one that hangs (`guard`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

from tokenizers import decoders
from vllm.entrypoints import chat_utils
from vllm.exceptions import VLLMValidationError
from vllm.renderers import base
from vllm.utils.async_utils import make_async
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

# - Prompts may replace the embeddings of some tokens, for which the engine has `enable_prompt_embeds`
#   (`deployments.engine.completions`). With that vLLM also takes whole prompts as tensors, in PyTorch's format: a
#   sparse one of 2 KB can have any size, and vLLM makes it dense. Callers send none, unless the YAML says so.
# - An image, audio or video may have a `uuid`. That is its key in the cache of processed ones, which all callers share:
#   whoever knows another's reads that, or replaces it.


def harden(*, takes_embeddings: bool) -> None:
    """Makes vLLM's API layer refuse both; tensors, unless the server `takes_embeddings`. Before the engine's start."""
    if not takes_embeddings:
        for module in (base, chat_utils):
            module.safe_load_prompt_embeds = _refused_tensor
        chat_utils.safe_load_prompt_embeds_async = make_async(_refused_tensor)
    resolve = chat_utils._resolve_items

    def resolved(items_by_modality: Mapping[str, Sequence[Any]], *others: Any) -> Any:
        if any(uuid is not None for items in items_by_modality.values() for _, uuid in items):
            raise VLLMValidationError("uuid: not accepted: all callers share what it names", parameter="uuid")
        return resolve(items_by_modality, *others)

    chat_utils._resolve_items = resolved


def _refused_tensor(model_config: object, data: object) -> NoReturn:
    raise VLLMValidationError(
        "prompt_embeds: not accepted; the operator may accept them (`engine_kwargs.enable_prompt_embeds`)",
        parameter="prompt_embeds",
    )


def guard(client: Any) -> None:
    """Has vLLM's engine client refuse requests that cost too much, and forget all that the engine does not take."""
    core, processor = client.engine_core, client.output_processor
    core.add_request_async = _guarded(core.add_request_async, processor, client.model_config.get_vocab_size())


def _guarded(add: Callable[..., Awaitable[None]], processor: Any, vocabulary: int) -> Callable[..., Awaitable[None]]:
    async def add_or_forget(request: Any) -> None:
        """vLLM's `EngineCoreClient.add_request_async`; also raises VLLMValidationError."""
        try:
            state = processor.request_states.get(request.request_id)
            if reason := why_not_embedded(request, vocabulary) or too_many_logprobs(request, _choices(state)):
                raise VLLMValidationError(reason)
            shorten(getattr(state, "detokenizer", None), request)
            await add(request)
        except BaseException as error:
            processor.abort_requests([request.request_id], internal=True)
            if isinstance(error, OverflowError):  # of its encoding for the engine
                raise VLLMValidationError("A number of the request has more than 64 bits") from error
            raise

    return add_or_forget


def why_not_embedded(request: Any, vocabulary: int) -> str | None:
    """Why the model has no embedding for vLLM's `EngineCoreRequest`; None if it has.

    vLLM lets an id pass that is the tokenizer's `vocab_size`, one too many, and the engine dies of it. Only media have
    embeddings of their own, and such ids may hold their places in the prompt.
    """
    highest = max(request.prompt_token_ids or (), default=0)
    return f"Token id {highest} is out of vocabulary" if highest >= vocabulary and not request.mm_features else None


MOST_PROMPT_LOGPROBS = 16_384
"""The API layer makes 75,000 of them in a second, and no other answer goes on meanwhile."""


def too_many_logprobs(request: Any, choices: int) -> str | None:
    """Why vLLM's `EngineCoreRequest` gets no log-probabilities of its prompt; None if it gets them, or wants none.

    Each of its `choices` has them anew."""
    if (wanted := getattr(request.sampling_params, "prompt_logprobs", None)) is None:
        return None
    count = len(request.prompt_token_ids or ()) * (wanted + 1) * choices
    if count <= MOST_PROMPT_LOGPROBS:
        return None
    return f"prompt_logprobs: tokens of the prompt times values for each are {count}, at most {MOST_PROMPT_LOGPROBS}"


def _choices(state: Any) -> int:
    """Of how many choices vLLM's `RequestState` is one."""
    parent = getattr(state, "parent_req", None)
    return 1 if parent is None else int(parent.sampling_params.n)


TAIL = 32
"""Tokens of a prompt on which the text of the next one may depend: they may end within a character."""


def shorten(detokenizer: Any, request: Any) -> None:
    """Has the detokenizer of a request that begins look at the end of its prompt only. vLLM's decodes the whole prompt
    with the first token, and with each one that completes no character: 1.8 ms for 8,000 tokens."""
    if isinstance(detokenizer, FastIncrementalDetokenizer) and len(request.prompt_token_ids or ()) > TAIL:
        tail, skips = request.prompt_token_ids[-TAIL:], detokenizer.skip_special_tokens
        detokenizer.stream = decoders.DecodeStream(ids=tail, skip_special_tokens=skips)
