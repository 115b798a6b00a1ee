"""Options that several commands share, and the router that they name.

A router over HTTP: its readiness, its experiments, and Databricks' management API, which changes traffic.
"""

import http.client
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Any, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import typer

from app.config.base import is_loopback
from deployments.invocation import URL_VARIABLE, command, pasteable
from deployments.local.processes import explained

KEY_VARIABLE = "SWITCHYARD_API_KEY"
"""The key of commands that name none."""

Url = Annotated[
    str | None,
    typer.Option(
        envvar=URL_VARIABLE, metavar="URL", help="The server. Default: the one that this installation started."
    ),
]
Key = Annotated[
    str | None,
    typer.Option(envvar=KEY_VARIABLE, metavar="KEY", help="An API key, if the server requires one."),
]
Format = Annotated[Literal["text", "markdown", "json"], typer.Option("--format", help="How it is printed.")]
LedgerOption = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Read a ledger's directory (or s3://, gs://, abfs://), without a server."),
]
Name = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="The experiment, as in the configuration.")]
Metric = Annotated[
    str | None, typer.Option(metavar="METRIC", help="As in the report: ttft, ttft.p95. Default: the first primary.")
]
Treatment = Annotated[str | None, typer.Option(metavar="NAME", help="Default: the first treatment.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def router_client(url: str | None, key: str | None) -> "RouterClient":
    """The router at `url`, or of this installation's run."""
    if url is not None:
        return RouterClient(url, key)
    from deployments.local import processes
    from deployments.local.processes import HOST

    return RouterClient(f"http://{HOST}:{processes.running().port}", key, is_local_run=True)


class ExitCode(IntEnum):
    """The exit codes of `switchyard`, documented in its `--help`."""

    OK = 0
    WRONG = 1
    USAGE = 2
    UNREACHABLE = 3
    DENIED = 4
    INTERRUPTED = 130


class CommandError(Exception):
    """A command cannot be carried out. The message names the problem and the fix."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.WRONG) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of plain text, two spaces apart: the same on a terminal and in a pipe."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def experiment_path(name: str, what: str = "") -> str:
    """The path of an experiment below ``/api``, or of something about it."""
    return f"/experiments/{quote(name, safe='')}{what}"


# Contract: https://docs.databricks.com/api/workspace/servingendpoints; `app.server.databricks_management` serves it.

_TIMEOUT_S = 30.0
_PIECE = 65536
_ENDPOINTS = "/api/2.0/serving-endpoints"


class RouterClient:
    """The router at `url` (with or without /v1), called with `key` if there is one. `is_local_run`: it is that of this
    installation's run, and not one that the user has named."""

    def __init__(self, url: str, key: str | None = None, *, is_local_run: bool = False) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CommandError(f"--url '{url}' is not a URL, expected http://HOST:PORT", ExitCode.USAGE)
        self.url = url.rstrip("/").removesuffix("/v1")
        self._is_local_run = is_local_run
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._opener = build_opener(ProxyHandler({})) if is_loopback(parts.hostname) else build_opener()

    def command(self, arguments: str) -> str:
        """The command line with these arguments, for this router."""
        return command(arguments, None if self._is_local_run else self.url)

    def readiness(self) -> Mapping[str, Any]:
        """``{"status": …, "endpoints": {name: bool}, "deployments": {name: bool}}``."""
        return self._call("GET", "/ready", accept=(200, 503))

    def endpoints(self) -> list[str]:
        """The names of the endpoints that the key may use."""
        return [item["name"] for item in self._call("GET", _ENDPOINTS)["endpoints"]]

    def endpoint(self, name: str) -> Mapping[str, Any]:
        """One endpoint as Databricks' object."""
        return self._call("GET", f"{_ENDPOINTS}/{quote(name, safe='')}")

    def traffic(
        self, method: str, endpoint: str, suffix: str = "", *, body: object = None, tag: str | None = None
    ) -> Mapping[str, Any]:
        """Calls the traffic API of the endpoint and returns its answer. `tag`: the plan that the change is based on."""
        headers = {"If-Match": f'"{tag}"'} if tag is not None else {}
        path = f"/api/endpoints/{quote(endpoint, safe='')}/traffic{suffix}"
        return self._call(method, path, body, headers=headers)

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        *,
        tag: str | None = None,
    ) -> bytes:
        """Calls the experiments API below ``/api`` and returns the answer. `tag`: the state that was seen, or `*`."""
        headers = {"If-Match": tag if tag == "*" else f'"{tag}"'} if tag is not None else {}
        status, text = self._exchange(method, f"/api{path}?{urlencode(query or {})}".rstrip("?"), body, headers)
        if not 200 <= status < 300:
            raise self._error(status, _json(text))
        return text

    def lines(self, path: str, last_event: str | None) -> Iterator[str]:
        """Yields the lines of an event stream after `last_event` as they arrive, until it ends. Raises CommandError."""
        for line in self._read(path, {"Last-Event-ID": last_event} if last_event is not None else {}, iter):
            yield line.decode().rstrip("\n")

    def pieces(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """Yields a file in pieces as they arrive. Raises CommandError, also if it ends early."""
        yield from self._read(f"{path}?{urlencode(query)}", {}, lambda answer: iter(lambda: answer.read1(_PIECE), b""))

    def _read(
        self, path: str, headers: Mapping[str, str], parts: Callable[[http.client.HTTPResponse], Iterator[bytes]]
    ) -> Iterator[bytes]:
        request = Request(self.url + path, None, {**self._headers, **headers})
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                self._require_router(path, answer)
                yield from parts(answer)
        except http.client.IncompleteRead:
            raise CommandError(f"{self.url} ended its answer early. Ask again", ExitCode.UNREACHABLE) from None
        except HTTPError as error:
            with error:
                raise self._error(error.code, _json(error.read())) from None
        except (URLError, OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def _call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        accept: tuple[int, ...] = (200,),
        headers: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        status, text = self._exchange(method, path, body, headers)
        content = _json(text)
        if status not in accept:
            raise self._error(status, content)
        if not isinstance(content, dict):
            raise self._strange(f"{path} returned no JSON object")
        return content

    def _exchange(
        self, method: str, path: str, body: object, more_headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Sends a request; returns the status and the body, also of an error."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self._headers, **(more_headers or {})}
        try:
            with self._opener.open(
                Request(self.url + path, data, headers, method=method), timeout=_TIMEOUT_S
            ) as answer:
                self._require_router(path, answer)
                return answer.status, answer.read()
        except HTTPError as error:
            with error:
                return error.code, error.read()
        except (URLError, OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def _require_router(self, path: str, answer: http.client.HTTPResponse) -> None:
        """Raises CommandError for a page of another program or a proxy: no API of a router answers with one."""
        if answer.headers.get_content_type() == "text/html":
            raise self._strange(f"{path} is a page for browsers")

    def _unreachable(self, error: Exception) -> CommandError:
        reason = f"{self.url} cannot be reached ({getattr(error, 'reason', None) or error})"
        fix = f"{reason}. Correct --url, or start the server there"
        return CommandError(explained(reason) if self._is_local_run else fix, ExitCode.UNREACHABLE)

    def _strange(self, reason: str) -> CommandError:
        """An answer that is no router's: in a local run, that of an ingress without one."""
        if self._is_local_run:
            return CommandError(explained(f"{self.url} has no router now: {reason}"), ExitCode.UNREACHABLE)
        return CommandError(f"{self.url} is not a Switchyard router: {reason}")

    def _error(self, status: int, content: Any) -> CommandError:
        if content is None and self._is_local_run:
            return self._strange(f"status {status}")
        message = None
        if isinstance(content, dict):
            openai = content.get("error")
            message = openai.get("message") if isinstance(openai, dict) else content.get("message")
        text = re.sub(r"^traffic_config\S*: ", "", str(message or f"{self.url} returned status {status}"))
        text = pasteable(text, None if self._is_local_run else self.url)
        if status == 401:
            return CommandError(f"{text}. Name a key: --key KEY, or the variable SWITCHYARD_API_KEY", ExitCode.DENIED)
        if status == 403:
            return CommandError(text, ExitCode.DENIED)
        return CommandError(text, ExitCode.UNREACHABLE if status >= 500 else ExitCode.WRONG)


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
