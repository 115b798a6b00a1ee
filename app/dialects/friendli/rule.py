"""Rules over several fields: the combinations that Friendli's reference excludes, each with its message.

Pydantic checks each field alone. These are written by hand because their order and their texts are part of the
contract.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from app.dialects.common.schema_rules import Schema, absent, either, given, is_true, values
from app.dialects.friendli.fields import Completions, GenerationFields
from app.errors import BadRequest

_Checked = TypeVar("_Checked", bound=GenerationFields)
_Fields = TypeVar("_Fields", bound=GenerationFields, contravariant=True)


class Rule(ABC, Generic[_Fields]):
    """`field` is wrong `when` the condition holds; `message` states the reason."""

    field: str
    message: str

    @abstractmethod
    def when(self, fields: _Fields) -> bool:
        """Whether `fields` break the rule."""

    def schema(self) -> Schema | None:
        """The rule in JSON Schema; None if that cannot express it."""
        return None


def checked_against(fields: _Checked, rules: Iterable[Rule[_Checked]]) -> _Checked:
    """Returns `fields`. Raises BadRequest for the first rule that they break."""
    for rule in rules:
        if rule.when(fields):
            raise BadRequest(f"{rule.field}: {rule.message}", param=rule.field)
    return fields


def schemas(rules: Iterable[Rule[Any]]) -> list[Schema]:
    """The rules that JSON Schema can express."""
    return [schema for rule in rules if (schema := rule.schema()) is not None]


def unset(*names: str) -> Schema:
    """The condition that no field of these is given: the opposite of `GenerationFields.is_given`."""
    return values({name: [None, False, []] for name in names})


SOME_ITEMS: Schema = {"type": "array", "minItems": 1}
UNFORMATTED: Schema = {"properties": {"response_format": values({"type": ["text"]})}}
WITHOUT_BEAMS = absent("num_beams")


class _FieldRule(Rule[_Fields]):
    """A kind of rule, for one field."""

    def __init__(self, field: str, message: str) -> None:
        self.field, self.message = field, message

    def _value(self, fields: GenerationFields) -> Any:
        return getattr(fields, self.field)


class Exclusive(_FieldRule[GenerationFields]):
    """Two fields that exclude one another."""

    def __init__(self, field: str, other: str) -> None:
        super().__init__(field, f"cannot be given together with {other}")
        self._other = other

    def when(self, fields: GenerationFields) -> bool:
        return fields.is_given(self.field) and fields.is_given(self._other)

    def schema(self) -> Schema:
        return either(unset(self.field), unset(self._other))


class OnlyWith(_FieldRule[GenerationFields]):
    """A field that needs another one to be true."""

    def __init__(self, field: str, other: str) -> None:
        super().__init__(field, f"only allowed with {other}")
        self._other = other

    def when(self, fields: GenerationFields) -> bool:
        return fields.is_given(self.field) and not getattr(fields, self._other)

    def schema(self) -> Schema:
        return either(unset(self.field), is_true(self._other))


class RequiredWith(_FieldRule[GenerationFields]):
    """A list that must be given if another one is."""

    def __init__(self, field: str, other: str) -> None:
        super().__init__(field, f"must be given with {other}")
        self._other = other

    def when(self, fields: GenerationFields) -> bool:
        return fields.is_given(self._other) and not fields.is_given(self.field)

    def schema(self) -> Schema:
        return either(unset(self._other), given(self.field, SOME_ITEMS))


class NotWithFormat(_FieldRule[GenerationFields]):
    """A field that a grammar excludes."""

    def __init__(self, field: str, message: str = "not supported with response_format") -> None:
        super().__init__(field, message)

    def when(self, fields: GenerationFields) -> bool:
        return fields.is_formatted and bool(self._value(fields))

    def schema(self) -> Schema:
        return either(UNFORMATTED, values({self.field: [None, 0, []]}))


class NotWithBeams(_FieldRule[Completions]):
    """A field that must have its default in a beam search."""

    def __init__(self, field: str, message: str = "not supported with num_beams") -> None:
        super().__init__(field, message)

    def when(self, fields: Completions) -> bool:
        return fields.searches and self._value(fields) != self._default

    @property
    def _default(self) -> Any:
        return Completions.model_fields[self.field].default

    def schema(self) -> Schema:
        return either(WITHOUT_BEAMS, values({self.field: [None, self._default]}))


class OnlyWithBeams(_FieldRule[Completions]):
    """A field of beam searches alone."""

    def __init__(self, field: str) -> None:
        super().__init__(field, "only allowed with num_beams")

    def when(self, fields: Completions) -> bool:
        return not fields.searches and self._value(fields) is not None

    def schema(self) -> Schema:
        return either(absent(self.field), given("num_beams"))


class NotWithDeterministicBeams(_FieldRule[Completions]):
    """A field of those beam searches alone that draw."""

    def __init__(self, field: str) -> None:
        super().__init__(field, "not allowed where beam_search_type is DETERMINISTIC")

    def when(self, fields: Completions) -> bool:
        return fields.searches and not fields.draws_beams and self._value(fields) is not None

    def schema(self) -> Schema:
        drawn = given("beam_search_type", {"enum": ["NAIVE_SAMPLING", "STOCHASTIC"]})
        return either(WITHOUT_BEAMS, absent(self.field), drawn)


class EncoderOnly(_FieldRule[Completions]):
    """A field that has an effect in encoder-decoder models alone; 1 is neutral."""

    def __init__(self, field: str) -> None:
        super().__init__(field, "only allowed for encoder-decoder models")

    def when(self, fields: Completions) -> bool:
        return bool(self._value(fields) != 1)

    def schema(self) -> Schema:
        return values({self.field: [None, 1]})


class Unsupported(_FieldRule[Completions]):
    """A field that no value makes acceptable."""

    def __init__(self, field: str) -> None:
        super().__init__(field, Completions.refused[field])

    def when(self, fields: Completions) -> bool:
        return self._value(fields) is not None

    def schema(self) -> Schema:
        return absent(self.field)
