"""Answers name the deployment that gave them, not what its engine calls the model: clients send the name back.

Works on finished bytes, of every dialect. A pattern cannot match inside a JSON string: there the quotes are escaped.
"""

from pydantic_core import from_json

from app.dialects.json_body import dump
from app.upstream.target import Target


class DeploymentNames:
    """Rewrites `model` and `system_fingerprint` in the answers of one deployment."""

    def __init__(self, target: Target) -> None:
        name = dump(target.name)
        self._target = target
        self._engine_model, self._model = b'"model":' + dump(target.model), b'"model":' + name
        self._fingerprint = b'"system_fingerprint":"'
        self._own_fingerprint = self._fingerprint + name[1:-1] + b"-"

    def in_events(self, frames: bytes) -> bytes:
        """Whole frames of an event stream with the deployment's names."""
        return frames.replace(self._engine_model, self._model).replace(self._fingerprint, self._own_fingerprint)

    def in_answer(self, body: bytes) -> bytes:
        """A whole answer with the deployment's names. Members of inner objects, like a tool's input, stay."""
        at = body.find(self._engine_model)
        # Nearly always the name stands before anything nested, and the rest of a long answer need not be searched.
        is_outer = at >= 0 and body.count(b"{", 0, at) == 1 and body.find(b"[", 0, at) < 0
        if not is_outer and body.count(self._engine_model) > 1:
            answer = from_json(body)
            if answer.get("model") == self._target.model:
                answer["model"] = self._target.name
            body = dump(answer)
        else:
            body = body.replace(self._engine_model, self._model, 1)
        return body.replace(self._fingerprint, self._own_fingerprint, 1)
