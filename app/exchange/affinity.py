"""The key that brings the turns of a conversation to the same replica of a deployment.

The router keeps no table: the key is a hash of the request's own content, so that every router computes the same one.
`app.upstream.balancer` orders the replicas by each key. A *sticky* key's deployment is
`app.routing.traffic.rendezvous`; a unit's hash is in `app.exposures.identity`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.config.endpoints import Affinity
from app.dialects.base import Call
from app.engine.output import max_tokens
from app.exchange.snapshot import Snapshot
from app.exposures.identity import (
    CONVERSATIONS,
    SESSION_HEADER,
    has_previous_turns,
    new_items,
    own_key,
    stable_prefix,
)
from app.limits.limiter import estimate
from app.routing.traffic import Assignment
from app.upstream.balancer import Placement
from app.upstream.target import Target

_EMPTY = hashlib.blake2b(digest_size=8)

_FIRST, _LAST = 1024, 256
"""Characters of a long text that are hashed, at its beginning and its end, together with its length."""

_MOST_TOOLS = 64
_TOKENS = 256


class Place:
    """Tells what decides on a request's replica, for each deployment that is called."""

    def __init__(
        self,
        snapshot: Snapshot,
        assignment: Assignment,
        caller: str,
        call: Call,
        headers: Mapping[str, str],
        prompt_estimate: Callable[[], int],
    ) -> None:
        """`caller` is the caller's id."""
        self.scope = cache_scope(snapshot, assignment.endpoint, caller)
        """The request's `cache_scope`. Prompts that share no cache need no replica in common."""
        self._snapshot, self._assignment, self._caller = snapshot, assignment, caller
        self._call, self._headers, self._prompt_estimate = call, headers, prompt_estimate
        self._placements: dict[str, Placement] = {}
        self._avoided: set[str] = set()

    def failed(self, deployment: str) -> None:
        """From now on the replica that was called for this deployment gets the request only if there is no other."""
        if (placement := self._placements.get(deployment)) is not None:
            self._avoided.add(placement.chosen)

    def placement(self, target: Target) -> Placement:
        """For calls of the deployment, and for a mirrored copy. Computes no key for deployments without affinity."""
        placement = self._placements.get(target.name)
        if placement is None:
            placement = self._placements[target.name] = Placement(avoided=self._avoided)
            if target.app is not None:
                self._weigh(placement)
                self._find_key(placement, target.affinity)
        return placement

    def _weigh(self, placement: Placement) -> None:
        call = self._call
        placement.prompt = placement.uncached = self._prompt_estimate()
        placement.most = max_tokens(call.body) if call.translation.generates else 0

    def _find_key(self, placement: Placement, affinity: Affinity | None) -> None:
        if affinity is None or not (key := self._key(affinity)):
            return
        digest = _EMPTY.copy()  # half as long as a new one takes
        digest.update(key.encode("utf-8", "surrogatepass"))
        placement.key, placement.bound = int.from_bytes(digest.digest()), affinity.bound
        if has_previous_turns(self._call.task, self._call.body):
            placement.uncached = estimate({"messages": list(new_items(self._call.task, self._call.body))})
        else:
            # First turns lose least: any replica has the system prompt cached, sooner or later even where each caller
            # has to bring its own.
            placement.bound /= 2

    def _key(self, affinity: Affinity) -> str | None:
        by_prefix = affinity.by == "prefix"
        if by_prefix and self._call.cache_key:
            return own_key(self._caller, _cut(self._call.cache_key))
        if (key := self._sticky_key(affinity)) or not by_prefix:
            return key
        text = prompt_prefix(self._call.task, self._call.body)
        return f"{self.scope}\0{text}" if text and self.scope else text

    def _sticky_key(self, affinity: Affinity) -> str | None:
        key = self._assignment.key
        if affinity.by == "session":
            session = self._headers.get(SESSION_HEADER)
            return key or (own_key(self._caller, session) if session else None)
        if key is None:
            return None
        endpoint = self._snapshot.config.endpoints.get(self._assignment.endpoint)
        # An API key may belong to a whole service, so it does not identify a conversation.
        is_one_caller = endpoint is not None and endpoint.sticky is not None and endpoint.sticky.by == "api_key"
        return None if is_one_caller else key


def prompt_prefix(task: str, body: Mapping[str, Any]) -> str | None:
    """The beginning of a conversation's prompt, the same text in every turn; None for tasks without a prefix cache.

    `body` is the request in vLLM's fields. Two conversations may have the same text: they share a replica then.
    """
    if task == "completions":
        return _prompt(body.get("prompt"))
    if task not in CONVERSATIONS:
        return None
    texts = [_cut(text) for text in stable_prefix(task, body)]
    tools = body.get("tools")
    for tool in tools[:_MOST_TOOLS] if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            texts.append(name)
    return "\n".join(texts) or None


def _prompt(prompt: Any) -> str | None:
    """The beginning of a prompt, or of a batch's first. Prompts grow from turn to turn, so the length is left out."""
    if isinstance(prompt, Sequence) and not isinstance(prompt, str) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt[:_FIRST] or None
    return str(prompt[:_TOKENS]) if isinstance(prompt, list) and prompt else None


def _cut(text: str) -> str:
    if len(text) <= _FIRST + _LAST:
        return text
    return f"{len(text)}:{text[:_FIRST]}{text[-_LAST:]}"


def cache_scope(snapshot: Snapshot, endpoint: str, caller: str) -> str:
    """Names the requests that may share cached prompts with this one, "" for all. `caller` is the caller's id,
    `endpoint` the endpoint's name, or that of a deployment which no endpoint lists."""
    section = snapshot.config.endpoints.get(endpoint)
    isolate = section.isolate_cache if section is not None else None
    match isolate or ("caller" if snapshot.knows_callers else "none"):
        case "caller":
            return f"caller {caller}"
        case "endpoint":
            return f"endpoint {endpoint}"
        case _:
            return ""
