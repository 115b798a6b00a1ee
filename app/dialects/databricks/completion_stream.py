"""Streams of completions in which the text is not the engine's alone, or which end in order when time is up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.dialects.common.last_usage import LastChoiceUsageStream, read_chunk
from app.dialects.databricks.answer import counts
from app.dialects.json_body import dump
from app.engine.completion_collector import Tally
from app.engine.usage import find_usage
from app.errors import Broken, SwitchyardError, TimedOut
from app.sse import DONE, encode


@dataclass(frozen=True, slots=True)
class TextAffixes:
    """What stands around the text of the choices, of which each of `prompts` has `n`.

    `truncate`: what there is when time is up is the answer.
    """

    prompts: Sequence[str]
    n: int
    echo: bool
    suffix: str
    truncate: bool

    @property
    def is_plain(self) -> bool:
        """Whether the engine's chunks are the answer's."""
        return not (self.echo or self.suffix or self.truncate)

    @property
    def choices(self) -> int:
        """How many there are of all prompts."""
        return self.n * len(self.prompts)

    def before(self, index: int) -> str:
        """What a choice's text begins with."""
        return self.prompts[index // self.n] if self.echo else ""


class CompletionStream(LastChoiceUsageStream):
    """Edits every chunk. Indices stay the engine's running ones, as the OpenAI SDK expects of a stream."""

    def __init__(
        self, error_frames: Callable[[SwitchyardError], bytes], surroundings: TextAffixes, *, usage_apart: bool
    ) -> None:
        super().__init__(error_frames, counts=counts, apart=usage_apart)
        self._around = surroundings
        self._unbegun = set(range(surroundings.choices))
        self._unfinished = set(self._unbegun)
        self._tally = Tally(surroundings.n)
        self._head: dict[str, Any] = {}

    def _failed(self, error: SwitchyardError) -> bytes:
        cut_short = isinstance(error, TimedOut) and self._around.truncate and self._head
        if not cut_short:
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
        try:
            for part in chunk["choices"]:
                part["text"] = self._text(part["index"], part["text"], part["finish_reason"] is not None)
                if usage:
                    self._tally.add(part["index"], usage)
        except (KeyError, TypeError, IndexError) as error:
            raise Broken("The deployment's answer makes no sense") from error
        self._head = {name: value for name, value in chunk.items() if name != "choices"}
        return super()._choice(encode(dump(chunk)))

    def _text(self, index: int, text: str, finished: bool) -> str:
        if index in self._unbegun:
            self._unbegun.remove(index)
            text = self._around.before(index) + text
        if finished:
            self._unfinished.discard(index)
            text += self._around.suffix
        return text

    def _cut(self, index: int) -> bytes:
        choice = {"index": index, "text": "", "logprobs": None, "finish_reason": "length"}
        return encode(dump({**self._head, "choices": [choice]}))
