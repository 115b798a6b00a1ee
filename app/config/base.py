"""The base of every section of the configuration, and the wording of problems.

A section is a frozen pydantic model that forbids unknown keys; a problem is one line,
``path: what is wrong; the fix``.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from app.config.meant import closest, nearest, number_remedy, question, shown

MOST_PROBLEMS = 50
"""Of one validation, that are worded."""

_SPELLING = "remove it or correct its spelling"

_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
_METRIC = r"^[a-z][a-z0-9_]{0,62}$"
_ORIGIN = r"^(\*|[a-z][a-z0-9+.-]*://[^/\s]+)$"
_HOST = r"^[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?$"

Name = Annotated[str, StringConstraints(pattern=_NAME)]
"""The names that endpoints, deployments and experiments may have."""

MetricName = Annotated[str, StringConstraints(pattern=_METRIC)]
Origin = Annotated[str, StringConstraints(pattern=_ORIGIN)]

HostName = Annotated[str, StringConstraints(pattern=_HOST)]
"""A name as `Host` has it, without scheme and port."""

NO_NAME = "is no name: 63 letters, digits, '.', '_', '-' at most; the ends no sign"
"""What is wrong with a text that is no `Name`, to append to it."""

_PATTERNS = {
    _NAME: NO_NAME,
    _METRIC: "is no metric's name: small letters, digits and '_', a letter first",
    _ORIGIN: "is no origin: scheme and host, as in https://app.example.com, or '*' in quotes",
    _HOST: "is no host's name: leave out the scheme, the port and the path",
}
"""What a text that does not match them is not, and what is right."""


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
    keys = {item["loc"][:-1] for item in items if item["loc"][-1:] == ("[key]",)}  # 5 may be one, and no position
    keys |= {item["loc"] for item in items if item["type"] == "invalid_key"}
    for item in items:
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            yield from cause.problems
        elif not any(_explains(other, item) for other in items):
            location = [
                str(part) if item["loc"][: place + 1] in keys else part
                for place, part in enumerate(item["loc"])
                if part != "[key]"
            ]
            if item["loc"][-1:] == ("[key]",) and isinstance(item["input"], bool):
                location[-1] = shown(item["input"])
            if item["type"] == "extra_forbidden" and is_secret:
                location.pop()
            yield f"{path_of(location) or '(top level)'}: {_message(item, root, is_secret=is_secret)}"
    if (more := error.error_count() - len(items)) > 0:
        yield f"(more): {more} further problems are not listed; correct these first"


def path_of(parts: Iterable[str | int]) -> str:
    """The keys and the positions in lists that lead to a value: ``experiments.first.primary[0].metric``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _explains(cause: ErrorDetails, item: ErrorDetails) -> bool:
    """Whether `cause` is the same mistake: an item of a list that is then too short, a key that is only misspelt."""
    if item["type"] == "too_short":
        return cause is not item and cause["loc"][: len(item["loc"])] == item["loc"]
    if cause["type"] == "invalid_key":  # 0,05 in braces is 0, and a key 5
        return item["type"] in _BOUNDS and cause["loc"][:-1] == item["loc"][:-1]
    if item["type"] != "missing" or cause["type"] != "extra_forbidden" or cause["loc"][:-1] != item["loc"][:-1]:
        return False
    return bool(nearest(str(cause["loc"][-1]), [str(item["loc"][-1])]))


def _message(item: ErrorDetails, root: type[BaseModel], *, is_secret: bool) -> str:
    kind, value, message = item["type"], item["input"], item["msg"].removeprefix("Value error, ")
    around = _model_at(root, item["loc"][:-1])
    if kind == "extra_forbidden":
        known = list(around.model_fields)
        meant = None if is_secret else closest(str(item["loc"][-1]), known)
        if meant is None:
            return f"unknown key; {_SPELLING} (known: {', '.join(known)})"
        return f"unknown key{question(_with_list(meant, value, around))}"
    if kind == "missing":
        described = around.model_fields.get(str(item["loc"][-1]))
        return f"{message}: {described.description}" if described is not None and described.description else message
    if kind in ("model_type", "model_attributes_type"):
        model = _model_at(root, item["loc"])
        remedy = "" if is_secret else _section_remedy(value, model)
        return f"expected a mapping with {', '.join(model.model_fields)}{remedy}"
    return message if is_secret else _value_message(item, message, _field_at(root, item["loc"]))


def _value_message(item: ErrorDetails, message: str, field: FieldInfo | None) -> str:
    """The problem of a value, or of a key, that has the wrong kind or size. `message`: pydantic's words for it."""
    kind, value = item["type"], item["input"]
    if kind == "invalid_key":
        return f"{shown(value)} is no key; put it in quotes, or write a decimal number with a point"
    if kind in _EXPECTED:
        key = str(item["loc"][-1])
        return f"expected {_EXPECTED[kind]}, not {shown(value)}{_remedy(kind, value, key, field)}"
    if kind in _BOUNDS:
        word, limit = _BOUNDS[kind]
        bound = item.get("ctx", {})[limit]
        is_percentage = bound == 1 and "less" in kind and isinstance(value, int | float) and 1 < value <= 100
        share = f"; {value} % is {value / 100:g}" if is_percentage else ""
        return f"expected {word} {int(bound) if bound == int(bound) else bound}, not {shown(value)}{share}"
    if kind == "too_short":
        return f"expected at least {item.get('ctx', {})['min_length']}, not {len(value)}"
    if kind == "string_pattern_mismatch" and (words := _PATTERNS.get(item.get("ctx", {}).get("pattern", ""))):
        return f"'{shown(value)}' {words}"
    if kind == "pattern_regex" and isinstance(value, str):
        return f"'{shown(value)}' is no regular expression: {_reason(value)}"
    if kind == "literal_error":
        choices = re.findall("'([^']+)'", message)
        meant = nearest(str(value), choices) or (_QUOTES if isinstance(value, bool) else "")
        return f"expected one of {', '.join(choices)}, not {shown(value)}{meant}"
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


