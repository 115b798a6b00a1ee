"""Hashes that represent units, callers, requests and conversations: the ledger holds no name, key or header value.

- The units' secret: given to every router of a cluster, or made once and kept in the ledger's directory.
- The conversation that a request belongs to, and its number of turns: pure functions of a request in vLLM's fields.
"""

import hashlib
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from app.config.access import ANONYMOUS
from app.config.schema import Sticky
from app.internal_api import INTERNAL_KEY_VARIABLE, UNIT_SECRET_VARIABLE
from app.internal_keys import listed
from app.private_files import make_folder
from app.telemetry.logs import event

_EMPTY = hashlib.blake2b(digest_size=8)
_number = int.from_bytes  # looked up once: that takes longer than the conversion


def request_hash(id: str | bytes) -> int:
    """The hash of a request id or of the id in an answer's body, as text or in UTF-8: not keyed, so that the id is
    enough to find its exposure."""
    digest = _EMPTY.copy()
    digest.update(id if isinstance(id, bytes) else id.encode("utf-8", "surrogatepass"))
    return _number(digest.digest())


def secret_of(text: str) -> bytes:
    """The units' secret of a cluster: every router derives the same one from the same text."""
    return hashlib.blake2b(text.encode(), person=b"ledger secret", digest_size=32).digest()


def unit_key(sticky: Sticky, caller: str, value: str) -> str:
    """The sticky key of a client's `value`: what is drawn, and hashed as a unit. `caller` is the caller's id.

    Two callers' equal values are two keys: otherwise one of them could spoil the other's unit. Without credentials
    there is one caller, and its values are its keys. With `by: api_key` the unit is the caller, whichever of its keys
    or tokens it shows.
    """
    if sticky.by == "api_key" and caller != ANONYMOUS:
        value = ""
    return own_key(caller, value)


def own_key(caller: str, value: str) -> str:
    """A client's `value` as a key of its caller's. `caller` is the caller's id, which has no NUL."""
    return value if caller == ANONYMOUS and "\0" not in value else f"{caller}\0{value}"


class Hashes:
    """Keyed blake2b-64 of units, callers and conversations: without `secret`, a guess at a key cannot be confirmed."""

    def __init__(self, secret: bytes) -> None:
        self._unit = hashlib.blake2b(key=secret, person=b"unit", digest_size=8)
        self._caller = hashlib.blake2b(key=secret, person=b"caller", digest_size=8)
        self._conversation = hashlib.blake2b(key=secret, person=b"conversation", digest_size=8)
        self.secret_id = hashlib.blake2b(key=secret, person=b"secret", digest_size=8).hexdigest()
        """Tells whether hashes were made with the same secret."""
        self.caller = lru_cache(maxsize=4096)(self._caller_hash)

    def unit(self, key: str) -> int:
        """The hash of a sticky key."""
        digest = self._unit.copy()
        digest.update(key.encode("utf-8", "surrogatepass"))
        return _number(digest.digest())

    def conversation(self, caller: str, key: str) -> int:
        """The hash of a caller's conversation: two callers' equal keys are two conversations."""
        digest = self._conversation.copy()
        digest.update(f"{len(caller)}:{caller}{key}".encode("utf-8", "surrogatepass"))
        return _number(digest.digest())

    def _caller_hash(self, id: str) -> int:
        digest = self._caller.copy()
        digest.update(id.encode("utf-8", "surrogatepass"))
        return _number(digest.digest())


# It is no key: whoever has it can look up a guessed unit in the ledger, and can call nothing. Whoever has a ledger
# keeps its secret, since the same units have other hashes under another one.

FILE = "unit-secret"
_SIZE = 32
_KEPT = re.compile(rf"kept:([0-9a-f]{{{2 * _SIZE}}})")
"""The variable's value that is the content of a ledger's file, and no text of an operator."""
_log = logging.getLogger("switchyard")


def unit_secret(given: str, internal_key: str, base: Path, ledger_url: str) -> bytes:
    """The secret from `given`, the variable's value; without it, from the ledger's directory, which may be relative to
    `base`.

    Nodes without a common directory need the variable. Those of earlier versions derived the secret from the internal
    key: without the variable, that goes on, so that their ledgers' units stay the same; the log asks for the variable,
    since the hashes would change with the key.
    """
    if given:
        kept = _KEPT.fullmatch(given)
        return bytes.fromhex(kept[1]) if kept else secret_of(given)
    if keys := listed(internal_key):
        _log.warning(
            f"The secret of experiments' units is derived from {INTERNAL_KEY_VARIABLE}: set {UNIT_SECRET_VARIABLE} to "
            "the same value before you change that key, or all users count as new ones",
            extra=event("unit_secret_from_internal_key"),
        )
        return secret_of(keys[0])
    return _kept_or_new(base, ledger_url)


def kept_variable(base: Path, ledger_url: str) -> str:
    """The secret that the ledger's directory keeps, as the variable's value for the processes of one machine."""
    return f"kept:{_kept_or_new(base, ledger_url).hex()}"


def _kept_or_new(base: Path, ledger_url: str) -> bytes:
    """Without a directory that can be read and written here, the secret is new each time: the units of earlier
    processes are then other units."""
    try:
        if "://" in ledger_url:
            raise OSError(f"{ledger_url} is not a directory of this machine")
        return kept_secret(base / ledger_url)
    except OSError as error:
        _log.warning(
            "The secret of experiments' units could not be kept: after a restart, users count as new ones",
            extra=event("unit_secret_not_kept", error=str(error)),
        )
        return secrets.token_bytes(_SIZE)


