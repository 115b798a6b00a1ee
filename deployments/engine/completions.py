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

Beam search on vLLM
===================
One request for one token per live beam and step. All of a beam but its last block of tokens is in the engine's prefix
cache, so that a step costs little more than one token per beam. Most searches need some dozens of log-probabilities.
One that draws from the whole vocabulary needs all of them, and unpacking these blocks the server's event loop for
milliseconds each: it advances few beams at a time, so that other requests are served in between.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from copy import copy
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator
from vllm import CompletionOutput, RequestOutput, SamplingParams
from vllm.entrypoints.openai.completion.protocol import CompletionRequest, CompletionResponse
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse
from vllm.entrypoints.serve.utils.api_utils import load_aware_call, validate_json_request, with_cancellation
from vllm.exceptions import GenerationError, VLLMValidationError
from vllm.inputs import embeds_input, tokens_input
from vllm.logprobs import Logprob
from vllm.sampling_params import RequestOutputKind
from vllm.utils.async_utils import merge_async_iterators
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from app.internal_api import EXTENDED_PATH, LARGEST_SEED, MAX_BEAMS, MAX_SEEDS, to_int64_seed
from deployments.engine.beam_search import Beam, FinishReason, Kind, NextToken, Search, Settings, start
from deployments.engine.model_info import eos_token_ids

# The server calls `generate` with a rendered prompt and reads other attributes of the engine. A wrapper rejects
# unsupported parameters at once, before the server has started its response.

Outputs = AsyncGenerator[RequestOutput, None]


