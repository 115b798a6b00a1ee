"""The events of a running server, as they happen: one line each."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from app.moments import shown
from deployments.cli.errors import CommandError, ExitCode
from deployments.cli.router_client import RouterClient

RETRY_S = 2.0
"""The delay before a server that did not answer is asked again."""


class Frame(NamedTuple):
    """One frame of the stream. `data` is empty for comments, whose words are `comment`."""

    id: str
    data: str
    comment: str


def follow(
    client: RouterClient, since: str | None, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> Iterator[dict[str, Any]]:
    """Yields the data of each event, forever. Streams end, and the next one resumes after the last event.

    `since`: an event's id or Unix seconds; None: from now on. `say` gets other messages, each once. Raises
    CommandError if the first stream cannot be opened.
    """
    last, is_first, said = since, True, ""
    while True:
        is_empty = True
        try:
            for frame in frames(client.lines("/api/events", last)):
                is_first = is_empty = False
                last = frame.id or last
                if frame.data:
                    said = ""
                    yield json.loads(frame.data)
                elif "does not answer" in frame.comment and said != frame.comment:
                    said = frame.comment
                    say(frame.comment)
        except CommandError as error:
            # A router that is being replaced comes back; one that refuses will refuse again.
            if is_first or error.exit_code != ExitCode.UNREACHABLE:
                raise
            if said != error.message:
                said = error.message
                say(f"{error.message}; trying again")
        if is_empty:  # no server, or one that ends streams at once
            sleep(RETRY_S)


def frames(lines: Iterable[str]) -> Iterator[Frame]:
    """The frames of a stream of events; one that is cut off is none."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        yield Frame(fields.get("id", ""), fields.get("data", ""), fields.get("", ""))
        fields = {}


def is_about(event: dict[str, Any], name: str, endpoint: str) -> bool:
    """Whether an event is about the experiment `name`, or about the plans of its endpoint."""
    return (event.get("experiment", name), event.get("endpoint", endpoint)) == (name, endpoint)


def line_of(event: dict[str, Any]) -> str:
    """``2026-11-12 14:02:11 UTC  no-prefix-cache: smollm2-green exceeds the guardrail error``"""
    about = event.get("experiment") or event.get("endpoint")
    return f"{shown(event['at'])}  {f'{about}: ' if about else ''}{event['text']}"
