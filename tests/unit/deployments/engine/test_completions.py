"""The wrappers of vLLM's engine, and the request body; vLLM's own part is tested in tests/real."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from vllm import CompletionOutput, RequestOutput, SamplingParams
from vllm.exceptions import GenerationError, VLLMValidationError
from vllm.inputs import tokens_input
from vllm.logprobs import FlatLogprobs
from vllm.sampling_params import RequestOutputKind

from app.internal_api import to_int64_seed
from deployments.engine.completions import (
    MAX_FULL_VOCABULARY,
    BeamSearch,
    BeamSearchEngine,
    EmbeddingsEngine,
    ExtendedCompletionRequest,
    SeededEngine,
    add_completions,
)
from deployments.engine.model_info import eos_token_ids
from tests.support.engine.beam_answers import made_up_model

VOCABULARY, WIDTH, EOS = 50, 3, 1
PROMPT = tokens_input([7, 8, 9], cache_salt="salt")


@dataclass
class ModelConfig:
    enable_prompt_embeds: bool = True
    dtype: torch.dtype = torch.float32
    logprobs_mode: str = "raw_logprobs"
    max_logprobs: int = 64

    def get_hidden_size(self) -> int:
        return WIDTH

    def get_vocab_size(self) -> int:
        return VOCABULARY

    def try_get_generation_config(self) -> dict[str, Any]:
        return {"eos_token_id": [EOS, 4]}


def tokenizer() -> Any:
    """A tokenizer whose tokens are the words w0, w1, ..."""
    words = {f"w{id}": id for id in range(VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words)), eos_token=f"w{EOS}")


@dataclass
class FakeEngine:
    """Records the requests; generates `tokens`, one after the other, or what a simulated model predicts."""

    tokens: int = 3
    model_config: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: Any = field(default_factory=tokenizer)
    calls: list[tuple[Any, SamplingParams, str, dict[str, Any]]] = field(default_factory=list)
    running: int = 0
    most: int = 0
    fails: bool = False

    def get_tokenizer(self) -> Any:
        return self.tokenizer

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        self.calls.append((prompt, params, request_id, options))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if params.logprobs is not None:
                await asyncio.sleep(0)
                yield self._output(
                    prompt, [0], "error" if self.fails else "length", self._said(prompt, params.logprobs)
                )
                return
            said = []
            for place in range(self.tokens):
                await asyncio.sleep(0)
                said.append((params.seed or 0) + place)
                finish = "length" if place + 1 == self.tokens else None
                if params.output_kind is RequestOutputKind.DELTA:
                    yield self._output(prompt, said[-1:], finish)
            if params.output_kind is RequestOutputKind.FINAL_ONLY:
                yield self._output(prompt, said, "length")
        finally:
            self.running -= 1

    def _output(self, prompt: Any, tokens: list[int], finish: str | None, logprobs: Any = None) -> RequestOutput:
        choice = CompletionOutput(0, "", tokens, None, logprobs, finish_reason=finish)
        return RequestOutput("", None, prompt["prompt_token_ids"], None, [choice], finish is not None)

    def _said(self, prompt: Any, count: int) -> FlatLogprobs:
        logprobs = made_up_model(VOCABULARY, 0)(prompt["prompt_token_ids"][3:])
        best = np.argsort(-logprobs)[:count].tolist()
        flat = FlatLogprobs()
        flat.append_fast([best[0], *best], [logprobs[id] for id in [best[0], *best]], [None] * 99, [None] * 99)
        return flat


def sampled(kind: RequestOutputKind, **params: Any) -> SamplingParams:
    return SamplingParams(output_kind=kind, **params)


async def test_each_seed_has_a_request_of_its_own_and_the_streams_are_one() -> None:
    engine = FakeEngine()
    seeded = SeededEngine(engine, [100, 200])
    outputs = [out async for out in seeded.generate(PROMPT, sampled(RequestOutputKind.DELTA), "id", priority=3)]
    said: dict[int, list[int]] = {0: [], 1: []}
    for output in outputs:
        (choice,) = output.outputs
        said[choice.index] += choice.token_ids
    assert said == {0: [100, 101, 102], 1: [200, 201, 202]}
    assert [choice.index for out in outputs for choice in out.outputs] not in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])
    assert [(params.seed, params.n, id, options) for _, params, id, options in engine.calls] == [
        (100, 1, "id-0", {"priority": 3}),
        (200, 1, "id-1", {"priority": 3}),
    ]


@pytest.mark.parametrize("count", [1, 3])
async def test_an_unstreamed_answer_holds_all_choices(count: int) -> None:
    seeded = SeededEngine(FakeEngine(), [10 * i for i in range(count)])
    (output,) = [out async for out in seeded.generate(PROMPT, sampled(RequestOutputKind.FINAL_ONLY), "id")]
    assert [(choice.index, choice.token_ids[0]) for choice in output.outputs] == [(i, 10 * i) for i in range(count)]


async def test_closing_the_generator_ends_all_choices() -> None:
    engine = FakeEngine(tokens=1000)
    outputs = SeededEngine(engine, [1, 2, 3]).generate(PROMPT, sampled(RequestOutputKind.DELTA), "id")
    await anext(outputs)
    assert engine.running == 3
    await outputs.aclose()
    await asyncio.sleep(0.01)
    assert engine.running == 0


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
def test_every_seed_is_one_that_vllm_takes(seed: int) -> None:
    assert to_int64_seed(seed) in range(-(2**63), 2**63)
    assert SamplingParams(seed=to_int64_seed(seed)).seed == to_int64_seed(seed)
    assert to_int64_seed(seed) == seed or seed >= 2**63


async def test_embeddings_take_the_places_of_tokens() -> None:
    engine = FakeEngine()
    replaced = EmbeddingsEngine(engine, [2, 0], [1, 2, 3, 4, 5, 6])
    async for _ in replaced.generate(PROMPT, sampled(RequestOutputKind.FINAL_ONLY), "id"):
        pass
    ((prompt, *_),) = engine.calls
    assert (prompt["type"], prompt["prompt_token_ids"], prompt["cache_salt"]) == ("embeds", [7, 8, 9], "salt")
    assert prompt["is_token_ids"] == [False, True, False]
    rows = prompt["prompt_embeds"]
    assert rows[[0, 2]].tolist() == [[4, 5, 6], [1, 2, 3]]
    assert torch.isnan(rows[1]).all(), "a row that no client can send"


@pytest.mark.parametrize(
    ("indices", "values", "enabled", "field"),
    [
        pytest.param([3], [1.0] * WIDTH, True, "replace_embeddings.indices", id="behind the prompt"),
        pytest.param([0, 1], [1.0] * WIDTH, True, "replace_embeddings.values", id="too few numbers"),
        pytest.param([0], [1.0] * WIDTH, False, "replace_embeddings", id="not enabled"),
    ],
)
def test_embeddings_of_the_wrong_shape_are_rejected_at_once(
    indices: list[int], values: list[float], enabled: bool, field: str
) -> None:
    engine = FakeEngine(model_config=ModelConfig(enable_prompt_embeds=enabled))
    with pytest.raises(VLLMValidationError) as refusal:
        EmbeddingsEngine(engine, indices, values).generate(PROMPT, sampled(RequestOutputKind.DELTA), "id")
    assert refusal.value.parameter == field


def beams(engine: FakeEngine, n: int = 1, **fields: Any) -> BeamSearchEngine:
    return BeamSearchEngine(engine, BeamSearch.model_validate({"width": 3, **fields}), n)


async def first(searching: BeamSearchEngine, **params: Any) -> RequestOutput:
    calls = SamplingParams(**{"max_tokens": 4, **params})
    return await anext(searching.generate(PROMPT, calls, "id", priority=3))


async def test_a_search_asks_for_one_token_per_live_beam_and_step() -> None:
    engine = FakeEngine()
    output = await first(beams(engine, eos_token_ids=[]))
    assert output.prompt_token_ids == [7, 8, 9]
    assert [len(prompt["prompt_token_ids"]) for prompt, *_ in engine.calls] == [3, 4, 4, 4, 5, 5, 5, 6, 6, 6]
    ids = [id for _, _, id, _ in engine.calls]
    assert len(set(ids)) == len(ids)
    for prompt, params, _, options in engine.calls:
        assert (params.max_tokens, params.logprobs, params.flat_logprobs) == (1, 6, True)
        assert (prompt["cache_salt"], options) == ("salt", {"priority": 3})


async def test_the_answers_are_the_best_beams_with_their_scores() -> None:
    searching = beams(FakeEngine(), n=2, eos_token_ids=[])
    output = await first(searching, logprobs=2)
    assert [choice.index for choice in output.outputs] == [0, 1]
    assert list(searching.scores) == sorted(searching.scores, reverse=True)
    for choice, score in zip(output.outputs, searching.scores, strict=True):
        assert (len(choice.token_ids), choice.finish_reason, choice.stop_reason) == (4, "length", None)
        assert score == pytest.approx(choice.cumulative_logprob / 4)
        assert [next(iter(step)) for step in choice.logprobs] == choice.token_ids
        assert {len(step) for step in choice.logprobs} <= {2, 3}


@pytest.mark.parametrize(
    ("fields", "closing", "has_reason"),
    [
        pytest.param({"eos_token_ids": [EOS, *range(2, 50)]}, 1, True, id="an eos of the client's"),
        pytest.param({"eos_token_ids": [], "stop_tokens": [[id] for id in range(50)]}, 1, True, id="a stop"),
        pytest.param({"eos_token_ids": [], "max_tokens": 2}, 0, False, id="the length"),
    ],
)
async def test_the_text_leaves_out_the_tokens_that_ended_it(
    fields: dict[str, Any], closing: int, has_reason: bool
) -> None:
    length = fields.pop("max_tokens", 9)
    (choice,) = (await first(beams(FakeEngine(), **fields), max_tokens=length, skip_special_tokens=False)).outputs
    shown = choice.token_ids[: len(choice.token_ids) - closing]
    assert choice.text == "".join(f" w{id}" for id in shown)
    assert choice.finish_reason == ("stop" if has_reason else "length")
    assert choice.stop_reason == (choice.token_ids[-1] if has_reason else None)


async def test_the_tokenizers_eos_is_no_stop_reason() -> None:
    engine = FakeEngine()
    everything_is_eos = beams(engine, eos_token_ids=list(range(50)))
    likeliest = (await first(everything_is_eos)).outputs[0].token_ids[-1]
    engine.tokenizer.eos_token = f"w{likeliest}"
    (choice,) = (await first(everything_is_eos)).outputs
    assert (choice.finish_reason, choice.stop_reason, choice.token_ids) == ("stop", None, [likeliest])


async def test_drawing_from_the_whole_vocabulary_asks_few_beams_at_a_time() -> None:
    engine = FakeEngine()
    await first(beams(engine, type="STOCHASTIC", eos_token_ids=[]))
    assert {params.logprobs for _, params, *_ in engine.calls} == {VOCABULARY}
    assert engine.most == MAX_FULL_VOCABULARY
    await first(beams(engine, type="STOCHASTIC", eos_token_ids=[]), top_k=5)
    assert engine.calls[-1][1].logprobs == 5
    assert engine.most == 3


async def test_the_same_seed_finds_the_same_beams() -> None:
    def found(seed: int) -> Any:
        return first(beams(FakeEngine(), type="STOCHASTIC", seed=seed))

    one, same, other = [(await found(seed)).outputs[0].token_ids for seed in (2**64 - 1, 2**64 - 1, 5)]
    assert one == same != other


async def test_a_cancelled_search_ends_its_engine_requests() -> None:
    engine = FakeEngine()
    task = asyncio.create_task(first(beams(engine), max_tokens=10_000))
    while len(engine.calls) < 20 or not engine.running:  # noqa: ASYNC110  it depends on event loop turns, not on time
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.01)
    assert engine.running == 0
    calls = len(engine.calls)
    await asyncio.sleep(0.01)
    assert len(engine.calls) == calls


async def test_an_engine_that_fails_fails_the_search() -> None:
    with pytest.raises(GenerationError):
        await first(beams(FakeEngine(fails=True)))


@pytest.mark.parametrize(
    ("fields", "params", "config", "field"),
    [
        pytest.param({"eos_token_ids": [50]}, {}, {}, "beam.eos_token_ids", id="eos"),
        pytest.param({"stop_tokens": [[1], [2, 50]]}, {}, {}, "beam.stop_tokens", id="stop"),
        pytest.param({"bad_word_tokens": [[99]]}, {}, {}, "beam.bad_word_tokens", id="bad words"),
        pytest.param({}, {"logprobs": 65}, {}, "logprobs", id="too many"),
        pytest.param({}, {"logprobs": -1}, {}, "logprobs", id="all"),
        pytest.param({}, {}, {"logprobs_mode": "raw_logits"}, "beam", id="logits"),
    ],
)
def test_unsupported_parameters_of_a_search_are_rejected_at_once(
    fields: dict[str, Any], params: dict[str, Any], config: dict[str, Any], field: str
) -> None:
    searching = beams(FakeEngine(model_config=ModelConfig(**config)), **fields)
    with pytest.raises(VLLMValidationError) as refusal:
        searching.generate(PROMPT, SamplingParams(**params), "id")
    assert refusal.value.parameter == field


def test_the_models_eos_are_the_tokenizers_and_its_authors() -> None:
    assert eos_token_ids(FakeEngine()) == {EOS, 4}


def parsed(**fields: Any) -> ExtendedCompletionRequest:
    request: ExtendedCompletionRequest = ExtendedCompletionRequest.model_validate(
        {"model": "m", "prompt": "hi", **fields}
    )
    return request


def test_seeds_are_as_many_choices_also_where_sampling_is_greedy() -> None:
    request = parsed(seeds=[1, 2], temperature=0)
    assert request.n == 2
    assert request.to_sampling_params(5).n == 1
    assert parsed(n=3).to_sampling_params(5).n == 3


BEAM = {"width": 2}
DRAWN = {"width": 2, "type": "NAIVE_SAMPLING"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        pytest.param({"seeds": [1], "seed": 2}, "seed", id="two kinds of seeds"),
        pytest.param({"seeds": [1, 2], "n": 3}, "n", id="other than the seeds"),
        pytest.param({"seeds": [1], "beam": BEAM}, "seeds", id="seeds of beams"),
        pytest.param({"beam": BEAM, "stream": True}, "stream", id="streamed beams"),
        pytest.param({"beam": BEAM, "stop": ["x"]}, "stop", id="stop strings"),
        pytest.param({"beam": BEAM, "echo": True}, "echo", id="echo"),
        pytest.param({"beam": BEAM, "min_p": 0.1}, "min_p", id="min_p"),
        pytest.param({"beam": BEAM, "vllm_xargs": {"watermark": True}}, "vllm_xargs", id="logits processors"),
        pytest.param({"beam": BEAM, "n": 3}, "n", id="more than there are"),
        pytest.param({"beam": BEAM, "top_k": 5}, "top_k", id="top_k"),
        pytest.param({"beam": BEAM, "top_p": 0.5}, "top_p", id="top_p"),
        pytest.param({"beam": DRAWN, "temperature": 0}, "temperature", id="nothing to draw"),
        pytest.param(
            {"replace_embeddings": {"indices": [1, 1], "values": []}}, "replace_embeddings.indices", id="an index twice"
        ),
    ],
)
def test_contradictory_fields_are_rejected(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(VLLMValidationError) as refusal:
        parsed(**fields)
    assert refusal.value.parameter == field
    assert str(refusal.value).startswith(field)


@pytest.mark.parametrize(
    "fields",
    [
        {"beam": BEAM, "stream": False, "stop": None, "seed": None, "temperature": 0.5, "echo": False, "n": 2},
        {"beam": {**DRAWN, "seed": 2**64 - 1, "early_stopping": "never"}, "top_k": 5, "top_p": 0.5},
        {"beam": {"width": 31, "type": "STOCHASTIC", "eos_token_ids": [], "stop_tokens": [[1]]}, "logprobs": 3},
        {"seeds": [0, 2**64 - 1], "n": 2, "stream": True, "vllm_xargs": {"watermark": True}},
        {"prompt": [1, 2], "replace_embeddings": {"indices": [1, 0], "values": [1, 2.5]}, "beam": BEAM},
    ],
)
def test_compatible_fields_are_accepted(fields: dict[str, Any]) -> None:
    assert parsed(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ["one", "two"]},
        {"prompt": [[1], [2]]},
        {"prompt": [-1]},
        {"prompt_embeds": "x"},
        {"use_beam_search": True},
        {"seeds": []},
        {"seeds": [-1]},
        {"seeds": [2**64]},
        {"seeds": [1.0]},
        {"seeds": [True]},
        {"seeds": [1] * 129},
        {"beam": {}},
        {"beam": {"width": 0}},
        {"beam": {"width": 32}},
        {"beam": {"width": 2, "type": "GREEDY"}},
        {"beam": {"width": 2, "early_stopping": 1}},
        {"beam": {"width": 2, "length_penalty": 11}},
        {"beam": {"width": 2, "length_penalty": float("nan")}},
        {"beam": {"width": 2, "stop_tokens": [[]]}},
        {"beam": {"width": 2, "bad_word_tokens": [1]}},
        {"beam": {"width": 2, "no_repeat_ngram": 0}},
        {"beam": {"width": 2, "depth": 3}},
        {"replace_embeddings": {"indices": [], "values": []}},
        {"replace_embeddings": {"indices": [-1], "values": [1]}},
        {"replace_embeddings": {"indices": [0], "values": [float("inf")]}},
        {"replace_embeddings": {"indices": [0]}},
        {"no_such_field": 1},
    ],
    ids=repr,
)
def test_other_values_are_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        parsed(**fields)


def test_a_model_without_completions_answers_404() -> None:
    app = FastAPI()
    add_completions(app)
    answer = TestClient(app).post("/switchyard/completions", json={"prompt": "hi"})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "The model does not support completions"
