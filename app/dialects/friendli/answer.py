"""Friendli's completions: choices with their seeds, texts and tokens. Neither includes what ended the answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.dialects.base import Reply
from app.dialects.friendli.completion_request import CompletionRequest
from app.dialects.json_body import dump
from app.engine.errors import MALFORMED_RESPONSE
from app.engine.model import Model
from app.engine.tokens import Finish, Reader, Step, Token, parsed
from app.errors import Broken, Incomplete

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
