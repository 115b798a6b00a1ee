"""Each operation's request and answer: from the client's body to the engine request, and back.

Also response objects, whole and in streams, where vLLM's differ from OpenAI's; and functions, the former form of tools.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace
from pydantic_core import from_json

from app.config.meant import nearest
from app.config.schema import Task
from app.dialects.base import Call, EngineRequest, Flow, Reply, ServingContext, Stream, Translation, immutable
from app.dialects.bodies import Problem, dump, validated
from app.dialects.common.requests import (
    FIELD_NAMES,
    BestOf,
    DirectTranslation,
    SingleCallFilter,
    ask_for_usage,
    check_copies,
    check_function,
    drop_unasked,
    greedy,
    settle_format,
    settle_messages,
    with_single_call,
)
from app.dialects.common.streams import PassthroughStream, StreamedItems, StreamFormat, read_chunk
from app.dialects.openai import azure_ml, cohere, fields, scoring
from app.dialects.openai import fields as vllm_fields
from app.dialects.openai.errors import CHUNKS, COMPLETIONS, EVENTS, failed_events
from app.dialects.openai.input_tokens import PASSED, CountTranslation, tokenized
from app.dialects.openai.tools import (
    settle_chat_tools,
    settle_items,
    settle_tools,
)
from app.errors import BadRequest, SwitchyardError
from app.sse import encode

# vLLM leaves out `error` and `store`, has null for a default `text`, calls every item `completed`, renames the items in
# a stream's last event, and ends every stream with `response.completed`. Contract: OpenAI's API reference, Responses.

_EDITED = re.compile(rb"^event: response\.(?:created|in_progress|completed|output_item\.(?:added|done))$", re.MULTILINE)


def whole_response(response: dict[str, Any], *, tool_choice: Any, single_tool_call: bool) -> dict[str, Any]:
    """vLLM's response object as OpenAI's. `tool_choice`: the request's, which vLLM changes if there are no tools;
    `single_tool_call`: without function calls after the first.
    """
    output = with_single_call(response["output"]) if single_tool_call else response["output"]
    if response["status"] == "incomplete":
        output = [*output[:-1], *({**item, "status": "incomplete"} for item in output[-1:])]
    changed = {"error": None, "store": False, "text": _text(response), "tool_choice": tool_choice, "output": output}
    return {**response, **changed}


def _text(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The `text` of a request or response, with the default format if it has none."""
    text = fields.get("text") or {}
    return {**text, "format": text.get("format") or {"type": "text"}}


def failed_stream(fields: Mapping[str, Any], error: SwitchyardError, id: str, created_at: int) -> bytes:
    """The events of a response that fails before its first item, as OpenAI streams one whose input is too long: clients
    look for its error's code there, not in a status. `fields` are the request's, `created_at` is in Unix seconds."""
    response = {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": created_at,
        "model": fields.get("model", ""),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": fields.get("instructions"),
        "metadata": fields.get("metadata") or {},
        "output": [],
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "store": False,
        "temperature": fields.get("temperature"),
        "text": _text(fields),
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": fields.get("tools") or [],
        "top_p": fields.get("top_p"),
        "usage": None,
    }
    begun = [
        encode(dump({"type": kind, "sequence_number": number, "response": response}), type=kind)
        for number, kind in enumerate(("response.created", "response.in_progress"))
    ]
    return b"".join(begun) + failed_events(error, response, len(begun))


_NUMBER = re.compile(rb'"sequence_number": ?(\d+)')


