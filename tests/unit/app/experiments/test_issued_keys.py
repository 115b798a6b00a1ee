"""Issued keys on disk: two controllers undo none of each other's changes, and no file holds a secret."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.access.issued import IssuedKey, IssuedKeys, KeyChange, records_of
from app.access.keys import create
from app.errors import BadRequest, Conflict, NotFound
from app.experiments.issued_keys import LOOK_S, IssuedKeyStore
from app.experiments.storage.store import LocalStore


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def issued(name: str, **fields: Any) -> tuple[str, IssuedKey]:
    secret, record = create(name, **fields)
    plain = record.model_dump(mode="json", exclude_unset=True)
    return secret, IssuedKey(record.id, name, plain, Clock.now, "boss")


def change(store: IssuedKeyStore, id: str, expected: str, key: IssuedKey | None) -> int:
    return store.change(msgspec.json.encode(KeyChange(id, expected, key))).status


def names(store: IssuedKeyStore) -> list[str]:
    issued = msgspec.json.decode(store.answer(None).body, type=IssuedKeys).keys
    return sorted(key.name for key in issued or [])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> IssuedKeyStore:
    return IssuedKeyStore(lambda: LocalStore(tmp_path), clock)


def test_a_key_is_there_for_another_controller_without_its_secret(
    store: IssuedKeyStore, tmp_path: Path, clock: Clock
) -> None:
    secret, key = issued("ann", endpoints=("chat",))
    assert change(store, key.id, "", key) == 200
    assert names(IssuedKeyStore(lambda: LocalStore(tmp_path), clock)) == ["ann"]
    (file,) = (tmp_path / "keys").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret not in file.read_text()
    assert secret[-43:] not in file.read_text()


def test_a_reader_that_knows_the_revision_gets_no_keys_again(store: IssuedKeyStore) -> None:
    _, key = issued("ann")
    change(store, key.id, "", key)
    document = json.loads(store.answer(None).body)
    assert json.loads(store.answer(document["revision"]).body) == {"revision": document["revision"], "keys": None}
    change(store, key.id, key.revision, None)
    assert json.loads(store.answer(document["revision"]).body)["keys"] == []


def test_a_change_is_for_the_key_that_was_seen(store: IssuedKeyStore) -> None:
    _, key = issued("ann")
    other = IssuedKey(key.id, "ann", {**key.record, "endpoints": ["chat"]}, key.created_at, "boss")
    change(store, key.id, "", key)
    answer = store.change(msgspec.json.encode(KeyChange(key.id, "0123", other)))
    assert (answer.status, msgspec.json.decode(answer.body, type=IssuedKey)) == (412, key)
    assert change(store, key.id, key.revision, other) == 200
    assert change(store, key.id, key.revision, None) == 412
    assert change(store, key.id, "*", None) == 200
    with pytest.raises(NotFound):
        change(store, key.id, "*", None)


def test_a_name_has_one_key_and_an_id_is_one_file(store: IssuedKeyStore) -> None:
    _, key = issued("ann")
    change(store, key.id, "", key)
    _, again = issued("ann")
    with pytest.raises(Conflict, match="'ann' has a key already"):
        change(store, again.id, "", again)
    _, other = issued("bob")
    with pytest.raises(BadRequest, match="12 hexadecimal digits"):
        change(store, "../../../tmp/x", "", other)
    with pytest.raises(BadRequest):
        store.change(b"{}")


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["create", "revoke"]), st.integers(0, 3)), max_size=12))
def test_two_controllers_undo_none_of_each_others_changes(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[int, str, int]]
) -> None:
    directory, clock = tmp_path_factory.mktemp("keys"), Clock()
    stores = [IssuedKeyStore(lambda: LocalStore(directory), clock) for _ in range(2)]
    there: dict[str, IssuedKey] = {}
    for which, action, number in actions:
        name = f"caller {number}"
        if action == "create" and name not in there:
            there[name] = issued(name)[1]
            assert change(stores[which], there[name].id, "", there[name]) == 200
        elif action == "revoke" and name in there:
            key = there.pop(name)
            assert change(stores[which], key.id, key.revision, None) == 200
        clock.now += LOOK_S
        for store in stores:
            assert names(store) == sorted(there)


def test_of_two_keys_of_one_name_the_older_is_valid_and_a_damaged_record_admits_nobody() -> None:
    _, first = issued("ann")
    _, second = issued("ann")
    second = msgspec.structs.replace(second, created_at=first.created_at + 1)
    _, other = issued("bob")
    broken = msgspec.structs.replace(other, record={**other.record, "hash": "md5:1"})
    assert [record.id for record in records_of([second, broken, first])] == [first.id]
