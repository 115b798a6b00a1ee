"""The support of every request field, read from the models that check it: for the docs and for tests."""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel

from app.config.schema import ENGINE_PARAMS
from app.dialects.openapi_schemas import ALLOWED, Body

VLLM = "vLLM's"
NOT_USED = "checked; changes nothing here"
REJECTED = "rejected: "

FieldSupport = Mapping[str, Mapping[str, str]]
"""Operation to field to sentence."""


def dialect_support(bodies: Mapping[str, Sequence[Body]]) -> FieldSupport:
    """The support of every field of a dialect's `bodies`.

    An operation whose bodies all occur in an earlier one is another path to the same operation, and is left out.
    """
    support: dict[str, Mapping[str, str]] = {}
    seen: list[Body] = []
    for operation, alternatives in bodies.items():
        if any(body not in seen for body in alternatives):
            support[operation] = field_support(alternatives)
            seen += alternatives
    return support


def field_support(bodies: Sequence[Body]) -> dict[str, str]:
    """Field to sentence, for an operation whose body is one of `bodies`."""
    return {name: sentence for body in bodies for name, sentence in _of(body).items()}


def _of(body: Body) -> dict[str, str]:
    sentences = {name: _unchecked(name) for name in sorted(body.passed)}
    for model in (body.model, *body.nested.values()):
        for name, description in _described(model):
            used = body.used is None or name in body.used
            sentences[name] = (description or _unchecked(name)) if used else NOT_USED
        refused: Mapping[str, str] = getattr(model, "refused", {})
        sentences |= {name: f"{REJECTED}{reason}" for name, reason in refused.items()}
    return sentences


def _unchecked(name: str) -> str:
    return ALLOWED if name in ENGINE_PARAMS else VLLM


def _described(model: type[BaseModel]) -> Iterator[tuple[str, str | None]]:
    for name, field in model.model_fields.items():
        yield field.alias or name, field.description