class EditedResponseStream(PassthroughStream):
    """A `Stream` that edits the few events that hold a response object or a finished item, and passes the others.

    The last item's `response.output_item.done` waits for the next event: only that one shows whether the item was cut
    off.
    """

    def __init__(self, format: StreamFormat, *, tool_choice: Any, single_tool_call: bool) -> None:
        super().__init__(format)
        self._tool_choice = tool_choice
        self._one_call = SingleCallFilter() if single_tool_call else None
        self._items = StreamedItems()
        self._done: bytes = b""
        self._sent: bytes = b""
        self._begun: dict[str, Any] | None = None

    def feed(self, chunk: bytes) -> bytes:
        frames = super().feed(chunk)
        self._sent = frames or self._sent
        return frames

    def _passes(self, frames: bytes) -> bool:
        unedited = self._one_call is None and not self._done and not _EDITED.search(frames)
        return super()._passes(frames) and unedited

    def _failed(self, error: SwitchyardError) -> bytes:
        numbers = _NUMBER.findall(self._sent + self._done)
        return self._done + failed_events(error, self._begun, int(numbers[-1]) + 1 if numbers else 0)

    def _frame(self, frame: bytes) -> bytes:
        if self._one_call is not None and self._one_call.drops(frame):
            return b""
        done, self._done = self._done, b""
        if not _EDITED.match(frame):
            return done + frame
        head, _, data = frame.partition(b"\ndata: ")
        name, event = head.removeprefix(b"event: ").decode(), from_json(data)
        if "item" in event:
            self._items.note(event)
            if name == "response.output_item.added":
                return done + frame
            self._done = frame
            self.check.forget()
            return done
        return self._response(name, event, done)

    def _response(self, name: str, event: dict[str, Any], done: bytes) -> bytes:
        streamed = {**event["response"], "output": self._items.output(event["response"])}
        response = whole_response(streamed, tool_choice=self._tool_choice, single_tool_call=self._one_call is not None)
        self._begun = response
        if response["status"] == "incomplete":
            name, done = "response.incomplete", _cut(done)
        return done + encode(dump({**event, "type": name, "response": response}), type=name)


def _cut(done: bytes) -> bytes:
    """An event `response.output_item.done` whose item is incomplete."""
    if not done:
        return b""
    event = from_json(done.partition(b"\ndata: ")[2])
    return encode(dump({**event, "item": {**event["item"], "status": "incomplete"}}), type=event["type"])


# OpenAI's former form of tools, `functions` and `function_call`, which vLLM does not have. The engine gets tools, of
# which the model may make one call, and the client gets that call in the former form.
# Contract: OpenAI's API reference, "Create chat completion", the fields that it calls deprecated.

_TOOL_CALLS = b'"tool_calls"'


def replace_functions(body: dict[str, Any]) -> bool:
    """Puts tools in the place of a checked chat body's functions, in its messages too; returns whether it had any."""
    body["messages"] = _with_calls(body["messages"])
    functions, choice = body.pop("functions", None), body.pop("function_call", None)
    if not functions:
        return False
    for number, function in enumerate(functions):
        check_function(function, f"functions[{number}]")
    body["tools"] = [{"type": "function", "function": function} for function in functions]
    body["parallel_tool_calls"] = False
    if choice is not None:
        body["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", "function": choice}
    return True


def _with_calls(messages: list[Any]) -> list[Any]:
    """The messages with tool calls for function calls. A result belongs to the last call, or stands alone."""
    if "function" not in {message["role"] for message in messages} and "function_call" not in set().union(*messages):
        return messages
    replaced, call_id = [], ""
    for number, message in enumerate(messages):
        if "function_call" in message:
            call_id = f"call_{number}"
            call = {"id": call_id, "type": "function", "function": message["function_call"]}
            message = {**_without(message, frozenset({"function_call"})), "tool_calls": [call]}
        elif message["role"] == "function":
            message = {**message, "role": "tool", "tool_call_id": call_id or f"call_{number}"}
        replaced.append(message)
    return replaced


def whole_answer(answer: bytes) -> bytes:
    """A whole chat completion with the former form of its calls."""
    completion = from_json(answer)
    completion["choices"] = [_with_function_call(choice, "message") for choice in completion["choices"]]
    return dump(completion)


def stream_frame(frame: bytes) -> bytes:
    """A stream's frame with the former form of its calls."""
    if _TOOL_CALLS not in frame:
        return frame
    chunk = read_chunk(frame)
    return encode(dump({**chunk, "choices": [_with_function_call(choice, "delta") for choice in chunk["choices"]]}))


