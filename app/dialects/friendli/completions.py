"""Friendli's completions: every field of its reference, and both forms of its streams.

- Friendli's completions: choices with their seeds, texts and tokens. Neither includes what ended the answer.
- Friendli's two forms of a stream, one event per token. Neither has error events: on failure the connection breaks.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

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
)
from app.dialects.bodies import dump
from app.dialects.common.requests import tokenize
from app.dialects.common.streams import TokenEvents
from app.dialects.friendli.completion_request import (
    CompletionRequest,
    check_extensions,
    check_ids,
    check_replaced_embeddings,
    check_scores,
    lengths,
    with_bad_words,
)
from app.dialects.friendli.fields import Form, form
from app.dialects.friendli.rules import read_completions
from app.engine.context import PromptTokens
from app.engine.errors import MALFORMED_RESPONSE
from app.engine.model import Model
from app.engine.tokens import Finish, Reader, Step, Token, TokenStream, parsed
from app.errors import Broken, Incomplete
from app.sse import DONE, encode

_FINISH_REASONS: Mapping[str, str] = {"stop": "stop", "repetition": "stop", "length": "length"}


def completion(request: CompletionRequest, answer: bytes, model: Model) -> Reply:
    """The whole answer, a superset of what both SDKs and OpenAI's read. Raises Broken on wrong or failed choices."""
    body = parsed(answer)
    if [choice["index"] for choice in body["choices"]] != list(range(len(request.seeds))):
        raise wrong_choices()
    choices = [Choice(request, index) for index, _ in enumerate(request.seeds)]
    for choice, engine_choice in zip(choices, body["choices"], strict=True):
        for step in Reader(model, top=request.top_logprobs or 0, keep_end=False).feed(engine_choice):
            choice.add(step)
    rendered = [choice.in_answer() for choice in choices]
    return Reply(dump({**head(body), "choices": rendered, "usage": usage(choices)}))


def head(body: Mapping[str, Any]) -> dict[str, Any]:
    """The first members of an answer or a chunk, from the engine's."""
    return {
        "id": body.get("id"),
        "object": "text_completion",
        "created": body.get("created"),
        "model": body.get("model"),
    }


def wrong_choices() -> Broken:
    """The engine's choices are not those of the request."""
    return Broken(MALFORMED_RESPONSE)


class Choice:
    """One choice, collected token by token."""

    def __init__(self, request: CompletionRequest, index: int) -> None:
        self._request = request
        self._tokens: list[Token] = []
        self._ending: Finish | None = None
        self.index = index
        self.text = ""

    def add(self, step: Step) -> None:
        """The next step. Raises Broken if the engine aborted the choice."""
        if step.token is not None:
            self._tokens.append(step.token)
            self.text += visible_text(step.token)
        if step.ending is not None:
            if step.ending.finish_reason not in _FINISH_REASONS:
                raise Broken("The deployment aborted the answer")
            self._ending = step.ending

    @property
    def finish_reason(self) -> str:
        """OpenAI's. Raises Incomplete before the end."""
        if self._ending is None:
            raise Incomplete(MALFORMED_RESPONSE)
        return _FINISH_REASONS[self._ending.finish_reason]

    @property
    def prompt_tokens(self) -> int:
        """The prompt's length; 0 before the end."""
        return self._ending.prompt_tokens if self._ending else 0

    @property
    def completion_tokens(self) -> int:
        """The number of tokens of the choice, without the token or stop sequence that ended it."""
        return len(self._tokens)

    @property
    def seed(self) -> int:
        """The seed that reproduces this choice."""
        return self._request.seeds[self.index]

    def in_answer(self) -> dict[str, Any]:
        """The choice in a whole answer."""
        return {
            **self._text_and_tokens(),
            "finish_reason": self.finish_reason,
            "logprobs": None,
            **self._logprobs(),
            **self.scores(),
        }

    def in_complete_event(self) -> dict[str, Any]:
        """The choice in the last event of a classic stream."""
        return {**self._text_and_tokens(), **self._logprobs(), **self.scores()}

    def scores(self) -> dict[str, Any]:
        """``logits`` or ``logprobs``, one number per token, if the request asks for them."""
        fields = self._request.fields
        name = "logits" if fields.include_output_logits else "logprobs" if fields.include_output_logprobs else None
        return {} if name is None else {name: [token.logprob for token in self._tokens]}

    def _logprobs(self) -> dict[str, Any]:
        return {} if self._request.fields.logprobs is None else {"logprobs": logprobs(self._tokens, 0)}

    def _text_and_tokens(self) -> dict[str, Any]:
        ids = [token.id for token in self._tokens]
        return {"index": self.index, "seed": self.seed, "text": self.text, "tokens": ids}


def usage(choices: Sequence[Choice]) -> dict[str, int]:
    """An answer's token counts; the prompt counts once."""
    prompt = max((choice.prompt_tokens for choice in choices), default=0)
    generated = sum(choice.completion_tokens for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def visible_text(token: Token) -> str:
    """The text that a token adds; empty if it is special."""
    return "" if token.special else token.text


def logprobs(tokens: Sequence[Token], offset: int) -> dict[str, Any]:
    """Log-probabilities in OpenAI's format. `offset` is the first token's place in the text, in characters."""
    offsets, top = [], []
    for token in tokens:
        offsets.append(offset)
        offset += len(visible_text(token))
        # Several tokens can have the same text, which is the key here: the likeliest of them wins.
        likeliest = {other.text: other.logprob for other in reversed(token.top)}
        top.append({**likeliest, visible_text(token): token.logprob})
    return {
        "text_offset": offsets,
        "token_logprobs": [token.logprob for token in tokens],
        "tokens": [visible_text(token) for token in tokens],
        "top_logprobs": top,
    }


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


def parse_completion(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    client_form = form(request.headers)
    wanted = CompletionRequest.from_fields(read_completions(body, client_form), context.random)
    engine_body = wanted.engine_body()
    translation = CompletionTranslation(wanted, engine_body, client_form, stream=wanted.fields.stream)
    return Call("completions", engine_body, translation, timeout_s=wanted.fields.timeout_s)


@immutable
class CompletionTranslation(Translation):
    """POST …/v1/completions. `body` is the engine's, except for what depends on the model."""

    request: CompletionRequest
    body: dict[str, Any]
    form: Form
    stream: bool = False
    needs_model = True

    def engine_requests(self, serving: ServingContext) -> Flow:
        fields, model = self.request.fields, serving.known_model
        check_ids(fields, model)
        if fields.prompt is None:
            prompt = PromptTokens([fields.tokens], model.max_len)
        else:
            prompt = yield from tokenize([{"prompt": fields.prompt}], serving)
        body = {**self.body, "prompt": prompt.ids[0], **lengths(fields, prompt)}
        check_replaced_embeddings(fields, prompt, model)
        check_scores(fields, serving)
        body = yield from with_bad_words(body, fields, serving)
        check_extensions(body, serving, "bad_words" if fields.bad_words else "bad_word_tokens")
        return EngineRequest(self.request.path, body)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return completion(self.request, answer, serving.known_model)

    def open_stream(self, serving: ServingContext) -> Stream:
        events = ModernChunks if self.form == "modern" else ClassicEvents
        return events(self.request, serving.known_model)
