"""The source from which experiments are read: a running server, or a ledger directory."""

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from deployments.cli.errors import CommandError

if TYPE_CHECKING:
    from app.exposures.controller_client import Answer
    from deployments.cli.router_client import RouterClient

_POLL_S = 0.5


class Source(Protocol):
    """Answers questions below ``/api``. Raises CommandError with the error message of the answer."""

    def ask(self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None) -> bytes: ...


class Server:
    """A running server."""

    def __init__(self, client: "RouterClient") -> None:
        self.ask = client.ask


class Directory:
    """A ledger directory alone. `answer` is `app.experiments.api.Answers.answer` on its content."""

    def __init__(self, answer: "Callable[[str, str, Mapping[str, str], bytes], Answer]") -> None:
        self._answer = answer

    def ask(self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None) -> bytes:
        answer = self._answer(method, path, query or {}, json.dumps(body).encode() if body is not None else b"")
        if answer.status >= 400:
            raise CommandError(json.loads(answer.body)["message"])
        return answer.body


def path_of(name: str, what: str = "") -> str:
    """The path of an experiment, or of something about it."""
    return f"/experiments/{quote(name, safe='')}{what}"


def false_verdicts(source: Source, name: str, runs: int, form: str) -> bytes:
    """Starts A/A runs, waits until they are done, and returns them in a format. Raises CommandError if they fail."""
    path = path_of(name, "/aa")
    source.ask("POST", path, body={"runs": runs})
    while (state := _state(source.ask("GET", path))) == "running":
        time.sleep(_POLL_S)
    if state == "failed":
        raise CommandError("The runs failed; see the controller's log")
    return source.ask("GET", path, {"format": form})


def _state(answer: bytes) -> Any:
    return json.loads(answer)["state"]
