"""Streams with the marks by which another engine can continue them, as replicas of model applications send them.

Contract: `app.internal_api.CONTINUATION_HEADER`. A test oracle: it does not use the router's code.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_HEAD = re.compile(rb'"role":"assistant","content":""|"type":"(?:response\.created|message_start)"')
_LAST = re.compile(
    rb'"finish_reason":"|"choices":\[\]|\[DONE\]'
    rb'|"type":"(?:response\.completed|response\.incomplete|message_delta|message_stop)"'
)


class Group(NamedTuple):
    """The events of one output of an engine, and the ids of its tokens."""

    events: bytes
    ids: Sequence[int]

    @property
    def marked(self) -> bytes:
        return self.events + b":t %b\n\n" % ",".join(map(str, self.ids)).encode()


def grouped(stream: bytes) -> list[Group]:
    """The groups of an undisturbed stream: a token for each event, but for those before the first token, and one for
    all from the end of generation on."""
    groups: list[Group] = []
    before = b""
    frames = [frame + b"\n\n" for frame in stream.split(b"\n\n")[:-1]]
    for number, frame in enumerate(frames):
        if _LAST.search(frame):
            return [*groups, Group(before + b"".join(frames[number:]), [70 + number, 1000])]
        before += frame
        if not frame.startswith(b":"):
            groups.append(Group(before, [] if _HEAD.search(frame) else [70 + number]))
            before = b""
    return groups


def rest(groups: Sequence[Group], known: int) -> list[Group]:
    """What follows the first `known` tokens, and what precedes the first."""
    left = known
    for number, group in enumerate(groups):
        if left == 0 and group.ids:
            return list(groups[number:])
        left -= len(group.ids)
    return []


@dataclass(frozen=True)
class Fate:
    """What befalls an engine in a stream, after so many groups of it.

    `closed`: its connection is closed; `half`, in the middle of a group; `error`: it sends vLLM's error event for an
    engine that has died; `handover`: it hands the stream over; `none`: it cannot be continued from here on; `silence`:
    nothing more comes; `busy`: it does not begin, for want of room; `absent`: there is no replica; `refused`: it does
    not take the continuation; `dying`: it takes the request, and its connection ends without an answer, as that of one
    that died before. Or there is no replica, and the ingress's own proxy: `held`, has the request wait for one, which
    comes then; `queued`, has no room for it. `pause_s`: seconds before that.
    """

    after: int = 0
    how: Literal[
        "closed",
        "half",
        "error",
        "handover",
        "none",
        "silence",
        "busy",
        "absent",
        "refused",
        "dying",
        "held",
        "queued",
    ] = "closed"
    pause_s: float = 0.0
    of: int | None = None
    """The engine's number, where several streams have the same: otherwise each has an engine of its own."""


FAILED = b'data: {"error":{"message":"EngineCore encountered an issue","type":"InternalServerError","code":500}}\n\n'


class MarkedResponse(Response):
    """A stream of these groups, in a message each, and what befalls it."""

    def __init__(self, groups: Sequence[Group], fate: Fate | None, pause_s: float, name: str) -> None:
        headers = {"x-switchyard-continuation": "marked", "x-switchyard-replica": name}
        super().__init__(media_type="text/event-stream", headers=headers)
        self._groups, self._fate, self._pause_s = groups, fate, pause_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_on(part: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": more})
            await asyncio.sleep(self._pause_s)

        headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        fate = self._fate
        for group in self._groups if fate is None else self._groups[: fate.after]:
            await pass_on(group.marked)
        await asyncio.sleep(fate.pause_s if fate else 0)
        match fate and fate.how:
            case None:
                await pass_on(b"", more=False)
            case "half":
                await pass_on(self._groups[fate.after].events[:-5] if fate else b"")
            case "error":
                await pass_on(FAILED + b":t \n\n" + b"data: [DONE]\n\n", more=False)
            case "handover":
                await pass_on(b":handover\n\n", more=False)
            case "none":
                await pass_on(b":none\n\n")
            case "silence":
                await asyncio.Event().wait()
        # A response that is not complete makes the server close the connection.
