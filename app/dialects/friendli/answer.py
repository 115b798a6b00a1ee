"""What Friendli answers: choices with their seeds, texts and tokens. What ended an answer is in neither of these."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.dialects.base import Reply, ServingContext
from app.dialects.friendli.generation import Completion
from app.dialects.json_body import dump
from app.engine.token_reader import Finish, Reader, Step, Token, parsed
from app.errors import Broken, Incomplete

_FINISH_REASONS: Mapping[str, str] = {"stop": "stop", "repetition": "stop", "length": "length"}


def answer(completion: Completion, body: bytes, served: ServingContext) -> Reply:
    """The whole answer, with all that both SDKs and OpenAI's look for. Raises Broken on nonsense."""
    engines = parsed(body)
    if [told["index"] for told in engines["choices"]] != list(range(len(completion.seeds))):
        raise wrong_choices()
    found = [Choice(completion, index) for index, _ in enumerate(completion.seeds)]
    for choice, told in zip(found, engines["choices"], strict=True):
        for step in Reader(served.known_model, top=top(completion), keep_end=False).feed(told):
            choice.add(step)
    told = [choice.told() for choice in found]
    return Reply(dump({**head(engines), "choices": told, "usage": usage(found)}))


def head(engines: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer or a chunk begins with, from the engine's own."""
    return {
        "id": engines.get("id"),
        "object": "text_completion",
        "created": engines.get("created"),
        "model": engines.get("model"),
    }


def wrong_choices() -> Broken:
    """The engine has miscounted."""
    return Broken("The deployment's answer has not the choices that were asked for")


def top(completion: Completion) -> int:
    """How many of the likeliest tokens each token tells."""
    return completion.top_logprobs or 0


def told_at_once(completion: Completion) -> bool:
    """Whether the engine tells each token's text at once, and nothing of it but that."""
    return completion.top_logprobs is None and not completion.fields.stop


class Choice:
    """One choice, as its tokens come."""

    def __init__(self, completion: Completion, index: int) -> None:
        self._completion = completion
        self._tokens: list[Token] = []
        self._ending: Finish | None = None
        self.index = index
        self.text = ""

    def add(self, step: Step) -> None:
        """The next step. Raises Broken where the engine gave up."""
        if step.token is not None:
            self._tokens.append(step.token)
            self.text += shown(step.token)
        if step.ending is not None:
            if step.ending.finish_reason not in _FINISH_REASONS:
                raise Broken("The deployment gave up on the answer")
            self._ending = step.ending

    @property
    def finish_reason(self) -> str:
        """In OpenAI's words. Raises Incomplete before the end."""
        if self._ending is None:
            raise Incomplete("The deployment's answer has no end")
        return _FINISH_REASONS[self._ending.finish_reason]

    @property
    def prompt_tokens(self) -> int:
        """The prompt's length."""
        return self._ending.prompt_tokens if self._ending else 0

    @property
    def completion_tokens(self) -> int:
        """How many tokens are told."""
        return len(self._tokens)

    @property
    def seed(self) -> int:
        """What draws this choice again."""
        return self._completion.seeds[self.index]

    def told(self) -> dict[str, Any]:
        """The choice in a whole answer."""
        return {
            **self._plain(),
            "finish_reason": self.finish_reason,
            "logprobs": None,
            **self._scores(),
            **self.numbers(),
        }

    def completed(self) -> dict[str, Any]:
        """The choice in the last event of the classic form."""
        return {**self._plain(), **self._scores(), **self.numbers()}

    def numbers(self) -> dict[str, Any]:
        """One number per token, of the kind that was asked for."""
        fields = self._completion.fields
        name = "logits" if fields.include_output_logits else "logprobs" if fields.include_output_logprobs else None
        return {} if name is None else {name: [token.logprob for token in self._tokens]}

    def _scores(self) -> dict[str, Any]:
        return {} if self._completion.fields.logprobs is None else {"logprobs": logprobs(self._tokens, 0)}

    def _plain(self) -> dict[str, Any]:
        ids = [token.id for token in self._tokens]
        return {"index": self.index, "seed": self.seed, "text": self.text, "tokens": ids}


def usage(found: Sequence[Choice]) -> dict[str, int]:
    """The counts of an answer; the prompt is counted once."""
    prompt = max((choice.prompt_tokens for choice in found), default=0)
    completion = sum(choice.completion_tokens for choice in found)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def shown(token: Token) -> str:
    """What a token adds to the text: a special one nothing."""
    return "" if token.special else token.text


def logprobs(tokens: Sequence[Token], offset: int) -> dict[str, Any]:
    """Log-probabilities in OpenAI's form. `offset` is the first token's place in the text, in characters."""
    offsets, best = [], []
    for token in tokens:
        offsets.append(offset)
        offset += len(shown(token))
        # A clearer spelling does not exist: several tokens can read the same, the likeliest of them is told.
        likeliest = {other.text: other.logprob for other in reversed(token.top)}
        best.append({**likeliest, shown(token): token.logprob})
    return {
        "text_offset": offsets,
        "token_logprobs": [token.logprob for token in tokens],
        "tokens": [shown(token) for token in tokens],
        "top_logprobs": best,
    }
