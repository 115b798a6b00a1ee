"""Hashes of units, callers and requests, and the secret that they are made with."""

import logging
import multiprocessing
import stat
from pathlib import Path

import pytest

from app.exposures.identity import FILE, Hashes, kept_secret, kept_variable, request_hash, secret_of, unit_secret


def test_the_same_key_has_the_same_hash_on_every_router_of_a_cluster() -> None:
    one, other, stranger = Hashes(secret_of("k")), Hashes(secret_of("k")), Hashes(secret_of("l"))
    assert one.unit("ann") == other.unit("ann") != stranger.unit("ann")
    assert one.caller("ann") == other.caller("ann") != stranger.caller("ann")
    assert 0 <= one.unit("ann") < 2**64


def test_hashes_of_units_callers_and_requests_differ() -> None:
    hashes = Hashes(secret_of("k"))
    assert len({hashes.unit("ann"), hashes.caller("ann"), request_hash("ann")}) == 3


def test_hashes_do_not_change_between_versions() -> None:
    """The ledger's directory stores hashes for weeks: a new version must find the same units."""
    hashes = Hashes(secret_of("internal"))
    assert hashes.unit("ann") == 0x6D24611D1C490D26
    assert request_hash("chatcmpl-1") == 0x05CEAAF605966FC6


def test_text_with_lone_surrogates_has_a_hash() -> None:
    hashes = Hashes(b"x" * 32)
    assert hashes.unit("\ud800") != hashes.unit("")
    assert request_hash("\ud800") != request_hash("")
    assert hashes.caller("\ud800") != hashes.caller("")


def test_without_a_given_secret_it_is_kept_in_the_ledgers_directory(tmp_path: Path) -> None:
    ledger = tmp_path / "run" / "ledger"
    secret = unit_secret("", "", tmp_path, str(ledger))
    other = str(tmp_path / "other")
    assert unit_secret("", "", tmp_path, str(ledger)) == secret != unit_secret("", "", tmp_path, other)
    assert stat.S_IMODE((ledger / FILE).stat().st_mode) == 0o600
    assert [file.name for file in ledger.iterdir()] == [FILE]


def test_a_ledger_keeps_its_secret_when_the_internal_key_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, the secret followed from the internal key: `SWITCHYARD_UNIT_SECRET` is set to that key, and stays."""
    with caplog.at_level(logging.WARNING, logger="switchyard"):
        before = unit_secret("", "old key", tmp_path, "ledger")
    assert before == secret_of("old key")
    assert [getattr(record, "event", "") for record in caplog.records] == ["unit_secret_from_internal_key"]
    assert "old key" not in caplog.text
    for internal_key in ("old key", "new key,old key", ""):
        assert unit_secret("old key", internal_key, tmp_path, "ledger") == before


def test_a_local_run_hands_its_ledgers_secret_to_its_processes(tmp_path: Path) -> None:
    """Its internal key is another one in each run."""
    for internal_key in ("one", "another"):
        given = kept_variable(tmp_path, "ledger")
        assert unit_secret(given, internal_key, tmp_path, "elsewhere") == kept_secret(tmp_path / "ledger")


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert len(set(pool.map(kept_secret, [tmp_path / "ledger"] * 8))) == 1


@pytest.mark.parametrize("url", ["s3://bucket/ledger", "{tmp}/file/ledger", "{tmp}/broken"])
def test_a_directory_that_keeps_no_secret_is_warned_of_and_refuses_nothing(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / FILE).write_text("no secret")
    with caplog.at_level(logging.WARNING, logger="switchyard"):
        assert len(unit_secret("", "", tmp_path, url.format(tmp=tmp_path))) == 32
    assert [getattr(record, "event", "") for record in caplog.records] == ["unit_secret_not_kept"]
