"""`/v1/chat/completions`: a chat in OpenAI's form, with TGI's own fields and limits.

- The part of vLLM's request that is the same for chats and completions. Unknown fields are ignored, as TGI does.
- `/v1/completions`: prompts in OpenAI's form, with TGI's limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
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
    no_lookups,
)
from app.dialects.bodies import Problem, dump, request_object, validated, value_at
from app.dialects.common.fields import (
    GREEDY_TOP_P,
    NEEDS_TOOLS,
    WITH_CONTENT,
    AnyPart,
    Function,
    Penalty,
    StreamOptions,
    content_for,
    has_content_for,
)
from app.dialects.common.requests import (
    CONTINUED,
    ask_for_usage,
    engine_extensions,
    greedy,
    settle_functions,
    settle_messages,
    temperature,
    tokenize,
)
from app.dialects.common.streams import PassthroughStream, StreamFormat, TerminatingStream
from app.dialects.tgi.errors import chat_error_event
from app.dialects.tgi.fields import MAX_TOP_N_TOKENS, Grammar, structured_outputs
from app.dialects.tgi.generate import check_capabilities, inputs_too_long
from app.dialects.tgi.profile import Profile, named_model, profile_of
from app.engine.answers import EventCheck
from app.engine.errors import MALFORMED_RESPONSE, error_in
from app.engine.output import Usage, find_usage
from app.errors import MalformedAnswer, Unprocessable
from app.internal_api import to_int64_seed
from app.sse import DONE, Framer, datas, encode

MAX_PROMPTS = 4


class _Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, json_schema_extra=has_content_for(WITH_CONTENT))

    role: str
    content: Annotated[str | list[AnyPart] | None, content_for(WITH_CONTENT)] = Field(
        default=None, validate_default=True
    )


class _Tool(_Strict):
    type: Literal["function"]
    function: Function


class ChatFormFields(_Strict):
    """The fields that both requests in OpenAI's form share."""

    model: str | None = Field(
        default=None,
        description="below `/tgi` a deployment of the endpoint, if it is one; elsewhere an endpoint or a deployment, "
        "`tgi` and `dummy` for the default",
    )
    frequency_penalty: Penalty | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    repetition_penalty: float | None = Field(default=None, gt=0)
    seed: int | None = Field(default=None, ge=0, lt=2**64, description="vLLM's, any unsigned 64-bit number")
    stop: str | list[Annotated[str, Field(min_length=1)]] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = Field(default=None, description="vLLM's; not sent without `stream`")
    temperature: float | None = Field(
        default=None, ge=0, description="vLLM's; 0 is greedy, above 2 by a logits processor"
    )
    top_p: float | None = Field(default=None, ge=0, le=1, description=GREEDY_TOP_P)


class Chat(ChatFormFields):
    messages: list[_Message] = Field(min_length=1)
    guideline: str | None = Field(default=None, description="for the chat template")
    logit_bias: dict[str, float] | None = None
    logprobs: bool = False
    max_completion_tokens: int | None = Field(default=None, gt=0)
    n: int = Field(default=1, ge=1, le=128)
    presence_penalty: Penalty | None = None
    response_format: dict[str, Any] | None = Field(
        default=None,
        description="TGI's `type` and `value` become vLLM's structured outputs; OpenAI's form is vLLM's",
    )
    tool_choice: str | dict[str, Any] | None = Field(
        default=None, description=f"{NEEDS_TOOLS}; a function's bare name too"
    )
    tool_prompt: str | None = Field(
        default=None, description="done here: comes after the last message, if there are tools"
    )
    tools: list[_Tool] | None = Field(default=None, description=NEEDS_TOOLS)
    top_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOP_N_TOKENS,
        description=f"vLLM's; at most {MAX_TOP_N_TOKENS}, not sent without `logprobs`",
    )


class Completions(ChatFormFields):
    refused: ClassVar[Mapping[str, str]] = {"suffix": "TGI does not support it"}

    prompt: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, json_schema_extra={"maxItems": MAX_PROMPTS})]
    ) = Field(description=f"vLLM's; at most {MAX_PROMPTS}")
    max_tokens: int | None = Field(default=None, gt=0, description="vLLM's; the default is the profile's")
    suffix: Annotated[str | None, WithJsonSchema({"type": "null"})] = None


def engine_fields(body: Mapping[str, Any], model: type[ChatFormFields]) -> tuple[dict[str, Any], bool]:
    """The fields of `body` for vLLM, and whether the stream's usage is to be hidden from the client.

    Raises Unprocessable, naming the field, if `body` is not a `model`.
    """
    validated(model, body, partial(_invalid, body))
    fields = {name: body[name] for name in model.model_fields if name in body and name != "model"}
    if "seed" in fields:
        fields["seed"] = to_int64_seed(fields["seed"])
    greedy(fields)
    if "temperature" in fields:
        fields |= temperature(fields["temperature"])
    if not fields.get("stream"):
        fields.pop("stream_options", None)
        return fields, False
    return fields, not ask_for_usage(fields)


