"""Each operation's request and answer: from the client's body to the engine request, and back.

- Response objects, whole and in streams, where vLLM's differ from OpenAI's.
- OpenAI's former form of tools, `functions` and `function_call`, which vLLM does not have.
- The tools of a request that vLLM can offer to a model: those that the client runs.
- The items of a Responses input that vLLM can put into a prompt: messages, calls of functions, results, reasoning.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace
from pydantic_core import from_json

from app.config.base import nearest
from app.config.schema import Task
from app.dialects.base import Call, EngineRequest, Flow, Reply, ServingContext, Stream, Translation
from app.dialects.bodies import Problem, dump, validated
from app.dialects.common.requests import (
    FIELD_NAMES,
    BestOf,
    DirectTranslation,
    SingleCallFilter,
    ask_for_usage,
    check_copies,
    continue_prefix,
    drop_unasked,
    greedy,
    settle_format,
    with_single_call,
)
from app.dialects.common.streams import PassthroughStream, StreamedItems, StreamFormat, read_chunk
from app.dialects.openai import azure_ml, cohere, fields, scoring
from app.dialects.openai import fields as vllm_fields
from app.dialects.openai.errors import CHUNKS, COMPLETIONS, EVENTS
from app.dialects.openai.input_tokens import PASSED, CountTranslation, tokenized
from app.errors import BadRequest, SwitchyardError
from app.sse import encode

# vLLM leaves out `error` and `store`, has null for a default `text`, calls every item `completed`, renames the items in
# a stream's last event, and ends every stream with `response.completed`. Contract: OpenAI's API reference, Responses.

_EDITED = re.compile(rb"^event: response\.(?:created|in_progress|completed|output_item\.(?:added|done))$", re.MULTILINE)
_TEXT = {"format": {"type": "text"}}


def whole_response(response: dict[str, Any], *, single_tool_call: bool) -> dict[str, Any]:
    """vLLM's response object as OpenAI's; `single_tool_call`: without function calls after the first."""
    output = with_single_call(response["output"]) if single_tool_call else response["output"]
    if response["status"] == "incomplete":
        output = [*output[:-1], *({**item, "status": "incomplete"} for item in output[-1:])]
    return {**response, "error": None, "store": False, "text": response.get("text") or _TEXT, "output": output}


def failed_stream(fields: Mapping[str, Any], error: Mapping[str, Any], id: str, created_at: int) -> bytes:
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
        "text": fields.get("text") or _TEXT,
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": fields.get("tools") or [],
        "top_p": fields.get("top_p"),
        "usage": None,
    }
    failed = {**response, "status": "failed", "error": {"code": error["code"], "message": error["message"]}}
    events = {"response.created": response, "response.in_progress": response, "response.failed": failed}
    return b"".join(
        encode(dump({"type": kind, "sequence_number": number, "response": state}), type=kind)
        for number, (kind, state) in enumerate(events.items())
    )


class ResponseStream(PassthroughStream):
    """A `Stream` that edits the few events that hold a response object or a finished item, and passes the others.

    The last item's `response.output_item.done` waits for the next event: only that one shows whether the item was cut
    off.
    """

    def __init__(self, format: StreamFormat, *, single_tool_call: bool) -> None:
        super().__init__(format)
        self._one_call = SingleCallFilter() if single_tool_call else None
        self._items = StreamedItems()
        self._done: bytes = b""

    def _passes(self, frames: bytes) -> bool:
        unedited = self._one_call is None and not self._done and not _EDITED.search(frames)
        return super()._passes(frames) and unedited

    def _failed(self, error: SwitchyardError) -> bytes:
        return self._done + super()._failed(error)

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
        response = whole_response(streamed, single_tool_call=self._one_call is not None)
        if response["status"] == "incomplete":
            name, done = "response.incomplete", _cut(done)
        return done + encode(dump({**event, "type": name, "response": response}), type=name)


def _cut(done: bytes) -> bytes:
    """An event `response.output_item.done` whose item is incomplete."""
    if not done:
        return b""
    event = from_json(done.partition(b"\ndata: ")[2])
    return encode(dump({**event, "item": {**event["item"], "status": "incomplete"}}), type=event["type"])


# The engine gets tools, of which the model may make one call, and the client gets that call in the former form.
# Contract: OpenAI's API reference, "Create chat completion", the fields that it calls deprecated.

_TOOL_CALLS = b'"tool_calls"'


def replace_functions(body: dict[str, Any]) -> bool:
    """Puts tools in the place of a checked chat body's functions, in its messages too; returns whether it had any."""
    body["messages"] = _messages(body["messages"])
    functions, choice = body.pop("functions", None), body.pop("function_call", None)
    if not functions:
        return False
    body["tools"] = [{"type": "function", "function": function} for function in functions]
    body["parallel_tool_calls"] = False
    if choice is not None:
        body["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", "function": choice}
    return True


