"""Friendli's chat: OpenAI's format with more fields. Answers are vLLM's own.

- Friendli's errors. Its reference documents only the 429 of a timeout; the SDKs keep status and body as they are.
- Token ids of a text, the text of ids, and the prompt of a conversation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field
from pydantic_core import from_json

from app.dialects.base import (
    Call,
    EngineRequest,
    Flow,
    ParseContext,
    Reply,
    Request,
    ServingContext,
    Stream,
    Translation,
    immutable,
    no_lookups,
)
from app.dialects.bodies import dump
from app.dialects.common.requests import check_copies, engine_extensions, in_steps, settle_functions, settle_messages
from app.dialects.common.streams import PassthroughStream, StreamFormat
from app.dialects.friendli.completion_request import check_extensions
from app.dialects.friendli.embeddings import Embeddings
from app.dialects.friendli.fields import TOOLS, Completions, ExactFields, ModelName, TokenId, checked
from app.dialects.friendli.rules import Chat, Message, Tool, read_chat
from app.dialects.friendli.sampling import sampling, seed_fields
from app.engine.output import find_usage
from app.errors import BadRequest, Rejected, SwitchyardError
from app.internal_api import to_int64_seed
from app.sse import encode

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}

# The other operations' fields are among these.
_FIELDS = {*Completions.model_fields, *Chat.model_fields, *Embeddings.model_fields}

# The engine's names for the client's fields, where they differ.
_CLIENT_NAMES: Mapping[str, str] = {
    "beam": "num_beams",
    "beam.bad_word_tokens": "bad_word_tokens",
    "beam.early_stopping": "early_stopping",
    "beam.eos_token_ids": "eos_token",
    "beam.length_penalty": "length_penalty",
    "beam.no_repeat_ngram": "no_repeat_ngram",
    "beam.seed": "seed",
    "beam.stop_tokens": "stop_tokens",
    "beam.type": "beam_search_type",
    "beam.width": "num_beams",
    "replace_embeddings": "token_index_to_replace",
    "replace_embeddings.indices": "token_index_to_replace",
    "replace_embeddings.values": "embedding_to_replace",
    "seeds": "seed",
    "stop_token_ids": "stop_tokens",
    "structured_outputs": "response_format",
    "thinking_token_budget": "reasoning_budget",
}


def error_body(error: SwitchyardError) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}, "detail"}``; the message names the field."""
    param, message = _param(error), error.message
    if error.param and param and message.startswith(error.param):
        message = param + message.removeprefix(error.param)
    elif param and param not in message:
        message = f"{param}: {message}"
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": error.code}, "detail": message}


def error_reply(error: SwitchyardError) -> Reply:
    """The answer to a request that failed before its first byte."""
    return Reply(dump(error_body(error)), error.status)


def timeout_reply(param: str) -> Reply:
    """The answer when the time that the client set in the field `param` has passed."""
    message = f"{param}: the time for this request is over"
    error = {"message": message, "type": _TYPES[429], "param": param, "code": "timeout"}
    return Reply(dump({"error": error, "detail": message}), 429)


def error_frames(error: SwitchyardError) -> bytes:
    """A failed chat stream's last event, in OpenAI's format like its chunks."""
    return encode(dump(error_body(error)))


def _param(error: SwitchyardError) -> str | None:
    if error.param is not None:
        is_clients = error.code == "unknown_parameter"
        return error.param if is_clients else _CLIENT_NAMES.get(error.param, error.param)
    if not isinstance(error, Rejected):
        return None
    if error.message.startswith("Grammar error"):
        return "response_format"
    # The logits processors begin their messages with the key, which is the field's name.
    first = error.message.partition(" ")[0].rstrip(":")
    return first if first in _FIELDS else None


PATH = "/v1/chat/completions"
_FORMAT = StreamFormat(PATH, error_frames)
_PASSED_ON = frozenset(
    "chat_template_kwargs frequency_penalty include_reasoning logit_bias logprobs max_completion_tokens max_tokens "
    "messages min_p min_tokens parallel_tool_calls presence_penalty reasoning_effort repetition_penalty stop stream "
    "tool_choice tools top_k top_logprobs top_p".split()
)