def _invalid(body: Mapping[str, Any], problem: Problem) -> Unprocessable:
    text = f"`{problem.path}`{problem.message.removeprefix(problem.path)}"
    return Unprocessable(text, param=problem.path, value=value_at(body, problem.path))


COMPLETIONS = StreamFormat("/v1/completions", chat_error_event)
_FINGERPRINT = "3.3.6-native"  # if the engine has none: clients need a string


# Nearly every chunk is a piece of text of one choice, which is completed without parsing it. Keys cannot be mistaken
# for text: inside a JSON string their quotes would be escaped.
_TEXT, _TGI_TEXT = b'"delta":{"content":"', b'"delta":{"role":"assistant","tool_calls":null,"content":"'
_TGI_END = b',"system_fingerprint":"%b"}\n\n' % _FINGERPRINT.encode()


def _is_text(frame: bytes) -> bool:
    """Whether frames are one, with nothing but a piece of text."""
    is_one = frame.count(b"\n") == 2 and frame.count(b'"delta":') == 1 and frame.find(_TEXT) >= 0
    has_more = (  # no loop: this runs for every token
        frame.find(b'"role":') >= 0
        or frame.find(b'"tool_calls":') >= 0
        or frame.find(b'"system_fingerprint":') >= 0
        or frame.find(b'"usage":') >= 0
        or frame.find(b'"error":') >= 0
    )
    return is_one and not has_more and frame.startswith(b"data: ") and frame.endswith(b"}\n\n")


def _completed(frame: bytes) -> bytes:
    return frame.replace(_TEXT, _TGI_TEXT)[:-3] + _TGI_END


def completion_reply(answer: dict[str, Any]) -> Reply:
    """A whole answer, with the fields that TGI's clients require."""
    answer = _with_fingerprint(answer)
    for choice in answer["choices"]:
        choice.setdefault("logprobs", None)
    return Reply(dump(answer))


def _with_fingerprint(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "system_fingerprint": answer.get("system_fingerprint") or _FINGERPRINT}


class ChatEvents(TerminatingStream):
    """Chat chunks, each with the role, the tool calls and the fingerprint that TGI's have."""

    check: EventCheck

    def __init__(self, *, hide_usage: bool) -> None:
        super().__init__(chat_error_event)
        self._framer = Framer()
        self.check = EventCheck("/v1/chat/completions")
        self._hide_usage = hide_usage
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        frames = self._framer.feed(chunk)
        if self._ended or self.failure is not None:
            return b""
        if self.check.repeats(frames):
            return _completed(frames)
        if _is_text(frames) and self.check.valid(frames):
            self.check.learn(frames)
            return _completed(frames)
        return b"".join(map(self._frame, datas(frames)))

    def _frame(self, data: bytes) -> bytes:
        if self._ended or self.failure is not None:
            return b""
        if (error := error_in(frame := encode(data))) is not None:
            self.failure = error
            return b""
        if not (self.check.valid(frame) or self.check.valid(frame := self.check.own(frame))):
            self.failure = MalformedAnswer(MALFORMED_RESPONSE)
            return b""
        if self.check.ended:
            self._ended = True
            return DONE
        if _is_text(frame):
            return _completed(frame)
        chunk = from_json(frame[6:-2])
        if not chunk["choices"]:
            self.usage = find_usage(data) or self.usage
            if self._hide_usage:
                return b""
        for choice in chunk["choices"]:
            choice["delta"] = {"role": "assistant", "content": None, "tool_calls": None, **choice["delta"]}
        if not chunk.get("system_fingerprint"):
            chunk["system_fingerprint"] = _FINGERPRINT
        return encode(dump(chunk))


@dataclass(frozen=True, slots=True)
class ChatCompletion(Translation):
    """A chat; `body` is vLLM's request. Only one that needs an extension needs to know the model."""

    body: Mapping[str, Any]
    hide_usage: bool
    stream: bool
    needs_model: bool
    field_names: ClassVar[Mapping[str, str]] = {"structured_outputs": "response_format"}
    """The client's names of vLLM's fields, for errors."""

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        body = request_object(request.body)
        translation = cls.from_body(body)
        model, deployment = named_model(body.get("model"), request, context)
        return Call("chat", translation.body, translation, model, deployment, field_names=cls.field_names)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Raises Unprocessable."""
        fields, hide_usage = chat_fields(body)
        return cls(fields, hide_usage, fields.get("stream", False), bool(engine_extensions(fields)))

    def engine_requests(self, serving: ServingContext) -> Flow:
        if self.needs_model:
            check_capabilities(self.body, serving)
        return no_lookups(EngineRequest("/v1/chat/completions", self.body))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return completion_reply(from_json(answer))

    def text(self, answer: Mapping[str, Any], serving: ServingContext) -> str:
        """The message's text alone, as `/vertex` returns it."""
        text: str = answer["choices"][0]["message"]["content"] or ""
        return text

    def open_stream(self, serving: ServingContext) -> Stream:
        return ChatEvents(hide_usage=self.hide_usage)


