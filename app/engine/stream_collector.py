"""Whole answers that are collected from a stream of vLLM's. Pure: bytes in, a body out."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from app.engine.errors import ENDED_EARLY, MALFORMED_RESPONSE, engine_error
from app.errors import Broken, Incomplete
from app.sse import Decoder, Event

_ERROR = re.compile(r'\{("type": ?"error", ?)?"error"')


class StreamCollector(ABC):
    """Collects one request's stream. `request` is the body to send."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.request = request
        self._decoder = Decoder()
        self._ended = False

    def feed(self, chunk: bytes) -> None:
        """Raises Rejected or Broken on the engine's error event, and Broken on a malformed stream."""
        try:
            for event in self._decoder.feed(chunk):
                if self._is_last(event):
                    self._ended = True
                elif _ERROR.match(event.data):
                    raise engine_error(event.data.encode(), status=500)
                else:
                    self._add(from_json(event.data))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise Broken(MALFORMED_RESPONSE) from error

    def complete(self) -> bytes:
        """The complete body. Raises Incomplete if the stream has not ended in order, and Broken if it is malformed."""
        if not self._ended:
            raise Incomplete(ENDED_EARLY)
        try:
            return self._body()
        except (ValueError, KeyError, TypeError) as error:
            raise Broken(MALFORMED_RESPONSE) from error

    def at_deadline(self) -> bytes | None:
        """The body to answer with when the time is up; None if the request fails then."""
        return None

    def _is_last(self, event: Event) -> bool:
        return event.data == "[DONE]"

    @abstractmethod
    def _add(self, chunk: dict[str, Any]) -> None:
        """Takes the data of one event."""

    @abstractmethod
    def _body(self) -> bytes:
        """The body so far."""