def kept_secret(directory: Path) -> bytes:
    """The secret in `directory`, made with mode 600 if there is none. Raises OSError.

    Processes that start together agree: a link, unlike a rename, replaces nothing.
    """
    file = directory / FILE
    if not file.exists():
        make_folder(directory)
        new = directory / f"{FILE}.{os.getpid()}.{secrets.token_hex(4)}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as written:
                written.write(secrets.token_hex(_SIZE))
            with suppress(FileExistsError):  # another process was first
                os.link(new, file)
        finally:
            new.unlink()
    try:
        secret = bytes.fromhex(file.read_text())
    except ValueError:
        secret = b""
    if len(secret) != _SIZE:
        raise OSError(f"{file} does not hold a secret; remove it")
    return secret


SESSION_HEADER = "x-session-id"
"""Names the conversation of a request, for endpoints with `sticky: {by: conversation}`."""

_MOST_CHARACTERS = 16 * 1024
"""The part of a text that is hashed, besides its length: hashing a megabyte would delay every other request."""

_MOST_TEXTS = 64
_MOST_VALUES = 512
"""Of a content that is not text; the rest is not looked at."""

_MOST_MESSAGES = 64
"""With system texts, before the first user message; further ones are not looked at."""

CONVERSATIONS = ("chat", "responses")
"""Tasks whose requests may hold earlier turns."""

_SYSTEM = ("system", "developer")
_BY_THE_MODEL = frozenset({"function_call", "reasoning", "custom_tool_call", "mcp_call"})
"""Items of a Responses request, without a role, that are parts of the model's turns."""

_NOT_CONTENT = frozenset({"type", "cache_control", "detail"})
"""Members of content parts that are not content: clients move `cache_control` from turn to turn."""


def conversation_key(caller: str, task: str, body: Mapping[str, Any]) -> str | None:
    """The same text for every turn of a conversation: a hash of the caller, the system texts before the first user
    message, and that message. None for requests that are not conversations: completions, embeddings.

    `body` is the request in vLLM's fields: a chat, Anthropic's messages or a Responses request.
    """
    hashed: list[str] = []
    _add(hashed, "caller", caller)
    for role, value in _until_the_user(task, body):
        _add(hashed, role, value)
        if role == "user":
            return hashlib.blake2b("".join(hashed).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return None


def stable_prefix(task: str, body: Mapping[str, Any]) -> Iterator[str]:
    """The system texts before the first user message, and that message's: the same in every turn."""
    for _, value in _until_the_user(task, body):
        if isinstance(value, str):  # nearly always
            yield value
        else:
            yield from islice(_texts(value), _MOST_TEXTS)


def _until_the_user(task: str, body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Roles and contents, up to the first user message."""
    system, items = _parts(task, body)
    if system is not None:
        yield "system", system
    systems = 0
    for item in items:
        role = item.get("role") if isinstance(item, dict) else "user"
        if role in _SYSTEM and systems < _MOST_MESSAGES:
            systems += 1
            yield "system", item.get("content")
        elif role == "user":
            yield "user", item.get("content") if isinstance(item, dict) else item
            return


def new_items(task: str, body: Mapping[str, Any]) -> Sequence[Any]:
    """The messages or items since the model's last one."""
    items = _parts(task, body)[1]
    for index in range(len(items) - 1, -1, -1):
        if _is_models(items[index], task):
            return items[index + 1 :]
    return items


def _is_models(item: Any, task: str) -> bool:
    return isinstance(item, dict) and (
        item.get("role") == "assistant" or (task == "responses" and item.get("type") in _BY_THE_MODEL)
    )


def turns(task: str, body: Mapping[str, Any], most: int | None = None) -> int:
    """The model's earlier turns that a request holds; no more than `most` are counted."""
    count, before = 0, False
    for item in _parts(task, body)[1]:
        is_models = _is_models(item, task)
        if is_models and not before:
            count += 1
            if count == most:
                break
        before = is_models
    return count


def has_previous_turns(task: str, body: Mapping[str, Any]) -> bool:
    """Whether a request holds a turn of the model's."""
    return turns(task, body, most=1) > 0


def _parts(task: str, body: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
    """The texts before the messages, and the messages or items; a bare text is the user's."""
    before, items = ("system", "messages") if task == "chat" else ("instructions", "input")
    if task not in CONVERSATIONS:
        return None, ()
    listed = body.get(items)
    return body.get(before), listed if isinstance(listed, list) else () if listed is None else (listed,)


def _add(hashed: list[str], role: str, value: Any) -> None:
    """Adds the texts in `value`. Each comes after its role and length, so that no two lists of texts are the same."""
    for text in (value,) if isinstance(value, str) else islice(_texts(value), _MOST_TEXTS):
        hashed.append(f"{role}:{len(text)}:{text[:_MOST_CHARACTERS]}")


def _texts(content: Any) -> Iterator[str]:
    """The texts among the first values of a content."""
    pending, left = [content], _MOST_VALUES
    while pending and left:
        value = pending.pop()
        left -= 1
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            pending.extend(reversed(value[:left]))
        elif isinstance(value, dict):
            parts = [part for name, part in islice(value.items(), left) if name not in _NOT_CONTENT]
            pending.extend(reversed(parts))
