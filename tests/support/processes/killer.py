"""Kills the controller of experiments before and after each of its effects, once each."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from app.experiments.automation.state import KINDS
from app.experiments.contract.journal import JournalEntry
from app.experiments.storage.journal import JOURNAL
from app.experiments.storage.store import File, FileStore, LocalStore
from tests.support.experiments.failing_store import Death
from tests.support.processes.fake_control_plane import MemoryControl


class Killer:
    """`deaths`: the effects before or after which the controller was killed, in order."""

    def __init__(self) -> None:
        self.deaths: list[str] = []

    def at(self, effect: str) -> None:
        """Raises Death the first time that it is called with this effect."""
        if effect not in self.deaths:
            self.deaths.append(effect)
            raise Death

    def has_killed(self, begin: str) -> bool:
        """Whether there was a death whose description starts with this text."""
        return any(death.startswith(begin) for death in self.deaths)

    def open_store(self, url: str, base: Path) -> FileStore:
        """The local directory."""
        return _MortalStore(LocalStore(base / url), self)


class _MortalStore:
    """A write of the journal that has states of experiments is an effect."""

    def __init__(self, store: LocalStore, killer: Killer) -> None:
        self._store, self._killer = store, killer

    def write(self, path: str, data: bytes) -> None:
        effects = _effects(data) if path.startswith(f"{JOURNAL}/") else ""
        if effects:
            self._killer.at(f"before {effects}")
        self._store.write(path, data)
        if effects:
            self._killer.at(f"after {effects}")

    def open(self, path: str) -> AbstractContextManager[Any]:
        return self._store.open(path)

    def list(self, folder: str) -> list[File]:
        return self._store.list(folder)

    def delete(self, path: str) -> None:
        self._store.delete(path)


def _effects(data: bytes) -> str:
    entries = [msgspec.json.decode(line, type=JournalEntry) for line in data.splitlines()]
    return ", ".join(f"{entry.kind}: {entry.detail['text']}" for entry in entries if entry.kind in KINDS)


class MortalControl(MemoryControl):
    """A change of the traffic is an effect, too; so is the delivery of it."""

    killer: Killer | None = None

    async def replace(self, expected: Any, wanted: Any) -> None:
        plan = wanted["endpoints"]["chat"]
        if self.killer is None or not plan["plan"].get("by", "").startswith("experiment "):
            return await super().replace(expected, wanted)
        self.killer.at(f"before plan: {plan['traffic']}")
        await super().replace(expected, wanted)
        self.killer.at(f"after plan: {plan['traffic']}")
        return None
