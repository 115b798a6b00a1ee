"""Request bodies as OpenAPI 3.1 describes them, made of the models that check them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Body:
    """What a request's body may be: a model's fields, and those beside them that go on unchecked."""

    model: type[BaseModel]
    passed: frozenset[str] = frozenset()


class Schemas:
    """A document's `components.schemas`, collected while its operations refer to them."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def content(self, bodies: Sequence[Body]) -> dict[str, Any]:
        """The content of a JSON body that is one of `bodies`."""
        schemas = list({name: {"$ref": _PLACE.format(name)} for name in map(self._add, bodies)}.values())
        return content(schemas)

    def _add(self, body: Body) -> str:
        """The name of the body's schema. Models of several modules share names, their modules' last names differ."""
        name = f"{body.model.__module__.rpartition('.')[2]}.{body.model.__name__.lstrip('_')}"
        if name not in self.components:
            schema = body.model.model_json_schema(ref_template=_PLACE.format(f"{name}.{{model}}"))
            parts = schema.pop("$defs", {})
            if body.passed:
                anything: dict[str, Schema] = {field: {} for field in sorted(body.passed - schema["properties"].keys())}
                schema |= {"properties": {**schema["properties"], **anything}, "additionalProperties": False}
            self.components |= {name: schema, **{f"{name}.{part}": told for part, told in parts.items()}}
        return name


def content(schemas: Sequence[Schema]) -> dict[str, Any]:
    """The content of a JSON body that has one of `schemas`."""
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {"application/json": {"schema": schema}}


_PLACE = "#/components/schemas/{}"