class WrappedEngine:
    """A transparent wrapper: every other attribute is the engine's own."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, prompt: Any, params: SamplingParams, request_id: str, **options: Any) -> Outputs:
        """Like `AsyncLLM.generate`."""
        outputs: Outputs = self._engine.generate(prompt, params, request_id, **options)
        return outputs


class SeededEngine(WrappedEngine):
    """One choice per seed, each a separate engine request. Closing the generator ends them all."""

    def __init__(self, engine: Any, seeds: Sequence[int]) -> None:
        super().__init__(engine)
        self._seeds = seeds

    def generate(self, prompt: Any, params: SamplingParams, request_id: str, **options: Any) -> Outputs:
        choices = [
            self._engine.generate(prompt, _with_seed(params, seed), f"{request_id}-{index}", **options)
            for index, seed in enumerate(self._seeds)
        ]
        merged = _merged(choices)
        return _joined(merged) if params.output_kind is RequestOutputKind.FINAL_ONLY else merged


class EmbeddingsEngine(WrappedEngine):
    """Replaces the embeddings of some of the prompt's tokens.

    `values` has hidden_size numbers for each of `indices`, which count the prompt's tokens from 0.
    """

    def __init__(self, engine: Any, indices: Sequence[int], values: Sequence[float]) -> None:
        super().__init__(engine)
        width = engine.model_config.get_hidden_size()
        if not engine.model_config.enable_prompt_embeds:
            raise VLLMValidationError(
                "replace_embeddings needs the engine argument enable_prompt_embeds", parameter="replace_embeddings"
            )
        if len(values) != len(indices) * width:
            raise VLLMValidationError(
                f"replace_embeddings.values must hold {width} numbers for each of {len(indices)} indices, "
                f"{len(indices) * width} in all, not {len(values)}",
                parameter="replace_embeddings.values",
            )
        self._indices = list(indices)
        self._rows = torch.tensor(values, dtype=engine.model_config.dtype).reshape(len(indices), width)

    def generate(self, prompt: Any, params: SamplingParams, request_id: str, **options: Any) -> Outputs:
        return super().generate(self._with_replacements(prompt), params, request_id, **options)

    def _with_replacements(self, prompt: Any) -> Any:
        require_tokens(prompt, "replace_embeddings")
        ids = prompt["prompt_token_ids"]
        if (highest := max(self._indices)) >= len(ids):
            raise VLLMValidationError(
                f"replace_embeddings.indices holds {highest}, but the prompt has {len(ids)} tokens",
                parameter="replace_embeddings.indices",
            )
        # The rows of kept tokens are part of the prefix cache's key, so they must differ from anything that a client
        # can send: NaN.
        rows = torch.full((len(ids), self._rows.shape[1]), torch.nan, dtype=self._rows.dtype)
        rows[self._indices] = self._rows
        is_token = torch.ones(len(ids), dtype=torch.bool)
        is_token[self._indices] = False
        return embeds_input(
            rows, prompt_token_ids=ids, is_token_ids=is_token.tolist(), cache_salt=prompt.get("cache_salt")
        )


def require_tokens(prompt: Any, parameter: str) -> None:
    """Raises VLLMValidationError for a prompt that is more than token ids."""
    if prompt["type"] != "token":
        raise VLLMValidationError(f"{parameter} needs a prompt of token ids only", parameter=parameter)


def _with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    params = params.clone()
    params.seed = to_int64_seed(seed)
    return params


async def _merged(choices: Sequence[Outputs]) -> Outputs:
    async for index, output in merge_async_iterators(*choices):
        for choice in output.outputs:
            choice.index = index
        yield output


async def _joined(outputs: Outputs) -> Outputs:
    """One output with all choices."""
    choices = {choice.index: (output, choice) async for output in outputs for choice in output.outputs}
    joined = choices[0][0]
    joined.outputs = [choices[index][1] for index in sorted(choices)]
    yield joined


TokenId = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
TokenSequence = Annotated[list[TokenId], Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED, strict=True)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BeamSearch(_Part):
    """A beam search; `deployments.engine.beam_search` documents each field. Sequences are token ids."""

    width: int = Field(ge=1, le=MAX_BEAMS, strict=True)
    type: Kind = Kind.DETERMINISTIC
    length_penalty: float = Field(default=1.0, ge=-10, le=10)
    early_stopping: Annotated[bool, Field(strict=True)] | Literal["never"] = False
    seed: Seed | None = None
    eos_token_ids: list[TokenId] | None = None
    stop_tokens: list[TokenSequence] = []
    bad_word_tokens: list[TokenSequence] = []
    no_repeat_ngram: int = Field(default=1, ge=1, strict=True)


class ReplacedEmbeddings(_Part):
    """Embeddings for some tokens of the prompt. `values` holds one after the other: hidden_size numbers per index."""

    indices: list[TokenId] = Field(min_length=1)
    values: list[Finite]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.indices)) < len(self.indices):
            raise _rejected("replace_embeddings.indices", "must not hold an index twice")
        return self


_WITH_BEAM = frozenset(
    "add_special_tokens beam cache_salt frequency_penalty logprobs max_tokens min_tokens model n presence_penalty "
    "priority prompt repetition_penalty replace_embeddings request_id return_token_ids return_tokens_as_token_ids "
    "session_id skip_special_tokens spaces_between_special_tokens temperature top_k top_p truncate_prompt_tokens "
    "truncation_side user".split()
)


class ExtendedCompletionRequest(CompletionRequest):  # type: ignore[misc]  # vLLM is not followed
    """Every field of vLLM's completions, for one prompt; unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")

    prompt: str | list[TokenId]
    n: int = Field(default=1, ge=1)
    prompt_embeds: None = None
    use_beam_search: Literal[False] = False
    seeds: list[Seed] | None = Field(default=None, min_length=1, max_length=MAX_SEEDS)
    beam: BeamSearch | None = None
    replace_embeddings: ReplacedEmbeddings | None = None

    @model_validator(mode="after")
    def _seeds_are_choices(self) -> Self:
        if self.seeds is None:
            return self
        if self.seed is not None:
            raise _rejected("seed", "cannot be given together with seeds")
        if self.n not in (1, len(self.seeds)):
            raise _rejected("n", f"must be the number of seeds, {len(self.seeds)}")
        self.n = len(self.seeds)
        return self

    @model_validator(mode="after")
    def _fits_a_beam_search(self) -> Self:
        if self.beam is None:
            return self
        for name in sorted(self.model_fields_set - _WITH_BEAM):
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            if getattr(self, name) not in (None, default):
                raise _rejected(name, "cannot be given together with beam")
        if self.n > self.beam.width:
            raise _rejected("n", f"must not exceed beam.width, {self.beam.width}")
        if self.beam.type is Kind.DETERMINISTIC:
            for name in ("top_k", "top_p"):
                if getattr(self, name) is not None:
                    raise _rejected(name, "cannot be given where beam.type is DETERMINISTIC")
        elif self.temperature == 0:
            raise _rejected("temperature", f"must be greater than 0 where beam.type is {self.beam.type}")
        return self

    def to_sampling_params(self, max_tokens: int, default_sampling_params: dict[str, Any] | None = None) -> Any:
        """vLLM's parameters. Separate engine requests do not count as `n`, which greedy sampling limits to 1."""
        several = self.seeds is not None or self.beam is not None
        request = self.model_copy(update={"n": 1}) if several else self
        return CompletionRequest.to_sampling_params(request, max_tokens, default_sampling_params)


