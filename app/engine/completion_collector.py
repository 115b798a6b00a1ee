"""Collects a stream of vLLM's completion chunks into the body of the unary response, complete or partial.

Pure: bytes in, a body out. Contract: vLLM 0.29, `entrypoints/openai/completion`. With `continuous_usage_stats` each
chunk carries its choice's token counts, so that a truncated stream has a usage too.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from app.engine.expected import choices_of
from app.engine.stream_collector import StreamCollector

STREAM_OPTIONS: Mapping[str, bool] = {"include_usage": True, "continuous_usage_stats": True}
"""Requests the counts on every chunk and their sums at the end."""

_LOGPROBS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


class Tally:
    """Sums up a request with `n` choices per prompt, from the latest counts of each choice."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._latest: dict[int, Mapping[str, int]] = {}

    def add(self, index: int, usage: Mapping[str, int]) -> None:
        """Takes the counts on a chunk of the choice `index`: its prompt's tokens, and its own so far."""
        self._latest[index] = usage

    def usage(self) -> dict[str, int]:
        """A usage object. A prompt counts once, and only if one of its choices has started."""
        prompts = {index // self._n: usage["prompt_tokens"] for index, usage in self._latest.items()}
        prompt, completion = sum(prompts.values()), sum(u["completion_tokens"] for u in self._latest.values())
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class CompletionCollector(StreamCollector):
    """Collects one completion request's stream."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__({**body, "stream": True, "stream_options": dict(STREAM_OPTIONS)})
        self._tally = Tally(body.get("n", 1))
        self._usage: dict[str, Any] | None = None
        self._head: dict[str, Any] = {}
        # Created on arrival: the number that a request asks for is unchecked.
        self._count = choices_of(body)
        self._choices: dict[int, _Choice] = {}

    def at_deadline(self) -> bytes | None:
        """The body so far, once a choice has started; an unfinished one has the finish reason `length`."""
        return self._body() if self._choices else None

    def _body(self) -> bytes:
        empty = _Choice()
        choices = [{"index": index, **self._choices.get(index, empty).fields()} for index in range(self._count)]
        return to_json({**self._head, "choices": choices, "usage": self._usage or self._tally.usage()})

    def _add(self, chunk: dict[str, Any]) -> None:
        choices, usage = chunk.pop("choices"), chunk.pop("usage", None)
        self._head |= chunk
        if not choices:
            self._usage = usage or self._usage
        for part in choices:
            if not 0 <= (index := part["index"]) < self._count:
                raise IndexError(index)
            self._choices.setdefault(index, _Choice()).add(part)
            if usage:
                self._tally.add(part["index"], usage)


class _Choice:
    """One choice as it grows."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._logprobs: dict[str, list[Any]] | None = None
        self._end: dict[str, Any] = {"finish_reason": "length", "stop_reason": None}

    def add(self, part: Mapping[str, Any]) -> None:
        self._texts.append(part["text"])
        if (logprobs := part.get("logprobs")) is not None:
            self._logprobs = self._logprobs or {name: [] for name in _LOGPROBS}
            for name in _LOGPROBS:
                self._logprobs[name] += logprobs[name]
        if part["finish_reason"] is not None:
            self._end = {name: part.get(name) for name in self._end}

    def fields(self) -> dict[str, Any]:
        return {"text": "".join(self._texts), "logprobs": self._logprobs, **self._end}
