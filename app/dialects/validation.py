import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from app.dialects.json_body import field_path


@dataclass(frozen=True, slots=True)
class Problem:
    """What pydantic found first: a `field_path`, a sentence that begins with it, and the kind of the two that have a
    name of their own: the field is missing, or nobody knows it."""

    path: str
    message: str
    missing: bool
    unknown: bool


def first_problem(error: ValidationError) -> Problem:
    """The first wrong field's problem: of a union's branches, the one that got furthest into the value."""
    errors = error.errors(include_url=False)
    of_the_first = [item for item in errors if item["loc"][:1] == errors[0]["loc"][:1]]
    found = max(of_the_first, key=lambda item: len(_fields(item["loc"])))
    path, message = field_path(_fields(found["loc"])), found["msg"].removeprefix("Value error, ")
    if not path:  # a rule over several fields, whose message begins with the field's name
        path, _, message = message.partition(": ")
    kind = found["type"]
    return Problem(path, f"{path}: {message}", kind == "missing", kind == "extra_forbidden")


def _fields(location: Sequence[int | str]) -> list[int | str]:
    """A location without the parts that name a branch of a union and no field."""
    return [part for part in location if isinstance(part, int) or not _BRANCH.match(part)]


_BRANCH = re.compile(r"(str|int|float|bool|dict)$|constrained-|[A-Z]|.*\[")
