"""The tokens of prompts before the main request: from the router's copy of the tokenizer, else from the engine."""

from array import array
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from app.dialects.base import EngineRequest, ServingContext
from app.engine.model import Model
from app.engine.pieces import MOST_CHARACTERS, Piece, Unsplittable
from app.engine.usage import PromptTokens
from app.errors import BadRequest

_PATH = "/tokenize"

_CHARACTERS_PER_TOKEN = 8
"""Twice what texts have: one with more characters for each of a context's tokens does not fit into it."""

T = TypeVar("T")
Steps = Generator[Sequence[EngineRequest], Sequence[Any], T]
"""A part of a flow (``yield from``). It yields no requests between two steps of long work: see `dialects.base.Flow`."""


def tokenize(
    prompts: Sequence[Mapping[str, Any]], serving: ServingContext, field: str = "prompt", *, whole: bool = False
) -> Steps[PromptTokens]:
    """The tokens of `prompts`: bodies of `/tokenize`, with ``prompt`` or ``messages``.

    Texts are tokenized here if the translation needs the model anyway; conversations need the engine's chat template.
    Unless it is `whole`, a text is read until it exceeds the context. `field` is the client's name of the texts.
    Raises BadRequest.
    """
    model = serving.model
    if model is not None and all(prompt.keys() == {"prompt"} for prompt in prompts):
        found: list[Sequence[int]] = []
        for prompt in prompts:
            if found:
                yield ()
            ids = array("I")  # a tenth of a list's memory
            most = None if whole else model.max_len
            is_partial = yield from in_steps(model, prompt["prompt"], field, partial(_read, ids, most))
            found.append(ids.tolist() if len(ids) <= model.max_len else ids)
            if is_partial:
                return PromptTokens(found, model.max_len, is_partial=True)
        return PromptTokens(found, model.max_len)
    answers = yield [EngineRequest(_PATH, prompt) for prompt in prompts]
    return PromptTokens([answer["tokens"] for answer in answers], answers[0]["max_model_len"])


def in_steps(model: Model, text: str, field: str, use: Callable[[Piece], object]) -> Steps[bool]:
    """Calls `use` with each piece of the text's tokens, until it returns something true, and returns whether it did.

    Raises BadRequest.
    """
    if len(text) > (most := max(MOST_CHARACTERS, _CHARACTERS_PER_TOKEN * model.max_len)):
        raise BadRequest(f"{field}: has {len(text)} characters; {most} are tokenized at most", param=field)
    try:
        for index, piece in enumerate(model.pieces(text)):
            if index:
                yield ()
            if use(piece):
                return True
    except Unsplittable as error:
        message = f"{field}: has a word of more than {error.longest} characters, which cannot be tokenized"
        raise BadRequest(message, param=field) from error
    return False


def _read(ids: "array[int]", most: int | None, piece: Piece) -> bool:
    """Adds the piece's ids, unless there are more than `most` already."""
    if most is not None and len(ids) > most:
        return True
    ids.extend(piece.ids)
    return False
