from typing import Any

from app.dialects.common import token_events
from app.dialects.json_body import dump
from app.dialects.tgi.answer import compute_headers, finish_details, full_text, token_json
from app.dialects.tgi.errors import error_event
from app.dialects.tgi.generation import Generation
from app.engine.model import Model
from app.engine.tokens import Finish, Step, Token, TokenStream
from app.sse import encode


class TgiTokenEvents(token_events.TokenEvents):
    """One event per token; the last has the whole text, and the details if the client asked for them."""

    def __init__(self, generation: Generation, model: Model) -> None:
        super().__init__(TokenStream(model, top=generation.parameters.top_n_tokens), error_event)
        self._generation, self._model = generation, model
        self._index = 0
        self._last_id = 0
        self.headers = compute_headers(generation)

    def _event(self, step: Step) -> bytes:
        # An event needs a token: an end without one gets a special token, which clients leave out of the text.
        token = step.token or Token(self._last_id, "", 0.0, True)
        self._last_id = token.id
        self._index += 1
        event: dict[str, Any] = {
            "index": self._index,
            "token": token_json(token),
            "generated_text": None,
            "details": None,
        }
        if self._generation.parameters.top_n_tokens:
            event["top_tokens"] = [token_json(other) for other in token.top]
        if step.ending is not None:
            event |= self._end(step.ending)
        return encode(dump(event))

    def _end(self, finish: Finish) -> dict[str, Any]:
        """The last event's text and details."""
        generation = self._generation
        details = {**finish_details(generation, finish, self._model), "seed": generation.reported_seed()}
        self._ended = True
        return {
            "generated_text": full_text(generation, finish),
            "details": details if generation.parameters.details else None,
        }
