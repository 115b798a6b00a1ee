"""Friendli's two forms of a stream, one event per token. Neither has error events: on failure the connection breaks."""

from abc import abstractmethod
from functools import cached_property
from typing import Any

from app.dialects.common.token_events import TokenEvents
from app.dialects.friendli.answer import Choice, head, logprobs, usage, visible_text, wrong_choices
from app.dialects.friendli.completion_request import CompletionRequest
from app.dialects.json_body import dump
from app.engine.model import Model
from app.engine.tokens import Step, Token, TokenStream
from app.sse import DONE, encode


class _Events(TokenEvents):
    """A stream that ends when all choices have ended."""

    def __init__(self, request: CompletionRequest, model: Model) -> None:
        top = request.top_logprobs or 0
        super().__init__(TokenStream(model, top=top, keep_end=False, at_once=request.gets_text_at_once), None)
        self._request = request
        self._choices = [Choice(request, index) for index, _ in enumerate(request.seeds)]
        self._open = len(self._choices)

    def _event(self, step: Step) -> bytes:
        if not 0 <= step.index < len(self._choices):
            raise wrong_choices()
        choice = self._choices[step.index]
        event = self._token(choice, step.token) if step.token else b""
        choice.add(step)
        if step.ending is None:
            return event
        self._open -= 1
        event += self._choice_ended(choice)
        if self._open:
            return event
        self._ended = True
        return event + self._end()

    @abstractmethod
    def _token(self, choice: Choice, token: Token) -> bytes:
        """The event for a token, which `choice` does not have yet."""

    @abstractmethod
    def _choice_ended(self, choice: Choice) -> bytes:
        """The event for the end of one choice."""

    @abstractmethod
    def _end(self) -> bytes:
        """The event for the end of all choices."""


class ClassicEvents(_Events):
    """`token_sampled` for each token, and one `complete` with all choices."""

    def _token(self, choice: Choice, token: Token) -> bytes:
        event = b'data: {"event":"token_sampled","index":%d,"text":%b,"token":%d}\n\n'
        return event % (choice.index, dump(visible_text(token)), token.id)

    def _choice_ended(self, choice: Choice) -> bytes:
        return b""

    def _end(self) -> bytes:
        choices = [choice.in_complete_event() for choice in self._choices]
        return encode(dump({"event": "complete", "choices": choices, "usage": usage(self._choices)}))


class ModernChunks(_Events):
    """OpenAI's chunks, each with its token, and `[DONE]`. A choice's last chunk has its seed."""

    def _token(self, choice: Choice, token: Token) -> bytes:
        if self._request.fields.logprobs is None:
            chunk = b'%b,"choices":[{"index":%d,"text":%b,"token":%d,"finish_reason":null,"logprobs":null}]}\n\n'
            return chunk % (self._head, choice.index, dump(visible_text(token)), token.id)
        part = {"index": choice.index, "text": visible_text(token), "token": token.id, "finish_reason": None}
        return self._chunk([{**part, "logprobs": logprobs([token], len(choice.text))}])

    def _choice_ended(self, choice: Choice) -> bytes:
        last = {"index": choice.index, "text": "", "finish_reason": choice.finish_reason, "seed": choice.seed}
        return self._chunk([{**last, **choice.scores()}])

    def _end(self) -> bytes:
        counts = self._request.fields.shows_usage
        return (self._chunk([], usage=usage(self._choices)) if counts else b"") + DONE

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"%b,%b\n\n" % (self._head, dump({"choices": choices, **more})[1:])

    @cached_property
    def _head(self) -> bytes:
        """The beginning of every chunk."""
        return b"data: " + dump(head(self._tokens.head)).removesuffix(b"}")
