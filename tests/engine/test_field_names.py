"""The router's lists of vLLM's field names match the installed vLLM."""

import json
import subprocess
import sys

import pytest

from app.dialects.anthropic.fields import ENGINE as anthropic_ENGINE
from app.dialects.anthropic.fields import ENGINE_COUNT as anthropic_ENGINE_COUNT
from app.dialects.openai.vllm_fields import ENGINE_CHAT as openai_fields_ENGINE_CHAT
from app.dialects.openai.vllm_fields import ENGINE_COMPLETIONS as openai_fields_ENGINE_COMPLETIONS
from app.dialects.openai.vllm_fields import ENGINE_EMBEDDINGS as openai_fields_ENGINE_EMBEDDINGS
from app.dialects.openai.vllm_fields import ENGINE_RERANK as openai_fields_ENGINE_RERANK
from app.dialects.openai.vllm_fields import ENGINE_RESPONSES as openai_fields_ENGINE_RESPONSES
from app.dialects.openai.vllm_fields import ENGINE_SCORE as openai_fields_ENGINE_SCORE
from app.dialects.openai.vllm_fields import ENGINE_TOKENIZE as openai_fields_ENGINE_TOKENIZE

pytestmark = pytest.mark.real

# In a separate process: importing vLLM takes seconds and emits warnings.
READ = """
import json
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest, TokenizeCompletionRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingChatInputRequest, EmbeddingCompletionRequest
from typing import get_args
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
print(json.dumps({
    "chat": sorted(ChatCompletionRequest.model_fields),
    "completions": sorted(CompletionRequest.model_fields),
    "responses": sorted(ResponsesRequest.model_fields),
    "embeddings": sorted({*EmbeddingChatInputRequest.model_fields, *EmbeddingCompletionRequest.model_fields}),
    "rerank": sorted(RerankRequest.model_fields),
    "score": sorted({name for form in get_args(ScoreRequest) for name in form.model_fields}),
    "messages": sorted(AnthropicMessagesRequest.model_fields),
    "count_tokens": sorted(AnthropicCountTokensRequest.model_fields),
    "tokenize": sorted({*TokenizeChatRequest.model_fields, *TokenizeCompletionRequest.model_fields}),
}))
"""


def test_the_names_of_vllms_fields_are_current() -> None:
    output = subprocess.run(
        [sys.executable, "-c", READ], check=True, capture_output=True, text=True, timeout=1200
    ).stdout
    assert json.loads(output.splitlines()[-1]) == {
        "chat": sorted(openai_fields_ENGINE_CHAT),
        "completions": sorted(openai_fields_ENGINE_COMPLETIONS),
        "responses": sorted(openai_fields_ENGINE_RESPONSES),
        "embeddings": sorted(openai_fields_ENGINE_EMBEDDINGS),
        "rerank": sorted(openai_fields_ENGINE_RERANK),
        "score": sorted(openai_fields_ENGINE_SCORE),
        "messages": sorted(anthropic_ENGINE),
        "count_tokens": sorted(anthropic_ENGINE_COUNT),
        "tokenize": sorted(openai_fields_ENGINE_TOKENIZE),
    }
