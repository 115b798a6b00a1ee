"""`switchyard keys create`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.access.api_keys import KeyRing
from app.config.access import Limits
from app.errors import Unauthorized
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
