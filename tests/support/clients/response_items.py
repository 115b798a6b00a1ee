"""The items of a Responses input that OpenAI's SDK knows, and a sample of each."""

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Required, get_args, get_origin

from openai._types import SequenceNotStr
from openai.types.responses import ResponseInputItemParam
from typing_extensions import get_type_hints, is_typeddict

ITEMS: Mapping[str, Any] = {kind.__name__: kind for kind in get_args(ResponseInputItemParam)}
"""The SDK's types, by their names."""


def sample(kind: Any, *, whole: bool) -> Any:
    """A value of a type of the SDK; `whole`: with the fields that may be absent."""
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        required = {name for name, hint in hints.items() if _is_required(hint)}
        return {name: sample(hint, whole=whole) for name, hint in hints.items() if whole or name in required}
    arguments = get_args(kind)
    match get_origin(kind):
        case typing.Literal:
            return arguments[0]
        case typing.Required:
            return sample(arguments[0], whole=whole)
        case typing.Union | types.UnionType:
            return sample(arguments[0], whole=whole)
        case origin if origin in (list, Iterable, Sequence, SequenceNotStr):
            return [sample(arguments[0], whole=whole)]
        case origin if origin is dict:
            return {}
    return {str: "x", int: 1, float: 1.0, bool: True}.get(kind, {})


def _is_required(hint: Any) -> bool:
    origin: Any = get_origin(hint)
    return origin is Required
