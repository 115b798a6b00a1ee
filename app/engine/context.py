"""The model's context window: the tokens that a prompt leaves for the answer, and vLLM's errors if it leaves too few.

vLLM counts a prompt only as far as the answer's tokens leave room, so that its count says neither how long the prompt
is nor whether it would fit with a shorter answer. Clients need to know: they then send less, or ask for less. Contract:
vLLM 0.29, `renderers/params.py`, `entrypoints/serve/utils/api_utils.py`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import ContextExceeded


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The token ids of a request's prompts. `context` is the model's length in tokens, prompt and answer together.

    `is_partial`: the last prompt has more than these ids, which exceed the context.
    """

    ids: Sequence[Sequence[int]]
    context: int
    is_partial: bool = False

    @property
    def longest(self) -> int:
        """The length of the longest prompt, in tokens."""
        return max(map(len, self.ids))

    @property
    def counted(self) -> str:
        """The length of the longest prompt, for errors."""
        return f"more than {self.context}" if self.is_partial else str(self.longest)

    @property
    def room(self) -> int:
        """The tokens that the longest prompt leaves for the answer: the largest `max_tokens`. Below 1: none."""
        return self.context - self.longest


_CONTEXT = re.compile(r"maximum context length (?:is |\()(\d+)")
_WANTED = re.compile(r"you requested (\d+) output tokens")
_TOO_LONG = re.compile(r"prompt contains (at least )?(\d+) input tokens|^Input length \((\d+)\)")
_ALONE = re.compile(r"^(?:\w+: )?max_\w+=(\d+) cannot be greater than max_model_len=(?:\w+=)?(\d+)")

_COUNTED: Mapping[str, tuple[str, frozenset[str]]] = {
    "/v1/chat/completions": (
        "/tokenize",
        frozenset(
            "add_generation_prompt add_special_tokens chat_template chat_template_kwargs continue_final_message "
            "media_io_kwargs messages mm_processor_kwargs tools".split()
        ),
    ),
    "/v1/completions": ("/tokenize", frozenset({"add_special_tokens", "prompt"})),
    "/v1/messages": (
        "/v1/messages/count_tokens",
        frozenset("chat_template_kwargs messages system tool_choice tools".split()),
    ),
}
"""Path to the path where vLLM counts such a prompt, and the fields that make it up."""


def overflow(message: str, status: int) -> ContextExceeded | None:
    """The error of which this is vLLM's sentence; None if it is another."""
    if (alone := _ALONE.match(message)) is not None:
        return ContextExceeded(int(alone[2]), None, int(alone[1]), is_exact=False, status=status)
    if (context := _CONTEXT.search(message)) is None:
        return None
    wanted, prompt = _WANTED.search(message), _TOO_LONG.search(message)
    return ContextExceeded(
        int(context[1]),
        int(prompt[2] or prompt[3]) if prompt else None,
        int(wanted[1]) if wanted else 0,
        is_exact=prompt is not None and not prompt[1],
        status=status,
    )


def counting(path: str, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The path and the body by which vLLM counts the prompt of a request; None where it counts no such prompt."""
    if path not in _COUNTED or not isinstance(body.get("prompt", ""), str):
        return None
    counted, names = _COUNTED[path]
    return counted, {name: value for name, value in body.items() if name in names}


def counted(answer: Mapping[str, Any]) -> int:
    """The number of tokens in the answer to `counting`'s request."""
    number: int = answer["input_tokens"] if "input_tokens" in answer else len(answer["tokens"])
    return number
