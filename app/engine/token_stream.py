from collections.abc import Mapping
from functools import partial
from typing import Any

from app.engine.answers import token_chunk
from app.engine.errors import error_in
from app.engine.model import Model
from app.engine.token_reader import Reader, Step
from app.engine.usage import Usage
from app.errors import SwitchyardError
from app.sse import Framer, datas


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