def _with_function_call(choice: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A choice whose message, or delta, has the first of its tool calls as `function_call`."""
    calls = choice[part].get("tool_calls") or []
    message = _without(choice[part], frozenset({"tool_calls"}))
    for call in calls:
        if call.get("index", 0) == 0:
            message["function_call"] = {
                name: call["function"][name] for name in _MEMBERS_OF_CALLS if name in call["function"]
            }
            break
    ended = choice.get("finish_reason")
    return {**choice, part: message, "finish_reason": "function_call" if ended == "tool_calls" else ended}


_MEMBERS_OF_CALLS = ("name", "arguments")


AnyRequest = TypeVar("AnyRequest", bound=fields.OperationBody)


@immutable
class ChatTranslation(DirectTranslation):
    """POST /v1/chat/completions. `functions`: the client sent those, instead of tools."""

    stream: bool = False
    hide_usage: bool = False
    functions: bool = False
    resumed: Sequence[int] = ()
    needs_model: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        request = _checked(body, fields.Chat, vllm_fields.ENGINE_CHAT)
        if body.get("echo"):  # vLLM's
            check_copies("echo", body["messages"][-1], request.n - 1)
        with_functions = replace_functions(body)
        if "tools" in body or "tool_choice" in body:
            settle_chat_tools(body)
        settle_messages(body)
        _settle_format(body)
        greedy(body)
        hide_usage = not ask_for_usage(body)
        sent = _without(body, fields.NOT_SENT)
        translation = cls("/v1/chat/completions", sent, request.stream, hide_usage, with_functions, **_resumed(request))
        call = _call("chat", sent, translation, request)
        return replace(call, field_names=_OF_FUNCTIONS) if with_functions else call

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(whole_answer(answer) if self.functions else answer)

    def open_stream(self, serving: ServingContext) -> Stream:
        edit = stream_frame if self.functions else None
        return PassthroughStream(CHUNKS, hide_usage=self.hide_usage, edit=edit)


@immutable
class CompletionsTranslation(DirectTranslation):
    """POST /v1/completions."""

    stream: bool = False
    hide_usage: bool = False
    best_of: BestOf | None = None
    resumed: Sequence[int] = ()
    needs_model: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        request = _checked(body, fields.Completions, vllm_fields.ENGINE_COMPLETIONS)
        body.pop("suffix", None)  # it is empty
        if request.echo:
            check_copies("echo", request.prompt, max(request.n, request.best_of or 1) - 1)
        best_of = BestOf.take(body)
        greedy(body)
        _settle_format(body)
        hide_usage = not ask_for_usage(body)
        sent = _without(body, fields.NOT_SENT)
        translation = cls("/v1/completions", sent, request.stream, hide_usage, best_of, **_resumed(request))
        call = _call("completions", sent, translation, request)
        return replace(call, field_names=FIELD_NAMES) if best_of is not None else call

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(answer if self.best_of is None else dump(self.best_of.select(from_json(answer))))

    def open_stream(self, serving: ServingContext) -> Stream:
        return PassthroughStream(COMPLETIONS, hide_usage=self.hide_usage)


@immutable
class EmbeddingsTranslation(DirectTranslation):
    """POST /v1/embeddings."""

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        request = _checked(body, fields.Embeddings, vllm_fields.ENGINE_EMBEDDINGS)
        sent = _without(body, fields.NOT_SENT)
        translation = cls("/v1/embeddings", sent)
        return _call("embeddings", sent, translation, request)


def _parse_classify(body: dict[str, Any]) -> Call:
    """vLLM's POST /classify."""
    request = _checked(body, fields.Classify, vllm_fields.ENGINE_CLASSIFY)
    sent = _without(body, fields.NOT_SENT)
    return _call("classify", sent, DirectTranslation("/classify", sent), request)


def _parse_pooling(body: dict[str, Any]) -> Call:
    """vLLM's POST /pooling."""
    request = _checked(body, fields.Pooling, vllm_fields.ENGINE_POOLING)
    sent = _without(body, fields.NOT_SENT)
    return _call("embeddings", sent, DirectTranslation("/pooling", sent), request)


def parse_cohere_embed(body: dict[str, Any], version: str = "2") -> Call:
    request = _checked(body, cohere.Embed, frozenset())
    translation = cohere.CohereEmbedTranslation.from_request(request, version=version)
    names = {**cohere.FIELD_NAMES, "input": "texts" if request.inputs is None else "inputs"}
    return Call("embeddings", translation.body, translation, request.model, field_names=names)


@immutable
class RerankTranslation(DirectTranslation):
    """POST /v1/rerank, and `/v2/rerank`, whose results have no documents by default."""

    with_documents: bool = True
    is_v2: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any], *, is_v2: bool = False) -> Call:
        request = _checked(body, scoring.Rerank, vllm_fields.ENGINE_RERANK)
        with_documents = not is_v2 if request.return_documents is None else request.return_documents
        sent = _without(body, fields.NOT_SENT | {"return_documents"})
        sent |= {name: scoring.texts(sent[name]) for name in ("query", "documents")}
        if is_v2 or request.max_tokens_per_doc:
            sent.setdefault("truncate_prompt_tokens", -1)
        translation = cls("/v1/rerank", sent, with_documents, is_v2)
        return Call("rerank", sent, translation, request.model, user=request.user)

    def engine_requests(self, serving: ServingContext) -> Flow:
        if not (most := self.body.get("max_tokens_per_doc")):
            return EngineRequest(self.path, self.body)
        # vLLM refuses a limit beyond the context, which Cohere's default is for many models.
        (answer,) = yield [EngineRequest("/tokenize", {"prompt": "a"})]
        unlimited = most >= answer["max_model_len"]
        return EngineRequest(self.path, _without(self.body, frozenset({"max_tokens_per_doc"} if unlimited else ())))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        if self.with_documents and not self.is_v2:
            return Reply(answer)
        return Reply(dump(scoring.reranked(from_json(answer), with_documents=self.with_documents, is_v2=self.is_v2)))


