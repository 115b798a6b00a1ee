"""Reads the parameters of a query. All functions raise BadRequest with the parameter's name."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from app import moments
from app.config.endpoints import MAX_REASON
from app.errors import BadRequest

Action = Literal["promote", "advance", "pause", "resume", "rollback", "stop"]

MAX_RUNS = 10_000
"""The most runs of one A/A request."""


class ManualDecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision. `by` is the caller's name."""

    action: Action
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_REASON)]
    by: str
    revision: int | None = None
    """`AutomationStatus.revision` that the caller saw; None: any."""
    treatment: str | None = None
    """The treatment to `promote`."""


def choice(query: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """One of `choices`, by default the first."""
    value = query.get(name, choices[0])
    if value not in choices:
        raise BadRequest(f"{name}: must be one of {', '.join(choices)}, not '{value}'", param=name)
    return value


def is_dry_run(query: Mapping[str, str]) -> bool:
    """Whether the parameter `dry_run` asks what a change would do, without making it."""
    return choice(query, "dry_run", ["false", "true"]) == "true"


_LEAST = 1e-6
_MOST = 1e6


def number(query: Mapping[str, str], name: str, *, default: float, below: float = _MOST) -> float:
    """A number of at least a millionth, and below `below`: what is nearer to 0 has no finite sample size."""
    if (text := query.get(name)) is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _LEAST <= value < below:
        raise BadRequest(f"{name}: '{text}' must be a number from {_LEAST:g} and below {below:g}", param=name)
    return value


def whole_number(body: bytes, name: str, *, highest: int) -> int:
    """The whole number, from 1 to `highest`, that is the JSON object's only member."""
    try:
        content = json.loads(body)
    except ValueError:
        raise BadRequest("The body is not JSON") from None
    value = content.get(name) if isinstance(content, dict) else None
    if type(value) is not int or not 1 <= value <= highest:
        raise BadRequest(f"{name}: must be a whole number from 1 to {highest}", param=name)
    if unknown := sorted(content.keys() - {name}):
        raise BadRequest(f"{unknown[0]}: unknown field; there is {name}", param=unknown[0])
    return value


def unix_seconds(text: str) -> float:
    """Parses Unix seconds, a date or a time (ISO 8601, UTC unless it has a zone). Raises ValueError.

    It does for seconds that no calendar has, too.
    """
    try:
        seconds = float(text)
    except ValueError:
        return moments.read(text).timestamp()
    try:
        datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError) as error:
        raise ValueError(text) from error
    return seconds


def decision(body: bytes) -> ManualDecision:
    """A decision on an experiment."""
    try:
        return msgspec.json.decode(body, type=ManualDecision)
    except msgspec.ValidationError as error:
        field = re.search(r"field `(\w+)`|`\$\.(\w+)", str(error))
        name = next((group for group in field.groups() if group), None) if field is not None else None
        raise BadRequest(f"{name or 'body'}: {error}", param=name) from None
    except msgspec.DecodeError:
        raise BadRequest("The body is not JSON") from None
