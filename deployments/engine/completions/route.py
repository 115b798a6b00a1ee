"""`POST /switchyard/completions`: vLLM's `/v1/completions`, and seeds, beams and replaced embeddings.

The request
===========
A JSON object with the fields of vLLM 0.29's `/v1/completions` (`CompletionRequest`), for one prompt: `prompt` is a
string or a list of token ids. Unknown fields are rejected, and so are `prompt_embeds` and `use_beam_search`. Three
fields are this route's own; `replace_embeddings` goes with either of the others.

`seeds`: list of 1 to 128 integers from 0 to 2**64 - 1
    One choice per seed, each drawn as if it were alone: `choices[i]` with `seeds[i]`. `n` is left out, or their
    number; `seed` is not given. Everything else works as without, streams and `vllm_xargs` too. A seed below 2**63
    draws what `/v1/completions` draws with it; those above are taken as int64 (`app.internal_api.to_int64_seed`).

`beam`: object
    The answer is found by a search (`deployments.engine.beam_search`), not sampled token by token.

    - `width`: integer 1 to 31, required.
    - `type`: "DETERMINISTIC" (default), "NAIVE_SAMPLING" or "STOCHASTIC".
    - `length_penalty`: number -10 to 10, default 1: a beam's worth is its score / length ** `length_penalty`, and its
      length that of the generated tokens, the token that ended it included.
    - `early_stopping`: true, false (default) or "never"; without effect on STOCHASTIC.
    - `seed`: integer from 0 to 2**64 - 1 for the two types that draw; random without.
    - `eos_token_ids`: the ids that end a beam, instead of the model's own; `[]` for none.
    - `stop_tokens`: list of sequences of ids, default `[]`. A beam that contains one goes no further, yet keeps its
      place among the active ones; the search is over when all active beams have ended. Where any of several ids is to
      stop, each is a separate sequence.
    - `bad_word_tokens`: list of sequences of ids that never come in the answer, default `[]`.
    - `no_repeat_ngram`: integer, default 1 (off): no n-gram twice in prompt and answer.

    From vLLM's fields: `max_tokens` (default 16), `min_tokens` (neither eos nor a stop before), `n` (the number of
    beams to return, the best first; default 1, at most `width`), `logprobs`, the three penalties, `temperature` (above
    0 for the types that draw; DETERMINISTIC ranks the same at any), `top_k` and `top_p` (only for the types that draw),
    and what shapes the prompt and the text (`add_special_tokens`, `truncate_prompt_tokens`, `skip_special_tokens`,
    `return_token_ids`, ...). Any other field is rejected unless it has its default, `stream` among them. NAIVE_SAMPLING
    and STOCHASTIC without `top_k` read the whole vocabulary in every step, which is ten times slower.

`replace_embeddings`: `{"indices": [int], "values": [float]}`
    The prompt's tokens at `indices` (from 0, each once) get embeddings of the client's: `values` holds hidden_size
    numbers for each index, in the order of `indices`. The engine must run with `enable_prompt_embeds`, as
    `deployments.llm` has it do.

The answer
==========
That of `/v1/completions`, by the same code: with `stream: false` a `CompletionResponse`, with `stream: true` events
`data: {...}` of one choice each and `data: [DONE]`. `token_ids` needs `return_token_ids: true`; they include the token
that ended a choice, which `text` does not. `usage.prompt_tokens` counts the prompt once. A disconnect stops the
engine.

A beam's choice has one key more: `beam_score`, its value. Its `finish_reason` is "length", or "stop" with
`stop_reason` null for the tokenizer's eos, otherwise the id that ended it: another of the eos ids, or the last one of a
sequence of `stop_tokens`, all of which `text` leaves out. `logprobs` are the model's own, before penalties and
temperature; `usage.completion_tokens` counts the choices that are returned.

Invalid requests are answered with 400 and vLLM's error object, whose `param` names the field (`beam.width`).
"""

from copy import copy
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from vllm.entrypoints.openai.completion.protocol import CompletionResponse
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse
from vllm.entrypoints.serve.utils.api_utils import load_aware_call, validate_json_request, with_cancellation

from app.internal_api import EXTENDED_PATH
from deployments.engine.completions.beams import (
    BeamSearchEngine,
    EmbeddingsEngine,
    ExtendedCompletionRequest,
    SeededEngine,
)


def add_completions(app: FastAPI) -> None:
    """Adds the route to vLLM's application `app`, whose state holds its completion server once it runs."""
    app.add_api_route(
        EXTENDED_PATH,
        with_cancellation(load_aware_call(complete)),
        methods=["POST"],
        dependencies=[Depends(validate_json_request)],
        include_in_schema=False,
        response_model=None,
    )


async def complete(request: ExtendedCompletionRequest, raw_request: Request) -> Response:
    """Serves the request with vLLM's completion server and a wrapped engine."""
    server: OpenAIServingCompletion | None = getattr(raw_request.app.state, "openai_serving_completion", None)
    if server is None:
        missing = ErrorInfo(message="The model does not support completions", type="NotFoundError", code=404)
        return JSONResponse(ErrorResponse(error=missing).model_dump(), status_code=missing.code)
    engine = _engine(server.engine_client, request)
    server = copy(server)
    server.engine_client = engine
    answer = await server.create_completion(request, raw_request)
    if isinstance(answer, ErrorResponse):
        return JSONResponse(answer.model_dump(), status_code=answer.error.code)
    if not isinstance(answer, CompletionResponse):
        return StreamingResponse(answer, media_type="text/event-stream")
    if isinstance(engine, BeamSearchEngine):
        for choice, score in zip(answer.choices, engine.scores, strict=True):
            choice.beam_score = score
    return JSONResponse(answer.model_dump())


def _engine(engine: Any, request: ExtendedCompletionRequest) -> Any:
    """vLLM's engine in the wrappers that the request needs."""
    if (replaced := request.replace_embeddings) is not None:
        engine = EmbeddingsEngine(engine, replaced.indices, replaced.values)
    if request.seeds is not None:
        return SeededEngine(engine, request.seeds)
    if request.beam is not None:
        return BeamSearchEngine(engine, request.beam, request.n)
    return engine
