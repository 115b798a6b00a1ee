"""A local directory and an object store behave alike, also when they fail."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from app.experiments.storage.store import FileStore, LocalStore, Missing, ObjectStore, StoreError, open_store


def local(directory: Path) -> FileStore:
    return LocalStore(directory / "ledger")


def bucket(directory: Path) -> FileStore:
    """An object store whose objects are files of this machine."""
    files = pafs.LocalFileSystem()
    return ObjectStore(pafs.SubTreeFileSystem(str(directory), files), "bucket/ledger/")


STORES = pytest.mark.parametrize("make", [local, bucket])


def content(store: FileStore, path: str) -> bytes:
    with store.open(path) as file:
        return bytes(file.read())


@STORES
def test_a_file_is_what_was_written_last(make: Callable[[Path], FileStore], tmp_path: Path) -> None:
    if make is bucket:
        (tmp_path / "bucket/ledger/a/b").mkdir(parents=True)  # object stores have no folders to make
    store = make(tmp_path)
    assert store.list("a") == []
    store.write("a/b/one", b"1")
    store.write("a/b/one", b"2")
    store.write("a/b/two", b"3")
    assert [file.path for file in store.list("a")] == ["a/b/one", "a/b/two"]
    assert content(store, "a/b/one") == b"2"
    store.delete("a/b/one")
    store.delete("a/b/one")
    with pytest.raises(Missing):
        content(store, "a/b/one")
    assert [file.path for file in store.list("a")] == ["a/b/two"]
    assert store.list("a")[0].modified_at > 1.7e9


def test_no_temporary_file_is_left_where_writing_failed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "a/b").mkdir(parents=True)
    with pytest.raises(StoreError):
        store.write("a/b", b"1")  # a folder cannot be replaced by a file
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_a_path_below_a_regular_file_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for store in (LocalStore(tmp_path / "file"), LocalStore(tmp_path / "file/deeper")):
        with pytest.raises(StoreError):
            store.write("a/b", b"")
        with pytest.raises(StoreError):
            store.list("a")
        with pytest.raises(StoreError):
            store.delete("a/b")


def test_an_address_names_a_directory_or_an_object_store(tmp_path: Path) -> None:
    open_store("ledger", tmp_path).write("a", b"")
    open_store(str(tmp_path / "absolute"), Path("/nowhere")).write("a", b"")
    open_store(f"file://{tmp_path}/by-uri", Path("/nowhere")).write("a", b"")
    assert {path.name for path in tmp_path.iterdir()} == {"ledger", "absolute", "by-uri"}
    for scheme in ("gopher", "s3x"):
        with pytest.raises(StoreError):
            open_store(f"{scheme}://bucket/ledger", tmp_path)


def test_s3_is_opened_without_a_request(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        store = open_store("s3://bucket/ledger?region=eu-central-1", tmp_path)
    assert isinstance(store, ObjectStore)
    assert os.listdir(tmp_path) == []
