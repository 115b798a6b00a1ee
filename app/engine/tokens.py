"""Reads vLLM's completions token by token, for dialects that send one event per token rather than per chunk.

One engine chunk may hold several tokens, since the engine merges what a slow reader has not taken. A token may hold no
character or several, and one character may need several tokens. So tokens are taken from the ids, and detokenized here
by the algorithm that the engine itself uses.

Guarantee: however the engine's stream is cut, the same tokens come out, and their texts, without those of special
tokens, are exactly the generated text. The token that completes a character has all of it, those before it have "".
Bytes at the end that complete no character have no text, as in the engine's answer.

The engine request must set `return_token_ids`; for log-probabilities also `logprobs` and `return_tokens_as_token_ids`.

`keep_end`: whether the output includes what ended it (a stop string, an end-of-sequence token). To exclude a stop
string, tokens are withheld until the engine sends their text, which it does once no stop string can begin there. A
token of which only a part precedes the stop string has that part as its text.

Everything here may raise ArithmeticError, AttributeError, LookupError, TypeError or ValueError on a malformed answer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from statistics import fmean
from typing import Any

from pydantic_core import from_json
from tokenizers.decoders import DecodeStream

from app.engine.answers import token_chunk
from app.engine.errors import error_in
from app.engine.model import Model
from app.engine.output import Usage
from app.errors import Broken, SwitchyardError
from app.sse import Framer, datas

_TOKEN_ID = "token_id:"
_CONTEXT = 8  # ids before a token that can affect its text: a character has at most four bytes


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `logprob` is None if the engine sent none; `top` are the likeliest tokens at its place, best first."""

    id: int
    text: str
    logprob: float | None
    special: bool
    top: Sequence["Token"] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a choice (vLLM's `finish_reason` and `stop_reason`), and its whole text."""

    finish_reason: str
    stop_reason: int | str | None
    text: str
    prompt_tokens: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """The next token of the choice at `index`; the last step has the `ending`.

    `token` is None if the engine sends the ending without a token.
    """

    index: int
    token: Token | None
    ending: Finish | None = None


class Detokenizer:
    """The text that each further id adds. An incomplete character waits for the ids that complete it."""

    def __init__(self, model: Model, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = model.tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        for id in prompt_ids[-_CONTEXT:]:
            self.text(id)

    def text(self, id: int) -> str:
        """The text that `id` adds; special tokens and unknown ids add nothing."""
        try:
            return self._stream.step(self._tokenizer, id) or ""
        except (OverflowError, TypeError):
            return ""
        except Exception as error:  # the Rust side raises plain Exception
            if not str(error).startswith("Invalid prefix"):
                raise Broken("The deployment's answer cannot be read as text") from error
        # Invalid UTF-8 can confuse the decoder; the engine restarts its own here as well.
        self._stream = DecodeStream(skip_special_tokens=True)
        return self._stream.step(self._tokenizer, id) or ""


class Reader:
    """Reads one choice, fed in any portions. `top` is the number of likeliest tokens listed for each token.

    `at_once`: the engine sends each token's text with the token and no log-probabilities, because the request has
    neither stop strings nor `logprobs`.
    """

    def __init__(self, model: Model, *, top: int = 0, keep_end: bool = True, at_once: bool = False) -> None:
        self._model = model
        self._top = top
        self._keep_end = keep_end
        self._at_once = at_once
        self._unread: list[int] = []
        self._detokenizer: Detokenizer | None = None
        self._emitted = ""
        self._engine_text = ""
        self._withheld: list[_WithheldToken] = []
        self.prompt_tokens = 0
        self.generated_tokens = 0

    def feed(self, choice: Mapping[str, Any]) -> list[Step]:
        """The tokens of a whole choice, or of one chunk's part of it."""
        if self._at_once and (token := self._next(choice)) is not None:
            return [Step(choice["index"], token)]
        return self._steps(choice)

    def _next(self, choice: Mapping[str, Any]) -> Token | None:
        """The fast path of nearly every chunk: one token, with the engine's text. The detokenizer catches up later."""
        ids, text = choice["token_ids"], choice["text"]
        if not text or len(ids) != 1 or self._withheld or self._detokenizer is None or choice["finish_reason"]:
            return None
        self._unread += ids
        self._emitted += text
        self._engine_text += text
        self.generated_tokens += 1
        return Token(ids[0], text, None, False)

    def _steps(self, choice: Mapping[str, Any]) -> list[Step]:
        if self._detokenizer is None:
            prompt_ids = choice["prompt_token_ids"]
            self._detokenizer = Detokenizer(self._model, prompt_ids)
            self.prompt_tokens = len(prompt_ids)
        ids, reason = choice["token_ids"], choice.get("finish_reason")
        detokenizer = self._caught_up(self._detokenizer)
        texts = [detokenizer.text(id) for id in ids]
        self._engine_text += choice["text"]
        self.generated_tokens += len(ids)
        stop = choice.get("stop_reason")
        if isinstance(stop, str) and self._keep_end:
            texts = _cut(texts, self._emitted, self._engine_text)
        tokens: Iterable[Token] = self._tokens(ids, texts, choice.get("logprobs"))
        if self._keep_end:
            self._emitted += "".join(texts)
        else:
            tokens = self._without_the_end([*map(_WithheldToken, tokens, texts)], reason, stop)
        index = choice["index"]
        steps = [Step(index, token) for token in tokens]
        if reason is None:
            return steps
        ending = Finish(reason, stop, self._emitted, self.prompt_tokens, self.generated_tokens)
        last = steps.pop().token if steps else None
        return [*steps, Step(index, last, ending)]

    def _caught_up(self, detokenizer: Detokenizer) -> Detokenizer:
        """A detokenizer primed with the preceding ids; a new one after many, whose texts were whole characters."""
        unread, self._unread = self._unread, []
        if len(unread) > _CONTEXT:
            self._detokenizer = detokenizer = Detokenizer(self._model, unread)
        else:
            for id in unread:
                detokenizer.text(id)
        return detokenizer

    def _without_the_end(
        self, waiting: list["_WithheldToken"], reason: str | None, stop: int | str | None
    ) -> Iterator[Token]:
        """The tokens that are certainly not part of the end-of-sequence or stop text."""
        waiting = self._withheld + waiting
        stopped = isinstance(stop, str)
        if reason == "stop" and not stopped:
            waiting = waiting[:-1]  # the end-of-sequence token, or a stop token
        known = len(waiting)
        if stopped or reason is None:
            known = self._known(waiting, partly=stopped)
        self._withheld = waiting[known:]
        for item in waiting[:known]:
            text = item.text[: len(self._engine_text) - len(self._emitted)] if stopped else item.text
            self._emitted += text
            yield item.token if text == item.text else replace(item.token, text=text)

    def _known(self, waiting: Sequence["_WithheldToken"], *, partly: bool) -> int:
        """The number of `waiting` tokens that are in the engine's text: in full, or `partly`.

        A token without text, such as a part of a character, belongs to the token after it.
        """
        known, end = 0, len(self._emitted)
        for count, item in enumerate(waiting, 1):
            start, end = end, end + len(item.text)
            if item.text and (start if partly else end - 1) < len(self._engine_text):
                known = count
        return known

    def _tokens(self, ids: Sequence[int], texts: Sequence[str], logprobs: Mapping[str, Any] | None) -> Iterator[Token]:
        for position, (id, text) in enumerate(zip(ids, texts, strict=True)):
            logprob = logprobs["token_logprobs"][position] if logprobs else None
            top = self._likeliest(logprobs["top_logprobs"][position]) if logprobs and self._top else ()
            special = id in self._model.special_ids
            yield Token(id, self._model.decode_one(id) if special else text, logprob, special, top)

    def _likeliest(self, logprobs: Mapping[str, float] | None) -> Sequence[Token]:
        # The engine adds the token it took, which need not be among the likeliest.
        best = sorted((logprobs or {}).items(), key=lambda item: -item[1])[: self._top]
        return [_standalone_token(self._model, int(key.removeprefix(_TOKEN_ID)), logprob) for key, logprob in best]


@dataclass(frozen=True, slots=True)
class _WithheldToken:
    """A token that is still withheld, and the text that it adds."""

    token: Token
    text: str


def _cut(texts: Sequence[str], emitted: str, whole: str) -> list[str]:
    """The last tokens' texts, ending where the engine's text does: a stop string can end inside a token."""
    if not (emitted + "".join(texts)).startswith(whole):
        return list(texts)
    room = max(0, len(whole) - len(emitted))
    ends = accumulate(map(len, texts), initial=0)
    return [text[: max(0, room - start)] for text, start in zip(texts, ends, strict=False)]


def _standalone_token(model: Model, id: int, logprob: float | None) -> Token:
    """A token decoded on its own, without context."""
    return Token(id, model.decode_one(id), logprob, id in model.special_ids)


def prompt_tokens(model: Model, choice: Mapping[str, Any]) -> list[Token]:
    """The prompt's tokens, each decoded on its own; the first has no log-probability.

    The engine request must set `prompt_logprobs`.
    """
    pairs = zip(choice["prompt_token_ids"], choice["prompt_logprobs"], strict=True)
    return [_standalone_token(model, id, scores[str(id)]["logprob"] if scores else None) for id, scores in pairs]


def parsed(answer: bytes) -> dict[str, Any]:
    """A whole answer, its choices sorted by index."""
    body = from_json(answer)
    return {**body, "choices": sorted(body["choices"], key=lambda choice: choice["index"])}


def choices(answer: bytes) -> list[dict[str, Any]]:
    """The choices of a whole answer, sorted by index."""
    found: list[dict[str, Any]] = parsed(answer)["choices"]
    return found


def mean_logprob(tokens: Sequence[Token]) -> float:
    """The mean log-probability per token, which ranks several choices; -inf if the engine sent none."""
    known = [token.logprob for token in tokens if token.logprob is not None]
    return fmean(known) if known else float("-inf")


class TokenStream:
    """Reads a completion's event stream as steps.

    `error` is the engine's own error event, after which everything is ignored. `head` is the first chunk.
    """

    def __init__(self, model: Model, *, top: int = 0, keep_end: bool = True, at_once: bool = False) -> None:
        self._reader = partial(Reader, model, top=top, keep_end=keep_end, at_once=at_once)
        self._framer = Framer()
        self._readers: dict[int, Reader] = {}
        self.error: SwitchyardError | None = None
        self.head: Mapping[str, Any] = {}

    @property
    def usage(self) -> Usage | None:
        """The token counts so far; None before the first chunk."""
        if not self._readers:
            return None
        readers = self._readers.values()
        return Usage(max(r.prompt_tokens for r in readers), sum(r.generated_tokens for r in readers))

    def feed(self, chunk: bytes) -> list[Step]:
        """The steps that `chunk` completes. Raises what `Reader` does on malformed chunks."""
        steps: list[Step] = []
        for data in datas(self._framer.feed(chunk)):
            if data != b"[DONE]" and self.error is None:
                steps += self._steps(data)
        return steps

    def _steps(self, data: bytes) -> list[Step]:
        try:
            body = token_chunk(data)
        except ValueError:
            self.error = error_in(b"data: " + data)
            if self.error is None:
                raise
            return []
        self.head = self.head or body
        steps: list[Step] = []
        for part in body["choices"]:
            steps += (self._readers.get(part["index"]) or self._new_reader(part["index"])).feed(part)
        return steps

    def _new_reader(self, index: int) -> Reader:
        self._readers[index] = reader = self._reader()
        return reader
