"""The base of every section of the configuration, and the wording of problems.

A section is a frozen pydantic model that forbids unknown keys; a problem is one line,
``path: what is wrong; the fix``.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
"""The names that endpoints, deployments and experiments may have."""


class ConfigError(ValueError):
    """An invalid configuration. `problems` holds one line each: ``path: what is wrong; the fix``."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class Section(BaseModel):
    """A part of the configuration: immutable, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def problems_of(error: ValidationError, root: type[BaseModel], *, is_secret: bool = False) -> Iterator[str]:
    """Every problem that pydantic found in a `root`, one line each. `is_secret`: unknown names are not repeated, since
    one may be an API key in the wrong place."""
    for item in error.errors():
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            yield from cause.problems
            continue
        location = [str(part) for part in item["loc"] if part != "[key]"]
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            location = location[:-1] if is_secret else location
            known = ", ".join(_model_at(root, item["loc"][:-1]).model_fields)
            message = f"unknown key; remove it or correct its spelling (known: {known})"
        yield f"{'.'.join(location) or '(top level)'}: {message}"


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