_QUOTES = "; put it in quotes: YAML reads yes, no, on and off as true and false"


def _remedy(kind: str, value: object, key: str, field: FieldInfo | None) -> str:
    limits = set(_limits(field))
    if kind == "string_type" and isinstance(value, int | float):
        return _QUOTES if isinstance(value, bool) else "; put it in quotes"
    if value is None and ":" in key:
        return f"; a space belongs after the colon of '{key}'"
    if kind in ("tuple_type", "list_type"):
        if isinstance(value, bool) or not isinstance(value, str | int | float | Mapping):
            return ""
        return f"; write {_as_list(value, field)}"
    if kind == "dict_type" and isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        return f"; write {_flow({name: shown(part) for item in value for name, part in item.items()})}"
    if kind == "dict_type" and 100 in limits:
        return f"; write {_flow({shown(value): 100} if isinstance(value, str) else {'NAME': 100})}"
    if kind.startswith(("int", "float")):
        return number_remedy(value, key, is_whole=kind.startswith("int"), most=max(limits, default=None))
    return ""


def _limits(held: Any) -> Iterator[float]:
    """The largest values that a field, and what its annotation holds, may have."""
    if isinstance(held, FieldInfo):
        for part in (*held.metadata, held.annotation):
            yield from _limits(part)
    yield from (limit for name in ("le", "lt") if isinstance(limit := getattr(held, name, None), int | float))
    for part in get_args(held):
        yield from _limits(part)


def _choices(held: Any) -> Iterator[str]:
    """The words that an annotation takes, if it takes some only."""
    if get_origin(held) is Literal:
        yield from (choice for choice in get_args(held) if isinstance(choice, str))
    else:
        for part in get_args(held):
            yield from _choices(part)


def _flow(pairs: Mapping[Any, object]) -> str:
    return f"{{{', '.join(f'{name}: {value}' for name, value in pairs.items())}}}"


def _as_list(value: str | float | Mapping[Any, Any], field: FieldInfo | None) -> str:
    """A list with a value that is meant as its only item, or with the keys of a mapping."""
    model = next(_models_in(field.annotation), None) if field is not None else None
    if isinstance(value, int | float):
        return f"[{value}]"
    if isinstance(value, Mapping):
        return f"[{', '.join(map(shown, value))}]" if model is None else "[{…}], a list of mappings"
    if model is not None:
        return f"[{_example(value, model)}]"
    known = list(_choices(field.annotation)) if field is not None else []
    return f"[{closest(value, known) or value}]"


def _with_list(name: str, value: object, around: type[BaseModel]) -> str:
    """The key that a misspelt one is meant to be, with the list that its value is meant to be."""
    field = around.model_fields[name]
    is_list = get_origin(field.annotation) is tuple
    return f"{name}: {_as_list(value, field)}" if is_list and isinstance(value, str) else name


def _section_remedy(value: object, model: type[BaseModel]) -> str:
    if isinstance(value, str):
        return f"; write {example}" if (example := _example(value, model)) else ""
    if isinstance(value, list):
        name, field = next(iter(model.model_fields.items()))
        is_list = get_origin(field.annotation) is tuple and not any(isinstance(item, Mapping | list) for item in value)
        items = ", ".join(map(shown, value))
        return f"; write {_flow({name: f'[{items}]'})}" if is_list else ""
    needs = any(field.is_required() for field in model.model_fields.values())
    return "; write {} for the defaults" if value is True and not needs else ""


def _example(value: str, model: type[BaseModel]) -> str:
    """A section whose first key has the value that stands in its place."""
    first, *others = [name for name, field in model.model_fields.items() if field.is_required()] or [""]
    if not first:
        return ""
    known = list(_choices(model.model_fields[first].annotation))
    meant = closest(value, known) or value
    return _flow({first: meant, **dict.fromkeys(others, "…")}) if not known or meant in known else ""


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


def _field_at(root: type[BaseModel], location: Sequence[int | str]) -> FieldInfo | None:
    """The innermost field on the way to `location`."""
    ends = range(len(location), 0, -1)
    fields = (_model_at(root, location[: end - 1]).model_fields.get(str(location[end - 1])) for end in ends)
    return next((field for field in fields if field is not None), None)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def is_name(text: str) -> bool:
    """Whether it is a `Name`."""
    return re.fullmatch(_NAME, text) is not None


def is_safe(url: str) -> bool:
    """Whether what comes from `url` cannot be altered in transit."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def is_http(url: str) -> bool:
    """Whether it is the URL of an HTTP server."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and " " not in url
    except ValueError:  # a port that is no number
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