def parse_chat(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    fields = read_chat(body)
    engine_body = _engine_body(fields, body)
    if not fields.is_one_request:
        check_copies("seed", engine_body, len(fields.seeds) - 1)
    extended = bool(engine_extensions(engine_body))
    translation = FriendliChatTranslation(fields, engine_body, stream=fields.stream, needs_model=extended)
    return Call("chat", engine_body, translation, timeout_s=fields.timeout_s)


def _engine_body(fields: Chat, body: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's chat request; `body` is what `fields` were read from. Raises BadRequest."""
    engine_body = {name: value for name, value in body.items() if name in _PASSED_ON}
    settle_messages(engine_body)
    settle_functions(engine_body)  # the previous SDK sends an empty list, and a choice, with every request
    engine_body |= sampling(fields, several=fields.n > 1 and fields.is_one_request)
    if fields.n > 1:
        engine_body["n"] = fields.n
    if fields.seeds and fields.is_one_request:
        engine_body |= seed_fields(fields.seeds)
    if fields.eos_token:
        engine_body |= {"stop_token_ids": fields.eos_token, "ignore_eos": True}
    if fields.reasoning_budget is not None:
        engine_body["thinking_token_budget"] = fields.reasoning_budget
    if fields.stream:
        engine_body["stream_options"] = {"include_usage": True}
    return engine_body


@immutable
class FriendliChatTranslation(Translation):
    """POST …/v1/chat/completions. `body` is the engine's. `needs_model`: it asks for extensions."""

    fields: Chat
    body: dict[str, Any]
    stream: bool = False
    needs_model: bool = False

    def engine_requests(self, serving: ServingContext) -> Flow:
        if self.needs_model:
            check_extensions(self.body, serving)
        if self.fields.is_one_request:
            return EngineRequest(PATH, self.body)
        # vLLM can only count up from one seed: every choice with its own seed is a separate request.
        answers = yield [
            EngineRequest(PATH, {**self.body, "n": 1, "seed": to_int64_seed(seed)}) for seed in self.fields.seeds
        ]
        answer = dump(_joined(answers))
        return Reply(self._renamed(answer), usage=find_usage(answer))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(self._renamed(answer))

    def open_stream(self, serving: ServingContext) -> Stream:
        kind = _ReasoningStream if self.fields.parse_reasoning else PassthroughStream
        return kind(_FORMAT, hide_usage=not self.fields.shows_usage)

    def _renamed(self, answer: bytes) -> bytes:
        return _with_friendlis_reasoning(answer) if self.fields.parse_reasoning else answer


class _ReasoningStream(PassthroughStream):
    """A `PassthroughStream` that sends reasoning under Friendli's name."""

    def feed(self, chunk: bytes) -> bytes:
        return _with_friendlis_reasoning(super().feed(chunk))


def _with_friendlis_reasoning(answer: bytes) -> bytes:
    # Inside a JSON string the quotes of the key would be escaped.
    return answer.replace(b'"reasoning":', b'"reasoning_content":')


def _joined(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One answer with the first choice of each."""
    choices = [{**answer["choices"][0], "index": index} for index, answer in enumerate(answers)]
    prompt = answers[0]["usage"]["prompt_tokens"]
    completion = sum(answer["usage"]["completion_tokens"] for answer in answers)
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**answers[0], "choices": choices, "usage": usage}


class Tokenize(ExactFields):
    """POST …/v1/tokenize."""

    model: ModelName = None
    prompt: str = Field(description="its ids, with special tokens as the engine adds them")


class Detokenize(ExactFields):
    """POST …/v1/detokenize."""

    model: ModelName = None
    tokens: list[TokenId] = Field(description="their text, with special tokens spelt out")


class Render(ExactFields):
    """POST …/v1/chat/render."""

    chat_template_kwargs: dict[str, Any] | None = None
    messages: list[Message] = Field(min_length=1)
    model: ModelName = None
    tools: list[Tool] = Field(default=[], description=TOOLS)


def parse_tokenize(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    prompt = checked(body, Tokenize).prompt
    return Call("completions", {"prompt": prompt}, FriendliTokenizeTranslation(prompt))


@immutable
class FriendliTokenizeTranslation(Translation):
    """The ids of a text, by the router's copy of the tokenizer."""

    prompt: str
    needs_model = True
    generates = False

    def engine_requests(self, serving: ServingContext) -> Flow:
        pieces: list[bytes] = []  # as JSON: a list of integers takes ten times the memory
        yield from in_steps(serving.known_model, self.prompt, "prompt", lambda ids: pieces.append(dump(ids.ids)[1:-1]))
        return Reply(b'{"tokens":[%b]}' % b",".join(filter(None, pieces)))


def parse_detokenize(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    return Call("completions", {}, FriendliDetokenizeTranslation(checked(body, Detokenize).tokens))


@immutable
class FriendliDetokenizeTranslation(Translation):
    """The text of ids, by the router's copy of the tokenizer; special tokens are spelt out."""

    ids: list[int]
    needs_model = True
    generates = False

    def engine_requests(self, serving: ServingContext) -> Flow:
        yield from ()
        model = serving.known_model
        if self.ids and max(self.ids) >= model.vocab_size:
            raise BadRequest(
                f"tokens: {max(self.ids)} is not a token id; ids are 0 to {model.vocab_size - 1}", param="tokens"
            )
        return Reply(dump({"text": model.decode(self.ids, special=True)}))


def parse_render(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    checked(body, Render)
    engine_body = {name: value for name, value in body.items() if name != "model"}
    settle_messages(engine_body)
    settle_functions(engine_body)
    return Call("chat", engine_body, RenderTranslation(engine_body))


@immutable
class RenderTranslation(Translation):
    """The prompt that the engine makes of a conversation."""

    body: dict[str, Any]
    needs_model = True
    generates = False

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(EngineRequest(f"{PATH}/render", self.body))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        ids = from_json(answer)["token_ids"]
        return Reply(dump({"text": serving.known_model.decode(ids, special=True)}))
