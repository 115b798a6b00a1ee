"""`switchyard keys`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.access.keys import KeyRing
from app.config.access import Limits
from app.errors import Unauthorized
from app.internal_keys import Purpose, derived
from deployments.cli.main import main


def test_the_command_prints_the_key_once_and_appends_its_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"
    options = ["--endpoint", "chat", "--endpoint", "embed", "--expires", "90d", "--tokens-per-minute", "9"]
    assert main(["keys", "create", "--name", "team", "--file", str(path), "--prefix", "dapi", *options]) == 0
    printed = capsys.readouterr()
    key = printed.out.strip()
    assert key.startswith("dapi")
    assert key not in printed.err + path.read_text()
    caller = KeyRing.parse(path.read_text()).caller(key, datetime.now(UTC).timestamp())
    assert (caller.name, caller.endpoints) == ("team", frozenset({"chat", "embed"}))
    assert caller.limits == Limits(tokens_per_minute=9)
    with pytest.raises(Unauthorized, match="expired"):
        KeyRing.parse(path.read_text()).caller(key, (datetime.now(UTC) + timedelta(days=91)).timestamp())


def test_without_a_file_the_command_prints_the_record_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "--name", "team"]) == 0
    key, record, _ = capsys.readouterr().out.split("\n")
    assert key.startswith("sk-sy-")
    assert KeyRing.parse(record).caller(key, 0).endpoints is None


@pytest.mark.parametrize(
    "options",
    [["--name", "anonymous"], ["--name", "a\tb"], ["--name", "x", "--prefix", "a b"], ["--name", "x", "--file", "/"]],
)
def test_a_key_that_could_not_be_used_is_rejected(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", *options]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err


@pytest.mark.parametrize(
    "options", [["--expires", "2020-01-01"], ["--expires", "soon"], ["--requests-per-minute", "0"], []]
)
def test_wrong_options_are_rejected(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", *(["--name", "x", *options] if options else [])]) == 2
    assert capsys.readouterr().out == ""


def test_a_name_that_the_file_has_is_refused_in_a_sentence_that_offers_a_rotation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"
    create = ["keys", "create", "--name", "boss", "--file", str(path)]
    assert main(create) == 0
    before = path.read_text()
    capsys.readouterr()
    assert main(create) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert f"switchyard keys rotate --name boss --file {path}" in printed.err
    assert path.read_text() == before


def test_a_rotated_key_is_printed_once_and_the_old_one_works_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"
    main(["keys", "create", "--name", "team", "--endpoint", "chat", "--file", str(path)])
    old = capsys.readouterr().out.strip()
    rotate = ["keys", "rotate", "--name", "team", "--file", str(path)]
    assert main([*rotate, "--overlap", "3d", "--prefix", "dapi"]) == 0
    printed = capsys.readouterr()
    new = printed.out.strip()
    assert new.startswith("dapi")
    assert new not in printed.err + path.read_text()
    assert "the old key works until" in printed.err
    ring, now = KeyRing.parse(path.read_text()), datetime.now(UTC)
    assert ring.caller(old, now.timestamp()) == ring.caller(new, now.timestamp())
    with pytest.raises(Unauthorized, match="expired"):
        ring.caller(old, (now + timedelta(days=4)).timestamp())
    assert main(rotate) == 1
    assert "has two valid keys" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "code"), [(["--overlap", "soon"], 2), (["--expires", "2020-01-01"], 2), ([], 1)])
def test_a_rotation_that_cannot_be_made_changes_nothing(
    tmp_path: Path, options: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"
    main(["keys", "create", "--name", "team", "--file", str(path)])
    before = path.read_text()
    capsys.readouterr()
    assert main(["keys", "rotate", "--name", "team" if options else "nobody", "--file", str(path), *options]) == code
    assert capsys.readouterr().out == ""
    assert path.read_text() == before


def test_the_entries_of_a_clusters_secret_follow_from_the_masters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWITCHYARD_INTERNAL_KEY", raising=False)
    assert main(["keys", "internal"]) == 0
    made = dict(line.split("=") for line in capsys.readouterr().out.splitlines())
    monkeypatch.setenv("SWITCHYARD_INTERNAL_KEY", f"{made['internal-key']},next")
    assert main(["keys", "internal"]) == 0
    both = dict(line.split("=") for line in capsys.readouterr().out.splitlines())
    assert both["internal-key"] == f"{made['internal-key']},next"
    assert both["engine-key"] == f"{made['engine-key']},{derived('next', Purpose.ENGINE)}"
    monkeypatch.setenv("SWITCHYARD_INTERNAL_KEY", "")
    assert main(["keys", "internal"]) == 2
