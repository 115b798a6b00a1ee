"""State that an analysis cannot recompute from exposures: its verdicts so far, alarms.

One small file for each experiment and writer, `state/<experiment>/<writer>.json`, replaced each time.
"""

from typing import Any

import msgspec

from app.experiments.storage.store import Missing, Store

FOLDER = "state"


class Snapshot(msgspec.Struct, frozen=True):
    """The state of one run's analysis at a Unix time."""

    at: float
    experiment: str
    started_at: float
    state: dict[str, Any]


def write(store: Store, writer: str, snapshot: Snapshot) -> None:
    """Raises StoreError."""
    store.write(f"{FOLDER}/{snapshot.experiment}/{writer}.json", msgspec.json.encode(snapshot))


def latest(store: Store) -> dict[str, Snapshot]:
    """The newest of each experiment. Other files are left out. Raises StoreError."""
    found: dict[str, Snapshot] = {}
    for file in store.list(FOLDER):
        if not file.path.endswith(".json") or file.path.rpartition("/")[2].startswith("."):
            continue
        try:
            with store.open(file.path) as data:
                snapshot = msgspec.json.decode(data.read(), type=Snapshot)
        except (Missing, msgspec.DecodeError):
            continue
        if snapshot.experiment not in found or found[snapshot.experiment].at < snapshot.at:
            found[snapshot.experiment] = snapshot
    return found


def discard(store: Store, keep: str, before: float) -> None:
    """Deletes other writers' snapshots that are older than `before` (Unix seconds). Raises StoreError."""
    for file in store.list(FOLDER):
        if file.modified_at < before and not file.path.endswith(f"/{keep}.json"):
            store.delete(file.path)
