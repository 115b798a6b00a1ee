"""Request bodies in OpenAPI 3.1, generated from the models that check them.

The support of every request field, read from the models that check it: for the docs and for tests.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from app.config.schema import ENGINE_PARAMS

Schema = Mapping[str, Any]

ALLOWED = "vLLM's; rejected unless the endpoint allows it (`allow_engine_params`)"


@dataclass(frozen=True, slots=True)
class Body:
    """One kind of request body.

    `model` checks it; its fields' descriptions state how each is supported (without a description: as in vLLM's API),
    and its class attribute `refused`, a mapping, names fields that no value makes acceptable, with the reason. `passed`
    are further fields, which go to vLLM unchecked. `used` are the fields that matter to this operation, for one that
    checks more than it uses; None for all. `nested` are models of fields whose own fields are documented along with the
    model's: field to model, as ``{"parameters": Parameters}``. `rules` are schemas that the body must match too.
    """

    model: type[BaseModel]
    passed: frozenset[str] = frozenset()
    used: frozenset[str] | None = None
    nested: Mapping[str, type[BaseModel]] = field(default_factory=dict)
    rules: Sequence[Schema] = ()


class Schemas:
    """A document's `components.schemas`, collected from the references of its operations."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def references(self, dialect: str, bodies: Sequence[Body]) -> list[Schema]:
        """References to the schemas of `bodies`, which are added to the components as ``dialect.Model``."""
        return [{"$ref": _PLACE.format(self._add(dialect, body))} for body in bodies]

    def _add(self, dialect: str, body: Body) -> str:
        name = f"{dialect}.{body.model.__name__.lstrip('_')}"
        if name not in self.components:
            schema = body.model.model_json_schema(ref_template=_PLACE.format(f"{name}.{{model}}"))
            parts = schema.pop("$defs", {})
            if body.rules:
                schema["allOf"] = [*schema.get("allOf", []), *body.rules]
            if body.passed:
                refused: Mapping[str, str] = getattr(body.model, "refused", {})
                unchecked = sorted(body.passed - schema["properties"].keys() - refused.keys())
                properties = {**schema["properties"], **{extra: _unchecked_schema(extra) for extra in unchecked}}
                schema |= {"properties": properties, "additionalProperties": False}
            self.components |= {name: schema, **{f"{name}.{part}": value for part, value in parts.items()}}
        return name


def _unchecked_schema(name: str) -> Schema:
    """The schema of a field that goes to vLLM unchecked."""
    return {"description": ALLOWED} if name in ENGINE_PARAMS else {}


def content(schemas: Sequence[Schema]) -> dict[str, Any]:
    """The content of a JSON body that has one of `schemas`."""
    different = [schema for index, schema in enumerate(schemas) if schema not in schemas[:index]]
    schema = different[0] if len(different) == 1 else {"anyOf": different}
    return {"application/json": {"schema": schema}}


_PLACE = "#/components/schemas/{}"


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
    for name, declared in model.model_fields.items():
        yield declared.alias or name, declared.description
