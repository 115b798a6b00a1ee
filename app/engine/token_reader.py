"""vLLM's completions token by token, for dialects that tell each token and not each chunk.

One chunk of the engine's may hold several tokens, since it merges what a slow reader has not taken. A token may hold no
character or several, and one character may need several tokens. So the tokens are taken from the ids, and their texts
are made here, by the algorithm that the engine itself uses.

The promise: however the engine's stream is cut, the same tokens come out, and their texts, special tokens left out, are
exactly the generated text. The token that completes a character has all of it, those before it have "". Bytes at the
end that complete no character have no text, as in the engine's answer.

The question must have `return_token_ids`; `logprobs` and `return_tokens_as_token_ids` where those are to be told.

Some dialects tell what ended an answer (a stop string, an end-of-sequence token), others leave it out: `keep_end`. To
leave a stop string out, tokens wait until the engine tells their text, which it does when no stop string can begin
there. A token of which only a part comes before the stop string is told with that part.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean
from typing import Any

from pydantic_core import from_json
from tokenizers.decoders import DecodeStream

from app.engine.model import Model
from app.errors import Broken

_TOKEN_ID = "token_id:"
_CONTEXT = 8  # ids before a token that can bear on its text: a character has at most four bytes


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `logprob` is None where the engine gave none; `top` are the likeliest instead of it, best first."""

    id: int
    text: str
    logprob: float | None
    special: bool
    top: Sequence["Token"] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """How a choice ended, in vLLM's words, and its whole text."""

    finish_reason: str
    stop_reason: int | str | None
    text: str
    prompt_tokens: int
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """The next token of the choice at `index`; the last one has the `ending`.

    `token` is None where the engine tells an ending on its own.
    """

    index: int
    token: Token | None
    ending: Finish | None = None


