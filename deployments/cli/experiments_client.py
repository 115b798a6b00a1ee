"""The source from which experiments are read: a running server, or a ledger directory.

- A ledger directory as the source of answers.
- Moments on the command line.
- The exit codes of `switchyard experiments report --check`, for pipelines: none is one of an error's.
- An assignment as text.
- Feedback from the command line, and from a file of JSON lines.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.errors import BadRequest
from app.experiments.analysis.analysis import Analysis
from app.experiments.api import ControllerApi
from app.experiments.contract.query import unix_seconds
from app.experiments.offline import RecordedLedger
from app.experiments.storage.store import StoreError
from deployments.cli.options import CommandError, ExitCode, experiment_path, table

if TYPE_CHECKING:
    from app.exposures.controller_client import Answer
    from deployments.cli.options import RouterClient

_POLL_S = 0.5


class Source(Protocol):
    """Answers questions below ``/api``. Raises CommandError with the error message of the answer."""

    def ask(self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None) -> bytes: ...


class Server:
    """A running server."""

    def __init__(self, client: "RouterClient") -> None:
        self.ask = client.ask


class Directory:
    """A ledger directory alone. `answer` is `app.experiments.api.ControllerApi.answer` on its content."""

    def __init__(self, answer: "Callable[[str, str, Mapping[str, str], bytes], Answer]") -> None:
        self._answer = answer

    def ask(self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None) -> bytes:
        answer = self._answer(method, path, query or {}, json.dumps(body).encode() if body is not None else b"")
        if answer.status >= 400:
            raise CommandError(json.loads(answer.body)["message"])
        return answer.body


def false_verdicts(source: Source, name: str, runs: int, form: str) -> bytes:
    """Starts A/A runs, waits until they are done, and returns them in a format. Raises CommandError if they fail."""
    path = experiment_path(name, "/aa")
    source.ask("POST", path, body={"runs": runs})
    while (state := _state(source.ask("GET", path))) == "running":
        time.sleep(_POLL_S)
    if state == "failed":
        raise CommandError("The runs failed; see the controller's log")
    return source.ask("GET", path, {"format": form})


def _state(answer: bytes) -> Any:
    return json.loads(answer)["state"]


def open_directory(url: str, *, at: float | None) -> Directory:
    """Reads the ledger at `url`, a directory relative to the current one or an object store's address.

    `at`: only what had been recorded by this Unix time. Raises CommandError.
    """
    try:
        ledger = RecordedLedger(url, Path.cwd(), Analysis, at=at)
    except StoreError as error:
        raise CommandError(f"The ledger cannot be read: {error}") from None
    except BadRequest as error:
        raise CommandError(f"--at: {error}", ExitCode.USAGE) from None
    return Directory(ControllerApi(ledger).answer)


def moment(text: str, option: str) -> float:
    """Unix seconds of a date, a time (UTC unless it has a zone) or Unix seconds. Raises CommandError."""
    try:
        return unix_seconds(text)
    except ValueError:
        message = f"{option} '{text}': expected a date, a time or Unix seconds: 2026-11-12, 2026-11-12T16:00"
        raise CommandError(message, ExitCode.USAGE) from None


class Check(IntEnum):
    """A decision as an exit code. Whatever prevents a report has the exit code of its error (`ExitCode`)."""

    SHIP = 0
    DO_NOT_SHIP = 10
    KEEP_GOING = 11
    INVALID = 12


def check_of(decision: str) -> Check:
    """The exit code of a report's decision."""
    return Check[decision.upper()]


def explanation(assignment: Mapping[str, Any]) -> str:
    """The deployment that answers and why, then every deployment's weight and score."""
    name = assignment["deployment"]
    lines = [f"{assignment['endpoint']}: {name or 'drawn for each request'}", assignment["why"], ""]
    rows = [
        [
            deployment["deployment"],
            f"{deployment['weight']} %",
            "-" if deployment["score"] is None else f"{deployment['score']:.3f}",
            "open" if deployment["breaker_open"] else "closed",
        ]
        for deployment in assignment["deployments"]
    ]
    lines.append(table(["DEPLOYMENT", "WEIGHT", "SCORE", "BREAKER"], rows))
    lines += ["", f"Plan {assignment['plan']}"]
    if assignment["unit"] is not None:
        lines[-1] += f", unit {assignment['unit']}"
    return "\n".join(lines)


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
