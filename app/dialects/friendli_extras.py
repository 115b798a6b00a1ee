"""What Friendli answers beside text: token ids, texts of ids, rendered conversations, vectors, the list of models."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import from_json

from app.config import Config, Task
from app.dialects.base import Reply, Served, dump
from app.dialects.friendli_chat import Message, Tool
from app.dialects.friendli_fields import Phrase, Strict, TokenId, checked
from app.errors import BadRequest, Broken


class Tokenize(Strict):
    """POST …/v1/tokenize."""

    model: str | None = None
    prompt: str


class Detokenize(Strict):
    """POST …/v1/detokenize."""

    model: str | None = None
    tokens: list[TokenId]


class Render(Strict):
    """POST …/v1/chat/render."""

    chat_template_kwargs: dict[str, Any] | None = None
    messages: list[Message] = Field(min_length=1)
    model: str | None = None
    tools: list[Tool] = Field(default=[])


class Embeddings(Strict):
    """POST …/v1/embeddings."""

    encoding_format: Literal["float", "base64"] = "float"
    input: Phrase | Annotated[list[Phrase], Field(min_length=1)] | None = None
    model: str | None = None
    tokens: list[TokenId] = Field(default=[])


def tokens(prompt: str, served: Served) -> dict[str, Any]:
    """`/tokenize`."""
    return {"tokens": served.known_model.encode(prompt)}


def text(ids: list[int], served: Served) -> dict[str, Any]:
    """`/detokenize`. Raises BadRequest for an id that is none."""
    model = served.known_model
    if ids and max(ids) >= model.vocab_size:
        raise BadRequest(f"tokens: {max(ids)} is no token id, they are 0 to {model.vocab_size - 1}", param="tokens")
    return {"text": model.decode(ids, special=True)}


def rendered(body: bytes, served: Served) -> Reply:
    """`/chat/render`: the prompt that the engine makes of a conversation. Raises Broken."""
    try:
        ids = from_json(body)["token_ids"]
        return Reply(dump({"text": served.known_model.decode(ids, special=True)}))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise Broken("The deployment's answer is no prompt") from error


def embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's question. Raises BadRequest or Unprocessable."""
    fields = checked(body, Embeddings)
    if (fields.input is None) == (not fields.tokens):
        raise BadRequest("input: either it or tokens must be given", param="input")
    given = [fields.tokens] if fields.input is None else fields.input
    return {"input": given, "encoding_format": fields.encoding_format}


def embedded(body: bytes) -> Reply:
    """vLLM's answer, with a count of completion tokens, which the SDK insists on. Raises Broken."""
    try:
        told = from_json(body)
        told["usage"] = {**told["usage"], "completion_tokens": told["usage"].get("completion_tokens", 0)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Broken("The deployment's answer is no embedding") from error
    return Reply(dump(told))


_MODES: tuple[tuple[Task, str], ...] = (("chat", "chat"), ("completions", "completion"), ("embeddings", "embedding"))

_FREE = {name: "0" for name in ("input", "output", "prompt", "completion")} | {
    name: None for name in ("input_cache_read", "cache_write", "audio_minute")
}


def models(config: Config) -> dict[str, Any]:
    """The endpoints, as the SDK's catalogue wants them.

    It insists on numbers that the router does not know without asking every deployment: these are 0.
    """
    return {"object": "list", "data": [_card(name, endpoint.tasks) for name, endpoint in config.endpoints.items()]}


def _card(name: str, tasks: tuple[Task, ...]) -> dict[str, Any]:
    chats = "chat" in tasks
    functions = ("tool_call", "parallel_tool_call", "structured_output", "tool_choice", "system_messages")
    return {
        "id": name,
        "object": "model",
        "name": name,
        "created": 0,
        "owned_by": "switchyard",
        "context_length": 0,
        "max_completion_tokens": 0,
        "pricing": _FREE,
        "functionality": dict.fromkeys(functions, chats),
        "description": f"serves {', '.join(tasks)}",
        "deprecation_date": None,
        "reasoning": False,
        "reasoning_options": None,
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "interleaved": False,
        "base_model": None,
        "mode": next((mode for task, mode in _MODES if task in tasks), "chat"),
        "default_params": None,
    }
