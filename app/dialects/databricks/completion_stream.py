"""Streams of completions with text around the engine's, or that end complete when time is up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.dialects.common.copies import check_copies
from app.dialects.common.last_usage import LastChoiceUsageStream, read_chunk
from app.dialects.databricks.answer import counts
from app.dialects.json_body import dump
from app.engine.collectors import Tally
from app.engine.usage import find_usage
from app.errors import SwitchyardError, TimedOut
from app.sse import DONE, encode


@dataclass(frozen=True, slots=True)
class TextAffixes:
    """Text added to the choices: each of `prompts` has `n` of them."""

    prompts: Sequence[str]
    n: int
    echo: bool
    suffix: str

    @property
    def are_empty(self) -> bool:
        """Whether nothing is added."""
        return not (self.echo or self.suffix)

    def check_copies(self) -> None:
        """Raises BadRequest if all choices together repeat too much of the request."""
        if self.echo:
            check_copies("echo", self.prompts, self.n - 1)
        check_copies("suffix", self.suffix, self.n * len(self.prompts) - 1)

    def before(self, index: int) -> str:
        """The text before the choice with this index, which counts through all prompts."""
        return self.prompts[index // self.n] if self.echo else ""


class CompletionStream(LastChoiceUsageStream):
    """Edits every chunk. Indices keep counting through all prompts, as OpenAI's SDK expects of a stream.

    `truncate_on_timeout`: a timeout ends the stream with the text so far, once there is some.
    """

    def __init__(
        self,
        error_frames: Callable[[SwitchyardError], bytes],
        affixes: TextAffixes,
        *,
        truncate_on_timeout: bool,
        usage_apart: bool,
    ) -> None:
        super().__init__("/v1/completions", error_frames, counts=counts, apart=usage_apart)
        self._affixes = affixes
        self._truncate = truncate_on_timeout
        self._not_started = set(range(affixes.n * len(affixes.prompts)))
        self._unfinished = set(self._not_started)
        self._tally = Tally(affixes.n)
        self._head: dict[str, Any] = {}

    def _failed(self, error: SwitchyardError) -> bytes:
        if not (self._truncate and self._head and isinstance(error, TimedOut)):
            return super()._failed(error)
        last = b"".join(self._choice(self._cut(index)) for index in sorted(self._unfinished))
        usage = encode(dump({**self._head, "choices": [], "usage": self._tally.usage()}))
        self.usage = find_usage(usage)
        return last + self._release(usage) + DONE

    def _passes(self, frames: bytes) -> bool:
        return False

    def _choice(self, frame: bytes) -> bytes:
        chunk = read_chunk(frame)
        usage = chunk.pop("usage", None)
        for choice in chunk["choices"]:
            choice["text"] = self._text(choice["index"], choice["text"], choice["finish_reason"] is not None)
            if usage:
                self._tally.add(choice["index"], usage)
        self._head = {name: value for name, value in chunk.items() if name != "choices"}
        return super()._choice(encode(dump(chunk)))

    def _text(self, index: int, text: str, finished: bool) -> str:
        if index in self._not_started:
            self._not_started.remove(index)
            text = self._affixes.before(index) + text
        if finished:
            self._unfinished.discard(index)
            text += self._affixes.suffix
        return text

    def _cut(self, index: int) -> bytes:
        choice = {"index": index, "text": "", "logprobs": None, "finish_reason": "length"}
        return encode(dump({**self._head, "choices": [choice]}))