def _rejected(parameter: str, why: str) -> VLLMValidationError:
    return VLLMValidationError(f"{parameter} {why}", parameter=parameter)


MAX_FULL_VOCABULARY = 2
"""The most beams that request the log-probabilities of the whole vocabulary at a time."""


class BeamSearchEngine(WrappedEngine):
    """Answers a prompt with the best `n` beams of a search; `scores` are their values, once the search is over."""

    def __init__(self, engine: Any, beam: BeamSearch, n: int) -> None:
        super().__init__(engine)
        self.scores: Sequence[float] = ()
        self._beam = beam
        self._n = n
        self._vocabulary: int = engine.model_config.get_vocab_size()

    def generate(self, prompt: Any, params: SamplingParams, request_id: str, **options: Any) -> Outputs:
        require_tokens(prompt, "beam")
        self._check(params)
        eos = self._beam.eos_token_ids
        settings = _settings(self._beam, params, eos_token_ids(self._engine) if eos is None else eos)
        search = start(settings, prompt["prompt_token_ids"], np.random.default_rng(self._beam.seed))
        return self._answer(search, prompt, params, request_id, options)

    async def _answer(
        self, search: Search, prompt: Any, params: SamplingParams, request_id: str, options: dict[str, Any]
    ) -> Outputs:
        step = 0
        while search.live:
            await self._advance(search, prompt, f"{request_id}-{step}", options)
            step += 1
        beams = search.results()[: self._n]
        self.scores = [search.value(beam) for beam in beams]
        ids = prompt["prompt_token_ids"]
        outputs = [self._output(index, beam, ids, params) for index, beam in enumerate(beams)]
        yield RequestOutput(request_id, prompt.get("prompt"), ids, None, outputs, finished=True)

    async def _advance(self, search: Search, prompt: Any, request_id: str, options: dict[str, Any]) -> None:
        needed = [search.needed(beam) for beam in search.live]
        takes_all = None in needed
        slots = asyncio.Semaphore(MAX_FULL_VOCABULARY if takes_all else len(needed))

        async def next_token(index: int) -> NextToken:
            tokens = [*prompt["prompt_token_ids"], *search.live[index].tokens]
            count = min(needed[index] or self._vocabulary, self._vocabulary)
            extended = tokens_input(tokens, cache_salt=prompt.get("cache_salt"))
            async with slots:
                return await self._next_token(extended, count, f"{request_id}-{index}", options)

        tasks = [asyncio.ensure_future(next_token(index)) for index in range(len(needed))]
        try:
            next_tokens = await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # after a failure the others still run
                task.cancel()
        if takes_all:
            await asyncio.to_thread(search.advance, next_tokens)
        else:
            search.advance(next_tokens)

    async def _next_token(self, prompt: Any, count: int, request_id: str, options: dict[str, Any]) -> NextToken:
        params = _OneToken(
            max_tokens=1,
            temperature=0.0,
            logprobs=count,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async for output in self._engine.generate(prompt, params, request_id, **options):
            (answer,) = output.outputs
        if answer.finish_reason not in ("length", "stop"):
            raise GenerationError
        first = 1  # the sampled token comes before the likeliest, and among them again
        ids, logprobs = answer.logprobs.token_ids[first:], answer.logprobs.logprobs[first:]
        return NextToken(np.asarray(ids, dtype=np.int64), np.asarray(logprobs, dtype=np.float64))

    def _output(self, index: int, beam: Beam, prompt: Sequence[int], params: SamplingParams) -> CompletionOutput:
        stopped = beam.ending in (FinishReason.EOS, FinishReason.STOP)
        shown = beam.tokens[: len(beam.tokens) - beam.closing]
        is_usual_eos = beam.ending is FinishReason.EOS and beam.tokens[-1] == self._engine.get_tokenizer().eos_token_id
        return CompletionOutput(
            index=index,
            text=_text(self._engine.get_tokenizer(), prompt, shown, params),
            token_ids=list(beam.tokens),
            cumulative_logprob=sum(step.logprob for step in beam.steps),
            logprobs=None if params.logprobs is None else _logprobs(beam),
            finish_reason="length" if beam.ending is FinishReason.LENGTH else "stop",
            stop_reason=beam.tokens[-1] if stopped and not is_usual_eos else None,
        )

    def _check(self, params: SamplingParams) -> None:
        config = self._engine.model_config
        if config.logprobs_mode not in ("raw_logprobs", "processed_logprobs"):
            raise VLLMValidationError(
                f"beam needs an engine that returns log-probabilities, not {config.logprobs_mode}", parameter="beam"
            )
        if params.logprobs is not None and not 0 <= params.logprobs <= config.max_logprobs:
            raise VLLMValidationError(f"logprobs must be 0 to {config.max_logprobs}", parameter="logprobs")
        for name in ("eos_token_ids", "stop_tokens", "bad_word_tokens"):
            if _highest(getattr(self._beam, name) or []) >= self._vocabulary:
                raise VLLMValidationError(
                    f"beam.{name} holds a token id outside of the vocabulary of {self._vocabulary}",
                    parameter=f"beam.{name}",
                )


class _OneToken(SamplingParams):  # type: ignore[misc]  # vLLM is not followed
    """Sampling parameters without the check of `max_logprobs`, which bounds what clients may request."""

    def _validate_logprobs(self, model_config: Any) -> None:
        pass


def _settings(beam: BeamSearch, params: SamplingParams, eos: Sequence[int] | frozenset[int]) -> Settings:
    return Settings(
        width=beam.width,
        max_tokens=params.max_tokens,
        kind=beam.type,
        min_tokens=params.min_tokens,
        eos=frozenset(eos),
        stops=tuple(map(tuple, beam.stop_tokens)),
        forbidden=tuple(map(tuple, beam.bad_word_tokens)),
        no_repeat_ngram=beam.no_repeat_ngram,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        length_penalty=beam.length_penalty,
        early_stopping=beam.early_stopping,
        top_logprobs=params.logprobs,
    )


def _highest(ids: Sequence[Any]) -> int:
    return max((_highest(part) if isinstance(part, list) else part for part in ids), default=0)


def _logprobs(beam: Beam) -> list[dict[int, Logprob]]:
    """The log-probabilities in vLLM's form: a dictionary per token, the chosen token first."""
    return [
        {token: Logprob(step.logprob)} | {id: Logprob(logprob) for id, logprob in step.favourites}
        for token, step in zip(beam.tokens, beam.steps, strict=True)
    ]


def _text(tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int], params: SamplingParams) -> str:
    """The text that vLLM produces for these tokens after that prompt."""
    request = EngineCoreRequest(
        request_id="",
        prompt_token_ids=list(prompt),
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    detokenizer.update(list(tokens), stop_terminated=False)
    text: str = detokenizer.get_next_output_text(finished=True, delta=False)
    return text


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