def _messages(messages: list[Any]) -> list[Any]:
    """The messages with tool calls for function calls. A result belongs to the last call, or stands alone."""
    replaced, call_id = [], ""
    for number, message in enumerate(messages):
        if "function_call" in message:
            call_id = f"call_{number}"
            call = {"id": call_id, "type": "function", "function": message["function_call"]}
            message = {**_without_member(message, "function_call"), "tool_calls": [call]}
        elif message["role"] == "function":
            message = {**message, "role": "tool", "tool_call_id": call_id or f"call_{number}"}
        replaced.append(message)
    return replaced


def whole_answer(answer: bytes) -> bytes:
    """A whole chat completion with the former form of its calls."""
    completion = from_json(answer)
    completion["choices"] = [_choice(choice, "message") for choice in completion["choices"]]
    return dump(completion)


def stream_frame(frame: bytes) -> bytes:
    """A stream's frame with the former form of its calls."""
    if _TOOL_CALLS not in frame:
        return frame
    chunk = read_chunk(frame)
    return encode(dump({**chunk, "choices": [_choice(choice, "delta") for choice in chunk["choices"]]}))


def _choice(choice: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A choice whose message, or delta, has the first of its tool calls as `function_call`."""
    calls = choice[part].get("tool_calls") or []
    message = _without_member(choice[part], "tool_calls")
    for call in calls:
        if call.get("index", 0) == 0:
            message["function_call"] = {name: call["function"][name] for name in _MEMBERS if name in call["function"]}
            break
    ended = choice.get("finish_reason")
    return {**choice, part: message, "finish_reason": "function_call" if ended == "tool_calls" else ended}


_MEMBERS = ("name", "arguments")


def _without_member(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != name}


# OpenAI also has tools that its own servers run (`web_search`, `mcp`, `code_interpreter` …). vLLM would accept them,
# tell the model nothing, and repeat them in the answer. Here a request gets an error, if it relies on one, or the
# answer's `tools` list what was in force. Contract: OpenAI's API reference, `tools` and `tool_choice`.

_RUN_BY_CLIENTS = frozenset({"function", "namespace"})

_OTHERS = frozenset(
    "apply_patch code_interpreter computer computer_use computer_use_preview custom file_search image_generation "
    "local_shell mcp programmatic_tool_calling shell tool_search web_search web_search_2025_08_26 web_search_preview "
    "web_search_preview_2025_03_11".split()
)
"""OpenAI's other types of tools. Any type but these and those above is a slip, which is never left out."""


def settle_tools(body: dict[str, Any], *, drop: bool) -> None:
    """Leaves in a Responses body the tools that this server has, and a `tool_choice` among them.

    `drop`: tools that it does not have are left out if the request has functions too, and its `tool_choice` does not
    demand one of them. Raises BadRequest otherwise.
    """
    tools, choice = body.get("tools"), body.get("tool_choice")
    if isinstance(tools, list):
        _check_types(tools, "tools", _RUN_BY_CLIENTS | _OTHERS)
        own = [tool for tool in tools if _type(tool) in _RUN_BY_CLIENTS]
        if len(own) < len(tools) and not (drop and own):
            number = next(number for number, tool in enumerate(tools) if _type(tool) not in _RUN_BY_CLIENTS)
            raise _unsupported(f"tools[{number}]", _type(tools[number]))
        body["tools"] = own
    if isinstance(choice, Mapping):
        kind = choice.get("type")
        if kind == "allowed_tools":
            _allow(body, choice, drop=drop)
        elif kind != "function":
            raise _unsupported("tool_choice", str(kind))


def settle_chat_tools(body: dict[str, Any]) -> None:
    """The same for a chat body, whose functions vLLM checks, and where an empty list is no tools. Raises BadRequest."""
    if body.get("tools") == []:
        del body["tools"]
        body.pop("tool_choice", None)  # "auto" or "none"
    _check_types(body.get("tools") or (), "tools", {"function"} | _OTHERS)
    for number, tool in enumerate(body.get("tools") or ()):
        if _type(tool) != "function":
            raise _unsupported(f"tools[{number}]", _type(tool))
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        _allow(body, choice, drop=False)


def _allow(body: dict[str, Any], choice: Mapping[str, Any], *, drop: bool) -> None:
    """Leaves the allowed tools, with the mode as `tool_choice`: chats have both in an object, Responses have not, and
    clients confuse the two. `drop`: allowed tools that this server does not have are left out, unless none is left.
    """
    path, nested = "tool_choice", choice.get("allowed_tools")
    if isinstance(nested, Mapping):
        path, choice = "tool_choice.allowed_tools", nested
    mode, allowed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise BadRequest(f"{path}.mode: must be 'auto' or 'required'", param=f"{path}.mode")
    path = f"{path}.tools"
    if not isinstance(allowed, list) or not allowed:
        raise BadRequest(f"{path}: must be a list of tools", param=path)
    _check_types(allowed, path, _RUN_BY_CLIENTS | _OTHERS, default="function")
    own = [tool for tool in allowed if _type(tool) in _RUN_BY_CLIENTS]
    if len(own) < len(allowed) and not (drop and own):
        number = next(number for number, tool in enumerate(allowed) if _type(tool) not in _RUN_BY_CLIENTS)
        raise _unsupported(f"{path}[{number}]", _type(allowed[number]))
    offered: Sequence[Any] = body.get("tools") or []
    named = {_name(tool): tool for tool in offered}
    for number, tool in enumerate(allowed):
        if _type(tool) in _RUN_BY_CLIENTS and _name(tool) not in named:
            raise BadRequest(f"{path}[{number}]: `tools` has no such tool", param=f"{path}[{number}]")
    names = {_name(tool) for tool in own}
    body["tools"] = [tool for tool in offered if _name(tool) in names]
    body["tool_choice"] = mode


def _check_types(tools: Sequence[Any], path: str, known: AbstractSet[str], *, default: str | None = None) -> None:
    """Raises BadRequest, with the type that was meant, for a tool of a type that nobody has. `default`: the type of
    those without one, which else are refused."""
    for number, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise BadRequest(f"{path}[{number}]: must be an object", param=f"{path}[{number}]")
        where, kind = f"{path}[{number}].type", tool.get("type", default)
        if kind is None:
            raise BadRequest(f"{where}: Field required", param=where, code="missing_required_parameter")
        if not isinstance(kind, str) or kind not in known:
            name = str(kind)[:64]
            raise BadRequest(f"{where}: there are no tools of type '{name}'{nearest(name, known)}", param=where)


def _type(tool: Any) -> str:
    return str(tool.get("type", "function")) if isinstance(tool, Mapping) else "function"  # vLLM's to reject


def _name(tool: Any) -> str | None:
    """A tool's name, in the form of chats or of responses."""
    if not isinstance(tool, Mapping):
        return None
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name")
    return name if isinstance(name, str) else None


def _unsupported(path: str, kind: str) -> BadRequest:
    return BadRequest(
        f"{path}: '{kind[:64]}' is not supported; this server has only functions, which the client runs",
        param=path,
        code="unsupported_tool",
    )


# OpenAI's servers know more. Calls of other tools that the client runs become calls of functions, and their results
# results. What vLLM does not know fails in it with a 500: here it is left out where it tells the model nothing, as
# tools are (`tools.settle_tools`), or refused by name. Contract: OpenAI's API reference, `input`; vLLM 0.29,
# `entrypoints/openai/responses/utils.py`.

_ROLES = frozenset({"assistant", "developer", "system", "user"})

_CALLS: Mapping[str, tuple[str, str | None]] = {
    "apply_patch_call": ("operation", "apply_patch"),
    "custom_tool_call": ("input", None),
    "local_shell_call": ("action", "local_shell"),
    "shell_call": ("action", "shell"),
}
"""Calls of tools that the client runs: the field with what the tool gets, and its name, unless the item has that."""

_RESULTS = frozenset(f"{call}_output" for call in _CALLS)

_LEFT_OUT = frozenset({"mcp_list_tools", "web_search_call"})
"""What servers' tools were asked; what came of it is in the message that follows."""

_INSTEAD: Mapping[str, str] = {
    "compaction": "only OpenAI's servers can decrypt it; send the conversation's items",
    "item_reference": "items are not stored; send the item itself. Clients do so with `store: false`; for Vercel's AI "
    "SDK that is `providerOptions: {openai: {store: false}}`",
}


def settle_items(body: dict[str, Any], *, drop: bool) -> None:
    """Leaves in a Responses body whose `input` is a list the items that vLLM has.

    `drop`: items of servers' tools that tell the model nothing are left out. Raises BadRequest.
    """
    settled = (_settled(item, f"input[{number}]", drop=drop) for number, item in enumerate(body["input"]))
    body["input"] = [item for item in settled if item is not None]
    if not body["input"]:
        raise BadRequest("input: has no item that tells the model anything", param="input")


def _settled(item: Any, path: str, *, drop: bool) -> dict[str, Any] | None:
    if not isinstance(item, dict):
        raise BadRequest(f"{path}: must be an object", param=path)
    kind = item.get("type", "message" if "role" in item or "id" not in item else "item_reference")
    if kind == "message":
        return _message(item, path)
    if kind == "reasoning":
        return _reasoning(item)
    if kind == "function_call":
        _require(item, path, "call_id", "name", "arguments")
        return item
    if kind == "function_call_output":
        return _with_known_parts(item, "output", path)
    if not isinstance(kind, str):
        raise BadRequest(f"{path}.type: must be a string", param=f"{path}.type")
    if kind in _CALLS:
        return _function_call(item, path, *_CALLS[kind])
    if kind in _RESULTS:
        return _function_output(item, path)
    if kind in _LEFT_OUT and drop:
        return None
    instead = _INSTEAD.get(kind, "send messages, calls of functions and their outputs")
    raise BadRequest(f"{path}: items of type '{kind[:64]}' are not supported; {instead}", param=path)


def _message(item: dict[str, Any], path: str) -> dict[str, Any]:
    """A message; the model's has one text, as vLLM reads only the first one."""
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRequest(f"{path}.role: must be one of {', '.join(sorted(_ROLES))}", param=f"{path}.role")
    if role != "assistant" or not isinstance(content, list):
        return _with_known_parts(item, "content", path)
    texts: list[str] = []
    for number, part in enumerate(content):
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not isinstance(text, str):
            where = f"{path}.content[{number}]"
            raise BadRequest(f"{where}: only texts are supported in a message of the model", param=where)
        texts.append(text)
    is_one_text = len(content) == 1 and "text" in content[0]
    return item if is_one_text else {**item, "content": "".join(texts)}


def _with_known_parts(item: dict[str, Any], field: str, path: str) -> dict[str, Any]:
    """The item, whose `field` is a text or a list of parts. Raises BadRequest for parts that vLLM would leave out."""
    content = item.get(field)
    if not isinstance(content, str | list):
        raise BadRequest(f"{path}.{field}: must be a text or a list", param=f"{path}.{field}")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        where = f"{path}.{field}[{number}]"
        if kind == "input_file" or (kind == "input_image" and not part.get("image_url")):
            message = f"{where}: this server stores no files; send the text, or an image's URL as `image_url`"
            raise BadRequest(message, param=where)
    return item


def _reasoning(item: dict[str, Any]) -> dict[str, Any] | None:
    """Reasoning; None if only OpenAI's servers can decrypt it."""
    if not item.get("content") and not item.get("summary"):
        return None
    return {name: value for name, value in item.items() if name != "encrypted_content"}


def _function_call(item: Mapping[str, Any], path: str, field: str, name: str | None) -> dict[str, Any]:
    _require(item, path, "call_id", *(() if name else ("name",)))
    if field not in item:
        raise BadRequest(f"{path}.{field}: Field required", param=f"{path}.{field}")
    arguments = dump({field: item[field]}).decode()
    return {
        "type": "function_call",
        "call_id": item["call_id"],
        "name": name or item["name"],
        "arguments": arguments,
    }


def _function_output(item: dict[str, Any], path: str) -> dict[str, Any]:
    output = item.get("output", item.get("status", ""))
    if item["type"] == "custom_tool_call_output":
        _with_known_parts(item, "output", path)
    elif not isinstance(output, str):
        output = dump(output).decode()
    return {"type": "function_call_output", "call_id": item.get("call_id", item.get("id")), "output": output}


def _require(item: Mapping[str, Any], path: str, *fields: str) -> None:
    for field in fields:
        if not isinstance(item.get(field), str):
            raise BadRequest(f"{path}.{field}: must be a string", param=f"{path}.{field}")


AnyRequest = TypeVar("AnyRequest", bound=fields.Request)


@dataclass(frozen=True)
class ChatTranslation(DirectTranslation):
    """POST /v1/chat/completions. `functions`: the client sent those, instead of tools."""

    stream: bool = False
    hide_usage: bool = False
    functions: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        request = _checked(body, fields.Chat, vllm_fields.ENGINE_CHAT)
        if body.get("echo"):  # vLLM's
            check_copies("echo", body["messages"][-1], request.n - 1)
        with_functions = replace_functions(body)
        if "tools" in body or "tool_choice" in body:
            settle_chat_tools(body)
        continue_prefix(body)
        _settle_format(body)
        greedy(body)
        hide_usage = not ask_for_usage(body)
        sent = _without(body, fields.NOT_SENT)
        translation = cls("/v1/chat/completions", sent, request.stream, hide_usage, with_functions)
        call = _call("chat", sent, translation, request)
        return replace(call, field_names=_OF_FUNCTIONS) if with_functions else call

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(whole_answer(answer) if self.functions else answer)

    def open_stream(self, serving: ServingContext) -> Stream:
        edit = stream_frame if self.functions else None
        return PassthroughStream(CHUNKS, hide_usage=self.hide_usage, edit=edit)


@dataclass(frozen=True)
class CompletionsTranslation(DirectTranslation):
    """POST /v1/completions."""

    stream: bool = False
    hide_usage: bool = False
    best_of: BestOf | None = None

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
        translation = cls("/v1/completions", sent, request.stream, hide_usage, best_of)
        call = _call("completions", sent, translation, request)
        return replace(call, field_names=FIELD_NAMES) if best_of is not None else call

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(answer if self.best_of is None else dump(self.best_of.select(from_json(answer))))

    def open_stream(self, serving: ServingContext) -> Stream:
        return PassthroughStream(COMPLETIONS, hide_usage=self.hide_usage)


@dataclass(frozen=True)
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
    translation = cohere.EmbedTranslation.of(request, version=version)
    names = {**cohere.FIELD_NAMES, "input": "texts" if request.inputs is None else "inputs"}
    return Call("embeddings", translation.body, translation, request.model, field_names=names)


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
        return Reply(dump(whole_response(from_json(answer), single_tool_call=self.single_tool_call)))

    def open_stream(self, serving: ServingContext) -> Stream:
        return ResponseStream(EVENTS, single_tool_call=self.single_tool_call)


def _parse_input_tokens(body: dict[str, Any], *, drop_tools: bool) -> Call:
    request = _checked(body, fields.InputTokens, PASSED)
    settle_tools(body, drop=drop_tools)
    if isinstance(request.input, list):
        settle_items(body, drop=drop_tools)
    return Call("responses", body, CountTranslation("/tokenize", tokenized(body)), request.model)


@dataclass(frozen=True)
class TokenizeTranslation(DirectTranslation):
    """vLLM's POST /tokenize."""

    generates = False

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        request = _checked(body, fields.Tokenize, vllm_fields.ENGINE_TOKENIZE)
        task: Task = "completions" if request.messages is None else "chat"
        return Call(task, body, cls("/tokenize", body), request.model)


@dataclass(frozen=True)
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
    drop_unasked(body, model.refused)
    for name in body:
        if name in model.refused:
            raise BadRequest(f"{name}: {model.refused[name]}", param=name, code="unsupported_parameter")
    known = _known(model)
    for name in body:
        if name not in known and name not in passed:
            hint = nearest(name, known | passed)
            message = f"Unrecognized request argument supplied: {name}{hint}"
            raise BadRequest(message, param=name, code="unknown_parameter")
    return validated(model, body, _bad_request)


@cache
def _known(model: type[fields.Request]) -> AbstractSet[str]:
    return model.model_fields.keys()  # looked up anew by pydantic each time


_OF_FUNCTIONS = {"tools": "functions", "tool_choice": "function_call"}


def _call(task: Task, sent: Mapping[str, Any], translation: Translation, request: fields.Recorded) -> Call:
    """The call of a request that may name its user and what it shares with other requests."""
    user = request.user or request.safety_identifier
    return Call(task, sent, translation, request.model, user=user, cache_key=request.prompt_cache_key)


def _settle_format(body: dict[str, Any]) -> None:
    if "response_format" in body:
        body["response_format"] = settle_format(body["response_format"], "response_format")


def _bad_request(problem: Problem) -> BadRequest:
    code = "missing_required_parameter" if problem.missing else None
    return BadRequest(problem.message, param=problem.path, code=code)


def _without(body: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}
