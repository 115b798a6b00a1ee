"""Makes answers name their deployment instead of the engine's model name: clients send the name back.

Works on finished bytes, of every dialect. A pattern cannot match inside a JSON string: there the quotes are escaped.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from pydantic_core import from_json

from app.dialects.bodies import dump
from app.engine.answers import EventCheck, Learned
from app.upstream.target import Target

_HEAD = 1024
PIECE = 1024 * 1024
"""Bytes of a long answer that are searched at a time."""

_MOST = 4096

_SPACED = re.compile(rb'\s*\{\s*"[^"\\]*": ')
"""The beginning of a JSON object that is not compact, as vLLM's are."""


class DeploymentNames:
    """Rewrites `model` and `system_fingerprint` in the answers of one deployment."""

    def __init__(self, name: str, model: str) -> None:
        """The deployment's name, and the engine's name for its model."""
        self._names = name, model
        own = dump(name)
        self._engine_model, self._model = b'"model":' + dump(model), b'"model":' + own
        self._fingerprint = b'"system_fingerprint":"'
        self._own_fingerprint = self._fingerprint + own[1:-1] + b"-"
        self._spaced = [
            (engines.replace(b":", b": ", 1), ours.replace(b":", b": ", 1))
            for engines, ours in ((self._engine_model, self._model), (self._fingerprint, self._own_fingerprint))
        ]

    def in_events(self, frames: bytes) -> bytes:
        """Whole frames of an event stream with the deployment's names."""
        frames = frames.replace(self._engine_model, self._model).replace(self._fingerprint, self._own_fingerprint)
        if frames.find(b'": "') >= 0:  # a server other than vLLM may put spaces into its JSON
            for engines, ours in self._spaced:
                frames = frames.replace(engines, ours)
        return frames

    def in_answer(self, body: bytes) -> bytes:
        """A whole answer with the deployment's names. Members of inner objects, like a tool's input, stay."""
        if _SPACED.match(body):
            body = dump(from_json(body))
        if not self._names_outside(body) and body.count(self._engine_model) > 1:
            answer, (name, model) = from_json(body), self._names
            if answer.get("model") == model:
                answer["model"] = name
            body = dump(answer)
        else:
            body = body.replace(self._engine_model, self._model, 1)
        return body.replace(self._fingerprint, self._own_fingerprint, 1)

    def in_long_answer(self, body: bytes, piece: int = PIECE) -> Sequence[bytes | memoryview]:
        """`in_answer` in pieces: copying megabytes takes milliseconds, and so does searching them, which is done
        `piece` by piece so that other threads can run."""
        if not self._names_outside(body):
            return [self.in_answer(body)]
        model, fingerprint = body.find(self._engine_model), _found(body, self._fingerprint, piece)
        renamed = [(model, self._engine_model, self._model)]
        if fingerprint >= 0:
            renamed.append((fingerprint, self._fingerprint, self._own_fingerprint))
        rest, done = memoryview(body), 0
        pieces: list[bytes | memoryview] = []
        for at, old, new in sorted(renamed):
            pieces += [rest[done:at], new]
            done = at + len(old)
        return [*pieces, rest[done:]]

    def _names_outside(self, body: bytes) -> bool:
        """Whether the answer's own name comes before any nested object, as nearly always: then it is the first."""
        at = body.find(self._engine_model, 0, _HEAD)
        return at >= 0 and body.count(b"{", 0, at) == 1 and body.find(b"[", 0, at) < 0


class EventNames:
    """Does what `DeploymentNames.in_events` does, for one stream with its `check`: of events that differ in a text
    alone, what surrounds it is searched once."""

    def __init__(self, names: DeploymentNames, check: EventCheck | None) -> None:
        self._names, self._check = names, check
        self._learned: Learned | None = None
        self._before = self._after = b""

    def renamed(self, frames: bytes, *, are_checked: bool) -> bytes:
        """Whole frames with the deployment's names. `are_checked`: they are what the check has seen last."""
        check = self._check
        if check is None or not are_checked or check.varying is None:
            return self._names.in_events(frames)
        if check.learned is not self._learned and not self._learn(check.learned):
            return self._names.in_events(frames)
        return self._before + check.varying + self._after

    def _learn(self, learned: Learned) -> bool:
        """Whether no name is in the part that varies. No name begins or ends in a text without quotes."""
        before, between, after = map(self._names.in_events, learned[:3])
        if between != learned[1]:
            return False
        self._learned, self._before, self._after = learned, before, after
        return True


@lru_cache(_MOST)
def _names(name: str, model: str) -> DeploymentNames:
    return DeploymentNames(name, model)


def names_of(target: Target) -> DeploymentNames:
    """The names for the answers of this deployment."""
    return _names(target.name, target.model)


def _found(body: bytes, what: bytes, piece: int) -> int:
    """`body.find(what)`, for a `what` with an underscore."""
    for start in range(0, len(body), piece):
        end = start + piece + len(what) - 1
        # Embeddings, the longest answers, have no underscore among their numbers, and a single byte is found ten times
        # as fast.
        if body.find(b"_", start, end) >= 0 and (at := body.find(what, start, end)) >= 0:
            return at
    return -1
