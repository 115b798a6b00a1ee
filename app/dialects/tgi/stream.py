from typing import Any

from app.dialects.common import token_events
from app.dialects.json_body import dump
from app.dialects.tgi.answer import _ended, _token, compute_headers, whole_text
from app.dialects.tgi.errors import error_event
from app.dialects.tgi.generation import Generation
from app.engine.model import Model
from app.engine.token_reader import Finish, Step, Token
from app.engine.token_stream import TokenStream
from app.sse import encode


class TgiTokenEvents(token_events.TokenEvents):
    """TGI's: the last has the whole text, and the details where they were asked for."""

    def __init__(self, generation: Generation, model: Model) -> None:
        super().__init__(TokenStream(model, top=generation.parameters.top_n_tokens), error_event)
        self._generation, self._model = generation, model
        self._index = 0
        self._last_id = 0
        self.headers = compute_headers(generation)

    def _event(self, step: Step) -> bytes:
        # An ending of its own still needs a token to hang on: one that clients leave out of the text.
        token = step.token or Token(self._last_id, "", 0.0, True)
        self._last_id = token.id
        self._index += 1
        event: dict[str, Any] = {"index": self._index, "token": _token(token), "generated_text": None, "details": None}
        if self._generation.parameters.top_n_tokens:
            event["top_tokens"] = [_token(other) for other in token.top]
        if step.ending is not None:
            self._close(event, step.ending)
        return encode(dump(event))

    def _close(self, event: dict[str, Any], ending: Finish) -> None:
        ended = _ended(self._generation, ending, self._model)
        event["generated_text"] = whole_text(self._generation, ending)
        if self._generation.parameters.details:
            event["details"] = {**ended, "seed": self._generation.seed}
        self._ended = True
