"""The router's lists of vLLM's field names match the installed vLLM."""

import json
from typing import get_args

import pytest
from pydantic import BaseModel
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingChatInputRequest, EmbeddingCompletionRequest
from vllm.entrypoints.pooling.pooling.protocol import PoolingChatRequest, PoolingCompletionRequest
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest, TokenizeCompletionRequest

from app.dialects.anthropic import fields as anthropic
from app.dialects.openai import vllm_fields as openai
from app.dialects.spelling import request_object
from tests.support.clients.request_types import samples

pytestmark = pytest.mark.real


def names(*forms: type[BaseModel]) -> set[str]:
    return {name for form in forms for name in form.model_fields}


def test_the_names_of_vllms_fields_are_current() -> None:
    assert names(ChatCompletionRequest) == openai.ENGINE_CHAT
    assert names(CompletionRequest) == openai.ENGINE_COMPLETIONS
    assert names(ResponsesRequest) == openai.ENGINE_RESPONSES
    assert names(EmbeddingChatInputRequest, EmbeddingCompletionRequest) == openai.ENGINE_EMBEDDINGS
    assert names(PoolingCompletionRequest, PoolingChatRequest) | {"input"} == openai.ENGINE_POOLING
    assert names(RerankRequest) == openai.ENGINE_RERANK
    assert names(*get_args(ScoreRequest)) == openai.ENGINE_SCORE
    assert names(AnthropicMessagesRequest) == anthropic.ENGINE
    assert names(AnthropicCountTokensRequest) == anthropic.ENGINE_COUNT
    assert names(TokenizeChatRequest, TokenizeCompletionRequest) == openai.ENGINE_TOKENIZE


@pytest.mark.parametrize(
    "form", [AnthropicMessagesRequest, ChatCompletionRequest, ResponsesRequest, TokenizeChatRequest]
)
def test_no_field_of_vllms_types_is_a_misspelling(form: type[BaseModel]) -> None:
    for body in samples(form):
        request_object(json.dumps(body).encode())
