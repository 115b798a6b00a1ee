"""Turns a recorded request into the one to send again: OpenAI's, or Anthropic's for its recorded bodies. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.dialects.openai.dialect import OpenAI
from app.experiments.replay.synthetic import parts, words, words_of_bytes
from app.request_recordings.recorder import RecordedRequest

_PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "classify": "/classify",
}
NEVER_STREAMED = ("embeddings", "rerank", "classify")
"""Tasks that generate nothing."""

_PARSED: Mapping[str, str] = {"/score": "score"}
"""Route to OpenAI's operation, where it is not named as the task."""

_ENVELOPE_BYTES = 120
"""About the size of a request's body without its text."""

_DEFAULT_TOKENS = 128
"""The length of an answer that is not known and that nothing bounds."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The request that is sent. `is_synthetic`: the text is made up, since the recording has none."""

    recorded: RecordedRequest
    path: str
    body: Mapping[str, Any]
    is_synthetic: bool


def replayed(recorded: RecordedRequest) -> ReplayRequest:
    """The request with the recorded body, or with a made-up one of the same size."""
    task, body = recorded.task, recorded.body
    if task not in _PATHS:
        raise ValueError(f"unknown task '{task}'")
    is_synthetic = body is None
    is_anthropic = body is not None and recorded.dialect == "anthropic"
    path = "/v1/messages" if is_anthropic else _path(task, body or {})
    sent = (
        synthetic(recorded) if body is None else dict(body) if is_anthropic else _known(_PARSED.get(path, task), body)
    )
    sent["model"] = recorded.endpoint
    if task == "completions" and "max_tokens" in recorded.parameters:  # some dialects' bodies do not have it
        sent.setdefault("max_tokens", int(recorded.parameters["max_tokens"]))
    if task not in NEVER_STREAMED:
        sent["stream"] = recorded.stream
    sent.pop("stream_options", None)
    if recorded.stream and path in ("/v1/chat/completions", "/v1/completions"):
        sent["stream_options"] = {"include_usage": True}
    return ReplayRequest(recorded, path, sent, is_synthetic)


def text_of(recorded: RecordedRequest) -> list[str]:
    """The words of a made-up prompt: as many as the prompt had tokens, or bytes where those are not known.

    Prompts of one unit begin alike, as those of a conversation's turns do.
    """
    if recorded.prompt_tokens is not None:
        return words(recorded.unit, recorded.prompt_tokens)
    return words_of_bytes(recorded.unit, recorded.prompt_bytes - _ENVELOPE_BYTES)


def synthetic(recorded: RecordedRequest) -> dict[str, Any]:
    """A body with a made-up prompt. The answer gets as many tokens as the recorded one, if their number is known; its
    text differs.
    """
    text, given = text_of(recorded), recorded.parameters
    inputs = max(1, int(given.get("inputs", 1)))
    body: dict[str, Any] = {}
    match recorded.task:
        case "chat":
            texts = parts(text, 2 * recorded.turn + 1)
            texts = texts if len(texts) % 2 else texts[:-1]
            roles = ("user", "assistant")
            body["messages"] = [{"role": roles[at % 2], "content": it} for at, it in enumerate(texts)]
        case "responses":
            body["input"] = " ".join(text)
        case "rerank":
            # The engine counts the query once for each document.
            query, *others = parts(text, 2 * inputs)
            body |= {"query": query, "documents": others[:inputs] or [query]}
        case task:
            texts = parts(text, inputs)
            body["prompt" if task == "completions" else "input"] = texts if len(texts) > 1 else texts[0]
    if recorded.task in NEVER_STREAMED:
        return body
    if 0 <= given.get("temperature", -1) <= 2:
        body["temperature"] = given["temperature"]
    if recorded.task != "responses" and 1 <= given.get("n", 1) <= 128:
        body["n"] = int(given.get("n", 1))
    limit = "max_output_tokens" if recorded.task == "responses" else "max_tokens"
    if recorded.completion_tokens:
        body[limit] = max(1, recorded.completion_tokens // (body.get("n", 1) * inputs))
        body["ignore_eos"] = True
    else:
        body[limit] = max(1, int(given.get("max_tokens", _DEFAULT_TOKENS)))
    return body


def _path(task: str, body: Mapping[str, Any]) -> str:
    """The path of the request: vLLM has two routes for reranking."""
    return "/score" if task == "rerank" and "queries" in body else _PATHS[task]


def _known(operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body without vLLM's fields that other dialects write and OpenAI's API does not accept."""
    allowed, *_ = OpenAI.bodies[operation]  # others are recorded as what they are translated to
    known = (allowed.model.model_fields.keys() | allowed.passed) - getattr(allowed.model, "refused", {}).keys()
    return {name: value for name, value in body.items() if name in known and value is not None}