def chat_fields(body: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """vLLM's chat request, and whether its usage is hidden. Raises Unprocessable."""
    fields, hide_usage = engine_fields(body, Chat)
    settle_messages(fields)
    last = fields["messages"][-1]
    if last["role"] == "assistant" and last.get("content"):  # as TGI, which continues it
        fields |= CONTINUED
    _apply_template_fields(fields)
    _apply_tool_choice(fields)
    if not fields.get("logprobs"):
        fields.pop("top_logprobs", None)
    if "response_format" in fields:
        fields |= _response_format(fields.pop("response_format"))
    return fields, hide_usage


def _apply_template_fields(fields: dict[str, Any]) -> None:
    """`guideline` is for the chat template; `tool_prompt` comes after the last message, as in TGI."""
    if (guideline := fields.pop("guideline", None)) is not None:
        fields["chat_template_kwargs"] = {"guideline": guideline}
    if not (prompt := fields.pop("tool_prompt", "")) or not fields.get("tools"):
        return
    *before, last = fields["messages"]
    content, added = last.get("content") or "", f"\n---\n{prompt}"
    content = content + added if isinstance(content, str) else [*content, {"type": "text", "text": added}]
    fields["messages"] = [*before, {**last, "content": content}]


def _apply_tool_choice(fields: dict[str, Any]) -> None:
    """`tool_choice` may be a function's bare name; without tools it is left out."""
    settle_functions(fields)
    choice = fields.get("tool_choice")
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        if choice not in [tool["function"]["name"] for tool in fields["tools"]]:
            raise Unprocessable(f"Tool with name {choice} not found", param="tool_choice", code="tool_error")
        fields["tool_choice"] = {"type": "function", "function": {"name": choice}}


def _response_format(value: dict[str, Any]) -> dict[str, Any]:
    """A `response_format` in TGI's form becomes structured outputs; OpenAI's form is vLLM's."""
    if "value" not in value:
        return {"response_format": value}
    grammar = validated(Grammar, value, _invalid_response_format)
    return {"structured_outputs": structured_outputs(grammar, "response_format")}


def _invalid_response_format(problem: Problem) -> Unprocessable:
    return Unprocessable(f"`response_format`: {problem.message}", param="response_format")


@dataclass(frozen=True, slots=True)
class Completion(Translation):
    """Completions; `body` is vLLM's request, `max_tokens` if the client set it. Else the profile does: vLLM's is 16."""

    body: Mapping[str, Any]
    profile: Profile
    hide_usage: bool
    stream: bool
    needs_model = True

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        body = request_object(request.body)
        translation = cls.from_body(body, profile_of(context.config))
        model, deployment = named_model(body.get("model"), request, context)
        return Call("completions", translation.body, translation, model, deployment)

    @classmethod
    def from_body(cls, body: Mapping[str, Any], profile: Profile) -> Self:
        """Raises Unprocessable."""
        fields, hide_usage = engine_fields(body, Completions)
        if fields.pop("suffix", None) is not None:
            raise Unprocessable(
                "Suffix is not supported and can be achieved by preprocessing the prompt.",
                param="suffix",
                code="suffix not supported",
            )
        if isinstance(fields["prompt"], list) and len(fields["prompt"]) > MAX_PROMPTS:
            raise Unprocessable(
                f"Number of prompts exceeds the maximum allowed batch size of {MAX_PROMPTS}",
                param="prompt",
                code="batch size exceeded",
            )
        return cls(fields, profile, hide_usage, fields.get("stream", False))

    def engine_requests(self, serving: ServingContext) -> Flow:
        check_capabilities(self.body, serving)
        if "max_tokens" in self.body:
            return EngineRequest("/v1/completions", self.body)
        prompt = self.body["prompt"]
        prompts = [prompt] if isinstance(prompt, str) else prompt
        tokens = yield from tokenize([{"prompt": text} for text in prompts], serving)
        if tokens.room < 1:
            raise inputs_too_long(tokens, "prompt")
        max_tokens = min(self.profile.max_new_tokens or tokens.room, tokens.room)
        return EngineRequest("/v1/completions", {**self.body, "max_tokens": max_tokens})

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return completion_reply(from_json(answer))

    def open_stream(self, serving: ServingContext) -> Stream:
        return PassthroughStream(COMPLETIONS, hide_usage=self.hide_usage)