def _parse_rerank_v2(body: dict[str, Any]) -> Call:
    return RerankTranslation.parse(body, is_v2=True)


@immutable
class ScoreTranslation(DirectTranslation):
    """vLLM's POST /score. The engine gets `queries` and `documents`, under whichever names the client sent them."""

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        request = _checked(body, scoring.Score, vllm_fields.ENGINE_SCORE)
        names = scoring.pair_in(body)
        assert names is not None  # checked
        sent = _without(body, fields.NOT_SENT | set(names))
        sent |= {name: scoring.texts(body[given]) for name, given in zip(("queries", "documents"), names, strict=True)}
        own = {name: given for name, given in zip(("queries", "documents"), names, strict=True) if name != given}
        return Call("rerank", sent, cls("/score", sent), request.model, user=request.user, field_names=own)


@immutable
class ResponsesTranslation(DirectTranslation):
    """POST /v1/responses."""

    stream: bool = False
    single_tool_call: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any], *, drop_tools: bool) -> Call:
        request = _checked(body, fields.Responses, vllm_fields.ENGINE_RESPONSES)
        settle_tools(body, drop=drop_tools)
        if isinstance(request.input, list):
            settle_items(body, drop=drop_tools)
        if isinstance(text := body.get("text"), dict) and "format" in text:
            body["text"] = {**text, "format": settle_format(text["format"], "text.format", is_flat=True)}
        if request.top_p == 0:
            greedy(body)
        # Otherwise vLLM would look for a store that it does not have. The answer has false too: nothing is stored.
        sent = {**_without(body, fields.NOT_SENT_OF_RESPONSES), "store": False}
        if request.include is not None:
            sent["include"] = [name for name in request.include if name not in fields.NOT_INCLUDED]
        translation = cls("/v1/responses", sent, request.stream, request.parallel_tool_calls is False)
        return _call("responses", sent, translation, request)

    def counting(self, request: EngineRequest) -> EngineRequest | None:
        return EngineRequest("/tokenize", tokenized(request.body))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(dump(whole_response(from_json(answer), **self._told)))

    def open_stream(self, serving: ServingContext) -> Stream:
        return EditedResponseStream(EVENTS, **self._told)

    @property
    def _told(self) -> dict[str, Any]:
        return {"tool_choice": self.body.get("tool_choice", "auto"), "single_tool_call": self.single_tool_call}


def _parse_input_tokens(body: dict[str, Any], *, drop_tools: bool) -> Call:
    request = _checked(body, fields.InputTokens, PASSED)
    settle_tools(body, drop=drop_tools)
    if isinstance(request.input, list):
        settle_items(body, drop=drop_tools)
    counted = CountTranslation("/tokenize", tokenized(body))
    return Call("responses", body, counted, request.model, field_names={"messages": "input"})


@immutable
class TokenizeTranslation(DirectTranslation):
    """vLLM's POST /tokenize."""

    generates = False

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        request = _checked(body, fields.Tokenize, vllm_fields.ENGINE_TOKENIZE)
        task: Task = "completions" if request.messages is None else "chat"
        if request.messages is not None:
            settle_messages(body)
            settle_chat_tools(body)
        return Call(task, body, cls("/tokenize", body), request.model)


