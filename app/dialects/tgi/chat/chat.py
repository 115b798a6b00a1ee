"""`/v1/chat/completions`: a chat in OpenAI's form, with TGI's own fields and limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

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
from app.dialects.common.engine_request import drop_empty_tools, engine_extensions
from app.dialects.spelling import request_object
from app.dialects.tgi.addressing import named_model
from app.dialects.tgi.chat.answer import ChatEvents, completion_reply
from app.dialects.tgi.chat.fields import Chat
from app.dialects.tgi.chat.request import engine_fields
from app.dialects.tgi.deployment_checks import check_capabilities
from app.dialects.tgi.fields import Grammar
from app.dialects.tgi.grammar import structured_outputs
from app.dialects.validation import Problem, validated
from app.errors import Unprocessable


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
        translation = cls.of(body)
        model, deployment = named_model(body.get("model"), request, context)
        return Call("chat", translation.body, translation, model, deployment, field_names=cls.field_names)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
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
    drop_empty_tools(fields)
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
