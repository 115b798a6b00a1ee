"""A model application's card, as the router reads it."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from transformers import PreTrainedTokenizerFast

from app.engine.model import Model
from app.internal_api import CONTINUES, MODEL_PATH
from deployments.engine.logits.registry import PROCESSORS
from deployments.engine.model_info import add_model_card
from tests.support.clients.samples import EOS, tokenizer


def application(logits_processors: Any, *, continues: bool = True) -> FastAPI:
    """The part of vLLM's application that the card reads."""
    config = SimpleNamespace(
        max_model_len=100,
        logprobs_mode="raw_logits",
        logits_processors=logits_processors,
        get_hidden_size=lambda: 8,
        get_vocab_size=lambda: 330,
        hf_config=SimpleNamespace(id2label={1: "sad", 0: "glad"}),
        try_get_generation_config=lambda: {"eos_token_id": [0, 7]},
    )
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), eos_token=EOS)
    app = FastAPI()
    app.state.engine_client = SimpleNamespace(model_config=config, get_tokenizer=lambda: made)
    add_model_card(app, MODEL_PATH, continues=continues)
    return app


async def answer(app: FastAPI, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as client:
        return await client.get(MODEL_PATH, headers=headers)


@pytest.mark.parametrize(
    ("logits_processors", "heeded"),
    [
        (list(PROCESSORS), {key for keys in PROCESSORS.values() for key in keys}),
        ([], set()),
        (None, set()),
        (["some.other:Processor"], set()),
    ],
)
async def test_the_card_has_everything_the_router_reads(logits_processors: Any, heeded: set[str]) -> None:
    model = Model.read((await answer(application(logits_processors))).content)
    assert (model.processors, model.is_extended, model.gives_logits) == (frozenset(heeded), True, True)
    assert (model.eos_ids, model.max_len, model.hidden_size, model.vocab_size) == (frozenset({0, 7}), 100, 8, 330)
    assert list(model.labels) == ["glad", "sad"]
    assert model.encode("hello") == tokenizer().encode("hello").ids


@pytest.mark.parametrize("continues", [True, False])
async def test_the_card_says_whether_streams_are_continued(continues: bool) -> None:
    assert (await answer(application([], continues=continues))).json()[CONTINUES] is continues


async def test_a_known_etag_gets_a_304() -> None:
    app = application([])
    shown = await answer(app)
    again = await answer(app, **{"if-none-match": shown.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
