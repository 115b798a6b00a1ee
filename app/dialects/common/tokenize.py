"""The tokens of prompts before the main request: from the router's copy of the tokenizer, else from the engine."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from app.dialects.base import EngineRequest, ServingContext
from app.engine.context import PromptTokens

_PATH = "/tokenize"


def tokenize(
    prompts: Sequence[Mapping[str, Any]], serving: ServingContext
) -> Generator[Sequence[EngineRequest], Sequence[Any], PromptTokens]:
    """A part of a flow (``yield from``). `prompts` are bodies of `/tokenize`, with ``prompt`` or ``messages``.

    Texts are tokenized here if the translation needs the model anyway; conversations need the engine's chat template.
    """
    model = serving.model
    if model is not None and all(prompt.keys() == {"prompt"} for prompt in prompts):
        encodings = model.encodings([prompt["prompt"] for prompt in prompts])
        return PromptTokens([encoding.ids for encoding in encodings], model.max_len)
    answers = yield [EngineRequest(_PATH, prompt) for prompt in prompts]
    return PromptTokens([answer["tokens"] for answer in answers], answers[0]["max_model_len"])
