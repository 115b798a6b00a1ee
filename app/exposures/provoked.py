"""What a request itself does to its outcome: it says nothing about the variant that answers it.

Two kinds. Parameters that may *decide* an outcome, whatever model answers: `allowed_token_ids: [eos]` leaves every
answer empty. Such a request is no evidence about that outcome. And requests that may be *slow* by their size or by what
they ask for. Those, like prompts that ask for an empty answer, are evidence only together with other callers':
`app.experiments.analysis.witnesses`.

Pure functions of a request in vLLM's fields.
"""

from collections.abc import Callable, Mapping
from typing import Any

from app.engine.output import max_tokens
from app.exposures.wire import Flag

FEW_TOKENS = 16
"""Fewer are often cut, and with a model that reasons, empty."""

MANY_TOKENS = 256
"""A whole answer of more may take longer than a guardrail allows."""

LARGE_PROMPT = 4096
"""Bytes of a request's body."""

SHORT_PATIENCE_S = 1.0
"""A client that allows less may decide that its request fails."""

_SHORTEST_STOP = 3
"""Visible characters of a text that ends the answer. A shorter one may well begin it."""

_EMPTY, _LENGTH, _FORM = Flag.OWN_EMPTY.value, Flag.OWN_LENGTH.value, Flag.OWN_FORM.value
_TIME, _GAPS = Flag.OWN_TIME.value, Flag.OWN_GAPS.value
_ANSWER = _EMPTY | _LENGTH | _FORM
_LONG = Flag.LONG.value


def _above(least: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and value > least


def _ends_early(stop: Any) -> bool:
    texts = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    return any(isinstance(text, str) and len(text.strip()) < _SHORTEST_STOP for text in texts)


def _may_be_invisible(outputs: Any) -> bool:
    """JSON has at least braces or quotes; any other form may be nothing, or white space."""
    return isinstance(outputs, dict) and any(value is not None for name, value in outputs.items() if name != "json")


_DECIDING: Mapping[str, tuple[Callable[[Any], bool], int]] = {
    "allowed_token_ids": (bool, _ANSWER | _TIME),
    "logit_bias": (bool, _ANSWER | _TIME),
    "bad_words": (bool, _ANSWER),
    "vllm_xargs": (bool, _ANSWER | _TIME),
    "stop": (_ends_early, _EMPTY | _FORM),
    "stop_sequences": (_ends_early, _EMPTY | _FORM),
    "stop_token_ids": (bool, _EMPTY | _FORM),
    "structured_outputs": (_may_be_invisible, _ANSWER | _TIME),
    "thinking_token_budget": (lambda value: value is not None, _EMPTY | _LENGTH),
    "repetition_detection": (bool, _ANSWER),
    "chat_template": (bool, _ANSWER),
    "add_generation_prompt": (lambda value: value is False, _ANSWER),
    "continue_final_message": (bool, _ANSWER),
    "ignore_eos": (bool, _LENGTH | _FORM | _TIME),
    "min_tokens": (_above(FEW_TOKENS), _LENGTH | _TIME),
    "stream_interval": (_above(1), _TIME | _GAPS),
    "priority": (bool, _TIME | _GAPS),
    "kv_transfer_params": (bool, _ANSWER | _TIME | _GAPS),
    "ec_transfer_params": (bool, _ANSWER | _TIME | _GAPS),
}
"""vLLM's fields that may decide outcomes: with which values, and which outcomes."""

_SLOW = frozenset(
    {
        *("response_format", "structured_outputs", "text", "output_config", "tool_choice"),
        *("n", "best_of", "beam", "use_beam_search", "prompt_logprobs", "mm_processor_kwargs"),
    }
)
"""vLLM's fields with which an answer may take long: a grammar is compiled, or there are several answers."""

_MESSAGES = ("messages", "input")
_TEXTS = frozenset({"text", "input_text", "output_text"})


def provoked(body: Mapping[str, Any], prompt_bytes: int, *, stream: bool) -> int:
    """The `Flag` bits of the outcomes that the request `body` may decide, and LONG if it may be slow."""
    flags = 0
    if not _DECIDING.keys().isdisjoint(body):
        for name, (decides, outcomes) in _DECIDING.items():
            if name in body and decides(body[name]):
                flags |= outcomes
    most = max_tokens(body)
    if most is not None and most < FEW_TOKENS:
        flags |= _ANSWER
    if (
        prompt_bytes > LARGE_PROMPT
        or not (stream or (most is not None and most <= MANY_TOKENS))
        or not _SLOW.isdisjoint(body)
        or _has_media(body)
    ):
        flags |= _LONG
    return flags


def in_a_hurry(patience_s: float | None) -> int:
    """The `Flag` bits of a request whose client waits no longer than this."""
    return Flag.OWN_FAILURE.value if patience_s is not None and patience_s < SHORT_PATIENCE_S else 0


def _has_media(body: Mapping[str, Any]) -> bool:
    """Whether a small request has parts that are not text: an image's address is short, and the image may be large."""
    for name in _MESSAGES:
        messages = body.get(name)
        for message in messages if isinstance(messages, list) else ():
            content = message.get("content") if isinstance(message, dict) else None
            for part in content if isinstance(content, list) else ():
                if isinstance(part, dict) and part.get("type") not in _TEXTS:
                    return True
    return False