@immutable
class DetokenizeTranslation(DirectTranslation):
    """vLLM's POST /detokenize."""

    generates = False

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        request = _checked(body, fields.Detokenize, frozenset({"model", "tokens"}))
        return Call("completions", body, cls("/detokenize", body), request.model)


def _parse_score(body: dict[str, Any]) -> Call:
    """Pairs of texts, or a chat: Azure ML's clients have this route for both."""
    if "messages" in body:
        return ChatTranslation.parse(body)
    if "input_data" not in body:
        return ScoreTranslation.parse(body)
    _checked(body, azure_ml.WrappedChat, frozenset())
    chat = azure_ml.chat_body(body)
    try:
        call = ChatTranslation.parse(chat)
    except BadRequest as error:
        raise azure_ml.under_clients_name(error) from None
    return replace(call, translation=azure_ml.OutputTranslation("/v1/chat/completions", call.body))


def _parse_invocation(body: dict[str, Any]) -> Call:
    return (ChatTranslation if "messages" in body else CompletionsTranslation).parse(body)


PARSERS: Mapping[str, Callable[[dict[str, Any]], Call]] = {
    "chat": ChatTranslation.parse,
    "completions": CompletionsTranslation.parse,
    "embeddings": EmbeddingsTranslation.parse,
    "cohere_embed": parse_cohere_embed,
    "pooling": _parse_pooling,
    "classify": _parse_classify,
    "rerank": RerankTranslation.parse,
    "rerank_v2": _parse_rerank_v2,
    "score": _parse_score,
    "tokenize": TokenizeTranslation.parse,
    "detokenize": DetokenizeTranslation.parse,
    "invocations": _parse_invocation,
}
"""Operation to parser of its body, a JSON object without nulls. They raise BadRequest, and may change the body."""


class ResponsesParser(Protocol):
    """A parser of a body with the tools of Responses; `drop_tools` is a setting of the endpoint, see `settle_tools`."""

    def __call__(self, body: dict[str, Any], *, drop_tools: bool) -> Call: ...


PARSERS_OF_RESPONSES: Mapping[str, ResponsesParser] = {
    "responses": ResponsesTranslation.parse,
    "input_tokens": _parse_input_tokens,
}


def _checked(body: dict[str, Any], model: type[AnyRequest], passed: frozenset[str]) -> AnyRequest:
    """Raises BadRequest, naming the field, if `body` violates `model` or has a field neither of it nor in `passed`.

    Removes fields that ask for nothing of what is refused.
    """
    known = _known(model, passed)
    if not known.issuperset(body):  # refused fields are unknown ones
        drop_unasked(body, model.refused)
        for name in body:
            if name in model.refused:
                raise BadRequest(f"{name}: {model.refused[name]}", param=name, code="unsupported_parameter")
        for name in body:
            if name not in known:
                message = f"Unrecognized request argument supplied: {name}{nearest(name, known)}"
                raise BadRequest(message, param=name, code="unknown_parameter")
    return validated(model, body, _bad_request)


@cache
def _known(model: type[fields.OperationBody], passed: frozenset[str]) -> frozenset[str]:
    return (passed | model.model_fields.keys()) - model.refused.keys()  # looked up anew by pydantic each time


_OF_FUNCTIONS = {"tools": "functions", "tool_choice": "function_call"}


def _call(task: Task, sent: Mapping[str, Any], translation: Translation, request: fields.Recorded) -> Call:
    """The call of a request that may name its user and what it shares with other requests."""
    user = request.user or request.safety_identifier
    return Call(task, sent, translation, request.model, user=user, cache_key=request.prompt_cache_key)


def _resumed(request: fields.Chat | fields.Completions) -> dict[str, Any]:
    """The fields of a translation that continues a stream: its tokens, whose vocabulary and text the model knows."""
    return {} if request.resume is None else {"resumed": request.resume.token_ids, "needs_model": True}


def _settle_format(body: dict[str, Any]) -> None:
    if "response_format" in body:
        body["response_format"] = settle_format(body["response_format"], "response_format")


def _bad_request(problem: Problem) -> BadRequest:
    code = "missing_required_parameter" if problem.missing else None
    return BadRequest(problem.message, param=problem.path, code=code)


def _without(body: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    sent = dict(body)
    for name in names.intersection(body):
        del sent[name]
    return sent
