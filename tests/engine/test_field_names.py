"""The router's lists of vLLM's field names match the installed vLLM."""

import json
from typing import Any, get_args

import pytest
from anthropic.types.beta import (
    BetaAssistantMessageParam,
    BetaImageBlockParam,
    BetaOutputConfigParam,
    BetaRedactedThinkingBlockParam,
    BetaSystemMessageParam,
    BetaTextBlockParam,
    BetaThinkingBlockParam,
    BetaToolChoiceParam,
    BetaToolParam,
    BetaToolReferenceBlockParam,
    BetaToolResultBlockParam,
    BetaToolUseBlockParam,
    BetaUserMessageParam,
)
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionStreamOptionsParam
from openai.types.shared_params import FunctionDefinition, ResponseFormatJSONSchema
from openai.types.shared_params.response_format_json_schema import JSONSchema
from pydantic import BaseModel
from vllm.entrypoints.anthropic.protocol import (
    AnthropicContentBlock,
    AnthropicCountTokensRequest,
    AnthropicMessage,
    AnthropicMessagesRequest,
    AnthropicMessagesResponse,
    AnthropicOutputConfig,
    AnthropicStreamEvent,
    AnthropicTool,
    AnthropicToolChoice,
)
from vllm.entrypoints.generate.base.protocol import FunctionDefinition as EngineFunctionDefinition
from vllm.entrypoints.generate.base.protocol import JsonSchemaResponseFormat, ResponseFormat, StreamOptions
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
    ChatCompletionToolsParam,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest, CompletionResponse, CompletionStreamResponse
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest, ResponsesResponse
from vllm.entrypoints.pooling.classify.protocol import ClassificationResponse
from vllm.entrypoints.pooling.embed.protocol import (
    EmbeddingChatInputRequest,
    EmbeddingCompletionRequest,
    EmbeddingResponse,
)
from vllm.entrypoints.pooling.pooling.protocol import PoolingChatRequest, PoolingCompletionRequest, PoolingResponse
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, RerankResponse, ScoreRequest, ScoreResponse
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
    TokenizeResponse,
)

from app.dialects.anthropic import fields as anthropic
from app.dialects.bodies import IDLE
from app.dialects.openai import fields as openai
from app.engine.answers import JSON, EventCheck, checked_answer
from app.sse import encode
from tests.support.clients.request_types import fields_of, is_misspelt, samples

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


CHOICE = {"index": 0, "finish_reason": "stop"}
VECTOR = {"index": 0, "embedding": [0.5], "data": [0.5], "probs": [0.5], "score": 0.5}


@pytest.mark.parametrize(
    ("path", "form", "valid"),
    [
        ("/v1/chat/completions", ChatCompletionResponse, {"choices": [{**CHOICE, "message": {}}]}),
        ("/v1/completions", CompletionResponse, {"choices": [{**CHOICE, "text": ""}]}),
        ("/v1/responses", ResponsesResponse, {"status": "completed", "output": []}),
        ("/v1/messages", AnthropicMessagesResponse, {"content": []}),
        ("/v1/embeddings", EmbeddingResponse, {"data": [VECTOR]}),
        ("/pooling", PoolingResponse, {"data": [VECTOR]}),
        ("/classify", ClassificationResponse, {"data": [VECTOR]}),
        ("/score", ScoreResponse, {"data": [VECTOR]}),
        ("/v1/rerank", RerankResponse, {"results": []}),
        ("/tokenize", TokenizeResponse, {"tokens": []}),
        ("/detokenize", DetokenizeResponse, {"prompt": ""}),
    ],
)
def test_every_member_of_vllms_answers_is_known(path: str, form: type[BaseModel], valid: dict[str, Any]) -> None:
    answer = json.dumps({**dict.fromkeys(form.model_fields), **valid}).encode()
    assert checked_answer(path, answer, JSON) == answer


@pytest.mark.parametrize(
    ("path", "form", "valid"),
    [
        ("/v1/chat/completions", ChatCompletionStreamResponse, {"choices": []}),
        ("/v1/completions", CompletionStreamResponse, {"choices": []}),
        ("/v1/messages", AnthropicStreamEvent, {"type": "ping"}),
    ],
)
def test_every_member_of_vllms_events_is_known(path: str, form: type[BaseModel], valid: dict[str, Any]) -> None:
    frame = encode(json.dumps({**dict.fromkeys(set(form.model_fields) - {"error"}), **valid}))
    check = EventCheck(path)
    assert check.valid(frame)
    assert check.own(frame) == frame


@pytest.mark.parametrize(
    "form", [AnthropicMessagesRequest, ChatCompletionRequest, ResponsesRequest, TokenizeChatRequest]
)
def test_no_field_of_vllms_types_is_a_misspelling(form: type[BaseModel]) -> None:
    assert not any(map(is_misspelt, samples(form)))


@pytest.mark.parametrize(
    ("kind", "vendors", "engines", "done_here"),
    [
        (
            "message",
            [BetaUserMessageParam, BetaAssistantMessageParam, BetaSystemMessageParam],
            AnthropicMessage,
            "clear_at",
        ),
        ("tool", [BetaToolParam], AnthropicTool, "type"),
        (
            "part",
            [
                BetaImageBlockParam,
                BetaRedactedThinkingBlockParam,
                BetaTextBlockParam,
                BetaThinkingBlockParam,
                BetaToolReferenceBlockParam,
                BetaToolResultBlockParam,
                BetaToolUseBlockParam,
            ],
            AnthropicContentBlock,
            "",
        ),
        ("choice", get_args(BetaToolChoiceParam), AnthropicToolChoice, ""),
        ("output_config", [BetaOutputConfigParam], AnthropicOutputConfig, ""),
        ("tool", [ChatCompletionFunctionToolParam], ChatCompletionToolsParam, ""),
        ("function", [FunctionDefinition], EngineFunctionDefinition, ""),
        ("format", [ResponseFormatJSONSchema], ResponseFormat, ""),
        ("json_schema", [JSONSchema], JsonSchemaResponseFormat, ""),
        ("stream_options", [ChatCompletionStreamOptionsParam], StreamOptions, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_nested_field_of_the_vendors_is_vllms_or_listed_as_without_effect(
    kind: str, vendors: list[Any], engines: type[BaseModel], done_here: str
) -> None:
    vendors_names = {name for form in vendors for name in fields_of(form)}
    assert vendors_names - set(IDLE.get(kind, ())) - {done_here} <= fields_of(engines).keys()
