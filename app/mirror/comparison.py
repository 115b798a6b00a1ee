"""Compares two answers to one request; the results are numbers only. Pure; it may take milliseconds."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import mul
from statistics import fmean
from typing import Any, NamedTuple

from pydantic_core import from_json

from app.engine.output import MALFORMED, CollectedToolCall, Content, Promise, content_of, is_kept, vectors_of
from app.exposures.wire import FinishCode

Values = dict[str, Any]
"""Fields of `wire.Pair`."""


class MeasuredAnswer(NamedTuple):
    """One deployment's answer: the engine's bytes, and the measurements. Times are in seconds from the call."""

    answer: bytes
    stream: bool
    finish: FinishCode
    visible: bool
    ttft_s: float | None
    duration_s: float
    tokens_per_s: float | None


def compare(primary: MeasuredAnswer, shadow: MeasuredAnswer, promise: Promise | None) -> Values:
    """Compares answers with text or tool calls."""
    values = {
        **_measured(primary, shadow),
        "finish": shadow.finish.value,
        "primary_finish": primary.finish.value,
        "same_finish": int(shadow.finish is primary.finish),
        "visible": int(shadow.visible),
        "primary_visible": int(primary.visible),
    }
    if promise is not None:
        values["valid"], values["primary_valid"] = (
            int(is_kept(promise, side.answer, stream=side.stream)) for side in (shadow, primary)
        )
    with suppress(*MALFORMED):
        values |= _said(*(content_of(side.answer, stream=side.stream) for side in (primary, shadow)))
    return values


def compare_vectors(primary: MeasuredAnswer, shadow: MeasuredAnswer) -> Values:
    """Compares answers with embeddings: the vectors that are kept of both."""
    values = _measured(primary, shadow)
    with suppress(*MALFORMED):
        pairs = zip(vectors_of(primary.answer), vectors_of(shadow.answer), strict=False)
        cosines = [_cosine(one, other) for one, other in pairs]
        known = [cosine for cosine in cosines if cosine is not None]
        values["cosine"] = fmean(known) if known and len(known) == len(cosines) else None
    return values


def _measured(primary: MeasuredAnswer, shadow: MeasuredAnswer) -> Values:
    return {
        "ttft_s": _difference(shadow.ttft_s, primary.ttft_s),
        "duration_s": shadow.duration_s - primary.duration_s,
        "tokens_per_s": _difference(shadow.tokens_per_s, primary.tokens_per_s),
    }


def _difference(shadow: float | None, primary: float | None) -> float | None:
    return None if shadow is None or primary is None else shadow - primary


def _said(primary: Content, shadow: Content) -> Values:
    size, other_size = _size(shadow), _size(primary)
    same_tools = _called(primary) == _called(shadow) if primary.calls or shadow.calls else None
    return {
        "equal": int(_texts(primary, str) == _texts(shadow, str) and primary.calls == shadow.calls),
        "equal_words": int(_texts(primary, _words) == _texts(shadow, _words) and same_tools is not False),
        "length_ratio": size / other_size if other_size else None,
        "same_tools": None if same_tools is None else int(same_tools),
    }


def _texts(content: Content, form: Callable[[str], str]) -> list[str]:
    """The text of each choice or block; engines differ in whether they show those without text."""
    return [text for _, raw in sorted(content.texts.items()) if (text := form(raw))]


def _words(text: str) -> str:
    return " ".join(text.split())


def _size(content: Content) -> int:
    return sum(map(len, content.texts.values())) + sum(len(call.name) + len(call.arguments) for call in content.calls)


def _called(content: Content) -> list[tuple[str, Any]]:
    """Names and arguments; the arguments as values, since their order and white space do not matter."""
    return [(call.name, _arguments(call)) for call in content.calls]


def _arguments(call: CollectedToolCall) -> Any:
    try:
        return from_json(call.arguments or "{}")
    except ValueError:
        return call.arguments


def _cosine(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The cosine similarity; None for vectors of different lengths, or without a direction."""
    if len(one) != len(other):
        return None
    lengths = math.sqrt(sum(map(mul, one, one))) * math.sqrt(sum(map(mul, other, other)))
    cosine = sum(map(mul, one, other)) / lengths if lengths else math.nan
    return cosine if math.isfinite(cosine) else None