class Detokenizer:
    """The text that each further id adds. What is incomplete waits for the ids that complete it."""

    def __init__(self, model: Model, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = model.tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        for id in prompt_ids[-_CONTEXT:]:
            self.text(id)

    def text(self, id: int) -> str:
        """What `id` adds; special tokens and unknown ids add nothing."""
        try:
            return self._stream.step(self._tokenizer, id) or ""
        except (OverflowError, TypeError):
            return ""
        except Exception as error:  # the Rust side raises plain Exception
            if not str(error).startswith("Invalid prefix"):
                raise Broken("The deployment's answer cannot be read as text") from error
        # Bytes that are no UTF-8 can confuse the decoder; the engine begins anew as well.
        self._stream = DecodeStream(skip_special_tokens=True)
        return self._stream.step(self._tokenizer, id) or ""


class Reader:
    """One choice, fed in any portions. `top` is how many of the likeliest tokens each token tells.

    `at_once`: the engine tells each text at once, and no log-probabilities: the question has neither stop strings nor
    `logprobs`.
    """

    def __init__(self, model: Model, *, top: int = 0, keep_end: bool = True, at_once: bool = False) -> None:
        self._model = model
        self._top = top
        self._keep_end = keep_end
        self._at_once = at_once
        self._unread: list[int] = []
        self._detokenizer: Detokenizer | None = None
        self._told = ""
        self._engine_text = ""
        self._withheld: list[_Waiting] = []
        self.prompt_tokens = 0
        self.generated_tokens = 0

    def feed(self, choice: Mapping[str, Any]) -> list[Step]:
        """The tokens of a choice, or of a chunk's part of it. Raises Broken on nonsense."""
        try:
            if self._at_once and (token := self._next(choice)) is not None:
                return [Step(choice["index"], token)]
            return self._steps(choice)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise Broken("The deployment's answer is no completion") from error

    def _next(self, choice: Mapping[str, Any]) -> Token | None:
        """Nearly every chunk: one token, whose text is what the engine tells. The detokenizer hears of it later."""
        ids, text = choice["token_ids"], choice["text"]
        if not text or len(ids) != 1 or self._withheld or self._detokenizer is None or choice["finish_reason"]:
            return None
        self._unread += ids
        self._told += text
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
            texts = _cut(texts, self._told, self._engine_text)
        tokens: Iterable[Token] = self._tokens(ids, texts, choice.get("logprobs"))
        if self._keep_end:
            self._told += "".join(texts)
        else:
            tokens = self._without_the_end([*map(_Waiting, tokens, texts)], reason, stop)
        index = choice["index"]
        steps = [Step(index, token) for token in tokens]
        if reason is None:
            return steps
        ending = Finish(reason, stop, self._told, self.prompt_tokens, self.generated_tokens)
        last = steps.pop().token if steps else None
        return [*steps, Step(index, last, ending)]

    def _caught_up(self, detokenizer: Detokenizer) -> Detokenizer:
        """One that knows what came before. After a long stream anew: all of its texts were whole characters."""
        unread, self._unread = self._unread, []
        if len(unread) > _CONTEXT:
            self._detokenizer = detokenizer = Detokenizer(self._model, unread)
        else:
            for id in unread:
                detokenizer.text(id)
        return detokenizer

    def _without_the_end(
        self, waiting: list["_Waiting"], reason: str | None, stop: int | str | None
    ) -> Iterator[Token]:
        """The tokens that are surely no part of what ends the answer."""
        waiting = self._withheld + waiting
        stopped = isinstance(stop, str)
        if reason == "stop" and not stopped:
            waiting = waiting[:-1]  # the end-of-sequence token, or another that was to stop
        known = len(waiting)
        if stopped or reason is None:
            known = self._known(waiting, partly=stopped)
        self._withheld = waiting[known:]
        for item in waiting[:known]:
            text = item.text[: len(self._engine_text) - len(self._told)] if stopped else item.text
            self._told += text
            yield item.token if text == item.text else replace(item.token, text=text)

    def _known(self, waiting: Sequence["_Waiting"], *, partly: bool) -> int:
        """How many of `waiting` the engine has told: in full, or `partly`.

        What has no text, such as a part of a character, belongs to the token that comes after it.
        """
        known, end = 0, len(self._told)
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
class _Waiting:
    """A token that is not told yet, and what it adds to the text."""

    token: Token
    text: str


def _cut(texts: Sequence[str], told: str, whole: str) -> list[str]:
    """The last tokens' texts, ending where the engine's text does: a stop string can end inside a token."""
    if not (told + "".join(texts)).startswith(whole):
        return list(texts)
    room = max(0, len(whole) - len(told))
    ends = accumulate(map(len, texts), initial=0)
    return [text[: max(0, room - start)] for text, start in zip(texts, ends, strict=False)]


def _standalone_token(model: Model, id: int, logprob: float | None) -> Token:
    """A token outside of a text."""
    return Token(id, model.decode_one(id), logprob, id in model.special_ids)


def prompt_tokens(model: Model, choice: Mapping[str, Any]) -> list[Token]:
    """The prompt's tokens, each spelt on its own; the first has no log-probability.

    The question had `prompt_logprobs`. Raises Broken on nonsense.
    """
    try:
        pairs = zip(choice["prompt_token_ids"], choice["prompt_logprobs"], strict=True)
        return [_standalone_token(model, id, told[str(id)]["logprob"] if told else None) for id, told in pairs]
    except (KeyError, TypeError, ValueError) as error:
        raise Broken("The deployment's answer does not tell about the prompt") from error


def parsed(body: bytes) -> dict[str, Any]:
    """A whole answer, its choices in order. Raises Broken where there are none."""
    try:
        told = from_json(body)
        return {**told, "choices": sorted(told["choices"], key=lambda choice: choice["index"])}
    except (ValueError, KeyError, TypeError) as error:
        raise Broken("The deployment's answer is no completion") from error


def choices(body: bytes) -> list[dict[str, Any]]:
    """The choices of a whole answer, in order. Raises Broken where there are none."""
    found: list[dict[str, Any]] = parsed(body)["choices"]
    return found


def mean_logprob(tokens: Sequence[Token]) -> float:
    """The mean log-probability, by which the best of several choices is chosen."""
    known = [token.logprob for token in tokens if token.logprob is not None]
    return fmean(known) if known else float("-inf")
