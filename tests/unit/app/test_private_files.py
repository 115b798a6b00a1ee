"""Modes of files and folders that only their owner may read."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.experiments.storage.directory import make_private
from app.private_files import make_folder, open_new, tighten


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(params=[0, 0o022, 0o077], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test, under each of these."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_new_folders_and_files_are_private_and_present_ones_stay_where_they_are(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_folder(tmp_path / "a/b")
    make_folder(tmp_path / "a/b")
    assert (mode(tmp_path), mode(tmp_path / "a"), mode(tmp_path / "a/b")) == (0o755, 0o700, 0o700)
    file = tmp_path / "a/file"
    for content in (b"long", b"new"):
        with open_new(file) as opened:
            opened.write(content)
        assert (mode(file), file.read_bytes()) == (0o600, content)
        file.chmod(0o666)


def test_a_device_keeps_its_mode() -> None:
    before = mode(Path("/dev/null"))
    with open_new(Path("/dev/null")) as opened:
        opened.write(b"x")
    assert mode(Path("/dev/null")) == before


def test_tightening_takes_rights_away_and_gives_none(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    for path, bits in ((folder / "wide", 0o666), (folder / "narrow", 0o400), (elsewhere, 0o644)):
        path.touch()
        path.chmod(bits)
    (folder / "link").symlink_to(elsewhere)
    folder.chmod(0o777)
    assert tighten(folder) == []
    assert [mode(path) for path in (folder, folder / "wide", folder / "narrow", elsewhere)] == [
        0o700,
        0o600,
        0o400,
        0o644,
    ]


def test_a_ledger_in_a_folder_with_other_things_leaves_those_alone(tmp_path: Path) -> None:
    """`ledger.url: .` is allowed: then programs and notes lie beside the ledger."""
    tmp_path.chmod(0o755)
    program, exposures = tmp_path / "program", tmp_path / "exposures"
    program.touch()
    program.chmod(0o755)
    exposures.mkdir()
    exposures.chmod(0o755)
    make_private(tmp_path)
    assert [mode(path) for path in (tmp_path, program, exposures)] == [0o755, 0o755, 0o700]
    program.unlink()
    make_private(tmp_path)
    assert mode(tmp_path) == 0o700
    make_private(tmp_path / "missing")
