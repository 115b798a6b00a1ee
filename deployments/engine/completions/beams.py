"""Beam search on vLLM: one request for one token per live beam and step.

All of a beam but its last block of tokens is in the engine's prefix cache, so that a step costs little more than one
token per beam. Most searches need some dozens of log-probabilities. One that draws from the whole vocabulary needs all
of them, and unpacking these blocks the server's event loop for milliseconds each: it advances few beams at a time, so
that other requests are served in between.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from vllm import CompletionOutput, RequestOutput, SamplingParams
from vllm.exceptions import GenerationError, VLLMValidationError
from vllm.inputs import tokens_input
from vllm.logprobs import Logprob
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from deployments.engine.beam_search import start
from deployments.engine.beam_search.scoring import NextToken
from deployments.engine.beam_search.search import Beam, FinishReason, Search
from deployments.engine.beam_search.settings import Settings
from deployments.engine.completions.engines import Engine, Outputs, require_tokens
from deployments.engine.completions.request import BeamSearch
from deployments.engine.model_info import eos_token_ids

MAX_FULL_VOCABULARY = 2
"""The most beams that request the log-probabilities of the whole vocabulary at a time."""


class BeamSearchEngine(Engine):
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
