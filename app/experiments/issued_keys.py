"""The keys that managers have created over the API, in the ledger's directory.

    keys/<id>.json        one key each: names, rights, and the salted hash of its secret

Each key has a file of its own: two controllers, as there may be for a moment, undo none of each other's changes.
"""

from collections.abc import Callable

import msgspec

from app.access.issued import IssuedKey, IssuedKeys, KeyChange, revision_of
from app.errors import BadRequest, Conflict, NotFound, PreconditionFailed
from app.experiments.storage.store import FileStore, Missing
from app.exposures.controller_client import Answer

FOLDER = "keys"
LOOK_S = 5.0
"""Seconds after which the directory is read again, for the changes of another controller."""
MOST = 10_000


class IssuedKeyStore:
    """`open_store` opens the ledger's directory once it is needed. `clock`: Unix seconds. Not thread-safe."""

    def __init__(self, open_store: Callable[[], FileStore], clock: Callable[[], float]) -> None:
        self._open_store, self._clock = open_store, clock
        self._opened: FileStore | None = None
        self._keys: dict[str, IssuedKey] = {}
        self._modified: dict[str, float] = {}
        self._looked_at = float("-inf")

    def answer(self, known: str | None) -> Answer:
        """Every key, for a reader that has the revision `known`. Raises StoreError."""
        self._look()
        revision = revision_of(self._keys.values())
        return _json(IssuedKeys(revision, None if revision == known else list(self._keys.values())))

    def change(self, body: bytes) -> Answer:
        """Makes a change, which is on disk when this returns; 412 with the present key if another one was expected.

        Raises BadRequest, Conflict for a name that is taken, NotFound, and StoreError.
        """
        try:
            change = msgspec.json.decode(body, type=KeyChange)
        except msgspec.DecodeError as error:
            raise BadRequest(f"This is no change of a key: {error}") from None
        self._look(at_once=True)
        present = self._keys.get(change.id)
        if change.expected and present is None:
            raise NotFound(f"No issued key has the id '{change.id}'; it may have been revoked", param="id")
        if not change.expected and present is not None:
            raise Conflict("Another key has this id; create the key again")
        if change.expected not in ("", "*") and present is not None and change.expected != present.revision:
            return Answer(PreconditionFailed.status, msgspec.json.encode(present))
        if change.key is None:
            self._store.delete(_path(change.id))
            self._keys.pop(change.id, None)
            self._modified.pop(_path(change.id), None)
            return _json({})
        if any(key.name == change.key.name and key.id != change.id for key in self._keys.values()):
            raise Conflict(f"name: '{change.key.name}' has a key already; choose another name, or revoke that key")
        if len(self._keys) >= MOST and present is None:
            raise Conflict(f"There are {MOST} issued keys already; revoke some")
        self._store.write(_path(change.id), msgspec.json.encode(change.key))
        self._keys[change.id] = change.key
        self._looked_at = float("-inf")
        return _json(change.key)

    def _look(self, *, at_once: bool = False) -> None:
        if not at_once and self._clock() - self._looked_at < LOOK_S:
            return
        files = {file.path: file.modified_at for file in self._store.list(FOLDER) if file.path.endswith(".json")}
        for path in self._modified.keys() - files.keys():
            self._keys.pop(path.removeprefix(f"{FOLDER}/").removesuffix(".json"), None)
        for path, modified_at in files.items():
            if self._modified.get(path) == modified_at:
                continue
            try:
                with self._store.open(path) as file:
                    key = msgspec.json.decode(file.read(), type=IssuedKey)
            except Missing:
                continue
            except msgspec.DecodeError:  # of another version: it admits nobody
                continue
            if _path(key.id) == path:
                self._keys[key.id] = key
        self._modified, self._looked_at = files, self._clock()

    @property
    def _store(self) -> FileStore:
        if self._opened is None:
            self._opened = self._open_store()
        return self._opened


def _path(id: str) -> str:
    if not (len(id) == 12 and set(id) <= set("0123456789abcdef")):
        raise BadRequest(f"id: '{id}' is no key's id: 12 hexadecimal digits", param="id")
    return f"{FOLDER}/{id}.json"


def _json(content: object) -> Answer:
    return Answer(200, msgspec.json.encode(content))
