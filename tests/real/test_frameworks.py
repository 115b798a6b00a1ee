"""The Azure classes of LangChain, both generations, and of LlamaIndex, against the real application."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.conftest import Application
from tests.support.clients.conversations import QUESTION, answers

# The older classes warn that they are deprecated; pydantic and asyncio emit warnings about both frameworks too.
pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """These classes cannot be closed. Their connections are collected with them now, not in a stricter test."""
    yield
    gc.collect()


def test_the_chat_class_on_azures_sdk(application: Application) -> None:
    from langchain_azure_ai.chat_models.inference import AzureAIChatCompletionsModel

    for endpoint in (application.url, f"{application.url}/azure"):
        # The smallest temperature that the class sends: it leaves 0 out of the request.
        model: Any = AzureAIChatCompletionsModel(
            endpoint=endpoint, credential="unused", model="chat", temperature=0.001, max_tokens=24
        )
        answer = model.invoke(QUESTION)
        assert answers(answer.content)
        assert answer.usage_metadata["output_tokens"] > 3
        chunks = list(model.stream(QUESTION))
        assert answers("".join(chunk.content for chunk in chunks))
        assert [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata] != []


def test_the_embeddings_class_on_azures_sdk(application: Application) -> None:
    from langchain_azure_ai.embeddings.inference import AzureAIEmbeddingsModel

    model: Any = AzureAIEmbeddingsModel(endpoint=application.url, credential="unused", model="embed")
    assert len(model.embed_query("hello")) == 384


def test_the_newer_class_on_openais_sdk(application: Application) -> None:
    from langchain_azure_ai.chat_models import AzureAIOpenAIApiChatModel

    model: Any = AzureAIOpenAIApiChatModel(
        endpoint=f"{application.url}/openai/v1", credential="unused", model="chat", temperature=0
    )
    assert answers(model.invoke(QUESTION).text)


def test_llamaindexes_embeddings_get_their_model_name_from_the_server(application: Application) -> None:
    """It asks `/info` for the model's name, which is the first endpoint's, a chat, and sends that with its texts."""
    from llama_index.embeddings.azure_inference import AzureAIEmbeddingsModel

    model: Any = AzureAIEmbeddingsModel(endpoint=application.url, credential="unused")
    assert model.model_name == "chat"
    assert [len(vector) for vector in model.get_text_embedding_batch(["hello", "world"])] == [384, 384]
