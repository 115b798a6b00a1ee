"""Feedback from the command line, and from a file of JSON lines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deployments.cli.errors import CommandError, ExitCode

MOST_AT_ONCE = 1000


def value_of(text: str) -> bool | float:
    """true, false, or a number. Raises CommandError for anything else."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        raise CommandError(f"'{text}': expected true, false or a number", ExitCode.USAGE) from None


def read(file: Path) -> Iterator[list[dict[str, Any]]]:
    """The scores of a file, in lists that the server takes at once. Raises CommandError with the line's number."""
    scores: list[dict[str, Any]] = []
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file}: {getattr(error, 'strerror', None) or 'is not a text file'}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            score = json.loads(line)
        except ValueError:
            score = None
        if not isinstance(score, dict):
            raise CommandError(f"{file}:{number}: is not a JSON object")
        scores.append(score)
    for start in range(0, len(scores), MOST_AT_ONCE):
        yield scores[start : start + MOST_AT_ONCE]


def summary(answers: list[dict[str, Any]]) -> str:
    """The result of sending the scores, in one line."""
    accepted = sum(answer["accepted"] for answer in answers)
    pending = [answer["pending"] for answer in answers]
    unknown = dict.fromkeys(name for answer in answers for name in answer["unknown_metric"])
    parts = [f"Accepted {accepted}"]
    late = sum(answer["late"] or 0 for answer in answers)
    if late:
        parts.append(f"{late} of them came late, after their answer's window, and do not count")
    if None in pending:
        parts.append("the controller does not answer: they are sent later")
    elif total := sum(pending):
        parts.append(f"{total} of them match no answer; those of answers under way are kept for a minute")
    if unknown:
        parts.append(f"no running experiment declares {', '.join(unknown)}")
    return "; ".join(parts) + "."
