"""The base of every section of the configuration, and the wording of problems.

A section is a frozen pydantic model that forbids unknown keys; a problem is one line,
``path: what is wrong; the fix``.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Protocol, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

MOST_PROBLEMS = 50
"""Of one validation, that are worded."""

_SPELLING = "remove it or correct its spelling"

_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"

Name = Annotated[str, StringConstraints(pattern=_NAME)]
"""The names that endpoints, deployments and experiments may have."""


class ConfigError(ValueError):
    """An invalid configuration. `problems` holds one line each: ``path: what is wrong; the fix``."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class Section(BaseModel):
    """A part of the configuration: immutable, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EndpointFields(Protocol):
    """The fields of `schema.Endpoint` that the checks of other sections read."""

    @property
    def tasks(self) -> Sequence[str]: ...
    @property
    def traffic(self) -> Mapping[str, int]: ...
    @property
    def sticky(self) -> object: ...


class DeploymentFields(Protocol):
    """The fields of `schema.Deployment` that the checks of other sections read."""

    @property
    def app(self) -> str | None: ...
    @property
    def url(self) -> str | None: ...
    @property
    def model(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def price(self) -> object: ...
    @property
    def space_id(self) -> str | None: ...


def renamed(section: Any, names: Mapping[str, str]) -> Any:
    """Plain data of a section with former names of keys in place of the present ones. Raises ValueError for both.

    `names`: present names by former ones, which files may have for one version, and recorded ledgers forever.
    """
    if not isinstance(section, Mapping):
        return section
    if both := [(old, new) for old, new in names.items() if old in section and new in section]:
        raise ValueError(f"`{both[0][0]}` is the former name of `{both[0][1]}`; keep only that")
    return {names.get(name, name): value for name, value in section.items()}


def problems_of(error: ValidationError, root: type[BaseModel], *, is_secret: bool = False) -> Iterator[str]:
    """The first problems that pydantic found in a `root`, one line each, and how many more there are. `is_secret`:
    unknown names and values are not repeated, since one may be an API key in the wrong place."""
    # Each is compared with the others and with known names, and a caller decides how many there are.
    items = error.errors(include_url=False)[:MOST_PROBLEMS]
    for item in items:
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            yield from cause.problems
        elif not any(_explains(other, item) for other in items):
            location = [str(part) for part in item["loc"] if part != "[key]"]
            if item["type"] == "extra_forbidden" and is_secret:
                location.pop()
            yield f"{'.'.join(location) or '(top level)'}: {_message(item, root, is_secret=is_secret)}"
    if (more := error.error_count() - len(items)) > 0:
        yield f"(more): {more} further problems are not listed; correct these first"


def nearest(name: str, known: Iterable[str]) -> str:
    """A question about what was meant, to append to a problem; empty if nothing known is like it.

    Nothing is like a name of more than twice the known ones' length, and the search would take 40 times its memory.
    """
    if len(name) > 2 * max(map(len, known := list(known)), default=0):
        return ""
    names = {spelling.lower(): spelling for spelling in known}
    close = get_close_matches(name.lower(), names, 1)
    return f"; did you mean {names[close[0]]}?" if close and names[close[0]] != name else ""


def _explains(cause: ErrorDetails, item: ErrorDetails) -> bool:
    """Whether `cause` is the same mistake: an item of a list that is then too short, a key that is only misspelt."""
    if item["type"] == "too_short":
        return cause is not item and cause["loc"][: len(item["loc"])] == item["loc"]
    if item["type"] != "missing" or cause["type"] != "extra_forbidden" or cause["loc"][:-1] != item["loc"][:-1]:
        return False
    return bool(nearest(str(cause["loc"][-1]), [str(item["loc"][-1])]))


def _message(item: ErrorDetails, root: type[BaseModel], *, is_secret: bool) -> str:
    kind, value, message = item["type"], item["input"], item["msg"].removeprefix("Value error, ")
    around = _model_at(root, item["loc"][:-1])
    if kind == "extra_forbidden":
        known = list(around.model_fields)
        meant = "" if is_secret else nearest(str(item["loc"][-1]), known)
        return f"unknown key{meant}" if meant else f"unknown key; {_SPELLING} (known: {', '.join(known)})"
    if kind == "missing":
        field = around.model_fields.get(str(item["loc"][-1]))
        return f"{message}: {field.description}" if field is not None and field.description else message
    if kind in ("model_type", "model_attributes_type"):
        return f"expected a mapping with {', '.join(_model_at(root, item['loc']).model_fields)}"
    if kind in _EXPECTED and not is_secret:
        remedy = _remedy(kind, value, is_part=_is_part(around.model_fields.get(str(item["loc"][-1]))))
        return f"expected {_EXPECTED[kind]}, not {shown(value)}{remedy}"
    if kind in _BOUNDS and not is_secret:
        word, limit = _BOUNDS[kind]
        bound = item.get("ctx", {})[limit]
        is_percentage = bound == 1 and "less" in kind and isinstance(value, int | float) and 1 < value <= 100
        share = f"; {value} % is {value / 100:g}" if is_percentage else ""
        return f"expected {word} {int(bound) if bound == int(bound) else bound}, not {shown(value)}{share}"
    if kind == "too_short":
        return f"expected at least {item.get('ctx', {})['min_length']}, not {len(value)}"
    if kind == "string_pattern_mismatch" and item.get("ctx", {}).get("pattern") == _NAME and not is_secret:
        return f"'{shown(value)}' is no name: 63 letters, digits, '.', '_', '-' at most; the ends no sign"
    if kind == "pattern_regex" and isinstance(value, str) and not is_secret:
        return f"{message}: {_reason(value)}"
    if kind == "literal_error" and isinstance(value, str) and not is_secret:
        choices = re.findall("'([^']+)'", message)
        return f"expected one of {', '.join(choices)}, not {shown(value)}{nearest(value, choices)}"
    return message


_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
}
"""What pydantic wanted, by its kind of error."""


_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
"""pydantic's bounds: its kind of error, the word for it, the bound's name."""


def _is_part(field: FieldInfo | None) -> bool:
    """Whether the field is a part of 1."""
    bounds = field.metadata if field is not None else ()
    return any(getattr(bound, name, None) == 1 for bound in bounds for name in ("lt", "le"))


def _remedy(kind: str, value: object, *, is_part: bool) -> str:
    if kind == "string_type" and isinstance(value, int | float):
        return "; put it in quotes"
    if kind in ("tuple_type", "list_type") and isinstance(value, str):
        return f"; write [{value}]"
    number = value.strip().removesuffix("%").strip() if isinstance(value, str) else ""
    if kind.startswith(("int", "float")) and number.isdigit():
        if is_part and "%" in str(value):
            return f"; write {int(number) / 100:g}"
        return f"; write {number}, without {'%' if '%' in str(value) else 'quotes'}"
    return ""


def shown(value: object) -> str:
    """A value of the file, short, as a person would write it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if not isinstance(value, int | float | str):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    return str(value) if len(str(value)) <= 40 else f"{str(value)[:39]}…"


def _reason(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error)
    return "it is not one"


def _model_at(root: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel]:
    """The model at `location`, which holds field names and the keys of mappings between them."""
    model = root
    for part in location:
        if (field := model.model_fields.get(str(part))) is not None:
            model = next(_models_in(field.annotation), model)
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def is_safe(url: str) -> bool:
    """Whether what comes from `url` cannot be altered in transit."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
