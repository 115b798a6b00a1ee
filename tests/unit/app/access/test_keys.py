"""API keys: creation, storage and recognition."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access.keys import KeyFile, KeyRing, append, create, replace, rotated
from app.config.access import Limits
from app.config.base import ConfigError
from app.errors import Unauthorized

NOW = datetime.now(UTC)


def test_a_key_is_recognised_by_its_stored_record() -> None:
    key, record = create("team", endpoints=["chat"], limits=Limits(requests_per_minute=3))
    caller = KeyRing.parse(record.line).caller(key, NOW.timestamp())
    assert (caller.name, caller.endpoints, caller.limits) == (
        "team",
        frozenset({"chat"}),
        Limits(requests_per_minute=3),
    )
    assert caller.id == f"key-{record.id}"
    assert caller.group(("staff",)) == ""


def test_a_key_belongs_to_its_group_if_that_is_known_and_rotation_keeps_it() -> None:
    key, record = create("team", group="staff")
    _, after = rotated(record, now=NOW, until=NOW + timedelta(days=1), expires=None)
    for kept in (record, after):
        caller = KeyRing.parse(kept.line).caller(key, NOW.timestamp())
        assert (caller.group(("staff", "beta")), caller.group(("beta",))) == ("staff", "")
    with pytest.raises(ConfigError, match="group"):
        create("other", group="a b")


def test_the_secret_is_not_stored() -> None:
    key, record = create("team")
    secret = key.rpartition("-")[2]
    assert len(secret) == 43
    assert secret not in record.line
    assert record.hash not in repr(record)
    ring = KeyRing.parse(record.line)
    assert repr(ring) == "KeyRing(have_limits=False)"
    same, again = create("team")
    assert same != key
    assert again.hash != record.hash


@pytest.mark.parametrize("prefix", ["", "dapi", "flp_", "sk-", "hf_"])
def test_the_prefix_is_free_and_part_of_the_key(prefix: str) -> None:
    key, record = create("team", prefix=prefix)
    assert key.startswith(prefix)
    ring = KeyRing.parse(record.line)
    assert ring.caller(key, 0).name == "team"
    for other in (key.removeprefix(prefix) if prefix else f"x{key}", f"other{key}"):
        with pytest.raises(Unauthorized):
            ring.caller(other, 0)


@pytest.mark.parametrize("prefix", ["has space", "ü", "x" * 33, "a\n", "eyJ.a.", "a:b"])
def test_an_invalid_prefix_is_rejected(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        create("team", prefix=prefix)


def test_a_key_ends_at_its_expiry() -> None:
    key, record = create("team", expires=NOW + timedelta(hours=1))
    ring = KeyRing.parse(record.line)
    assert ring.caller(key, NOW.timestamp()).name == "team"
    with pytest.raises(Unauthorized, match="of 'team' has expired"):
        ring.caller(key, (NOW + timedelta(hours=1)).timestamp())


KEY, RECORD = create("team", endpoints=["chat"])
RING = KeyRing.parse(RECORD.line)


@given(st.text() | st.text(alphabet="0123456789abcdef-", max_size=60).map(lambda text: KEY[:8] + text))
def test_any_other_text_is_an_invalid_key(text: str) -> None:
    with pytest.raises(Unauthorized) as raised:
        RING.caller(text, 0)
    assert len(text) < 12 or text not in raised.value.message


@given(position=st.integers(0, len(KEY) - 1), other=st.characters(max_codepoint=255))
def test_a_key_with_one_character_changed_is_invalid(position: int, other: str) -> None:
    changed = KEY[:position] + other + KEY[position + 1 :]
    if changed == KEY:
        assert RING.caller(changed, 0).name == "team"
        return
    with pytest.raises(Unauthorized):
        RING.caller(changed, 0)


def test_a_file_may_have_comments_and_times_without_quotes() -> None:
    record = f"id: '{RECORD.id}', name: team, hash: '{RECORD.hash}', expires: 2024-01-01T00:00:00Z"
    text = f"# the search team\n- {{{record}}}\n"
    with pytest.raises(Unauthorized, match="expired"):
        KeyRing.parse(text).caller(KEY, NOW.timestamp())
    with pytest.raises(Unauthorized):
        KeyRing.parse("# nobody yet\n").caller(KEY, NOW.timestamp())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "short"}, r"\[0\].id: .*pattern"),
        ({"name": ""}, r"\[0\].name: .*printable"),
        ({"name": "a\nb"}, r"\[0\].name: .*printable"),
        ({"name": "anonymous"}, r"\[0\].name: 'anonymous' is reserved for callers without a key"),
        ({"name": "key:boss"}, r"\[0\].name: must not begin with 'key:' or 'oidc:'"),
        ({"name": "oidc:boss"}, r"\[0\].name: must not begin with 'key:' or 'oidc:'"),
        ({"hash": "sk-sy-the-key-itself"}, r"\[0\].hash: .*pattern"),
        ({"endpoints": []}, r"\[0\].endpoints: .*at least 1"),
        ({"expires": "2030-01-01T00:00:00"}, r"\[0\].expires: .*timezone"),
        ({"limits": {"requests_per_minute": 0}}, r"\[0\].limits.requests_per_minute: .*greater than or equal"),
        ({"limits": {"requests": 1}}, r"\[0\].limits: unknown key; .*known: requests_per_minute, tokens_per"),
        ({"endpoint": ["chat"]}, r"\[0\]: unknown key; .*known: id, name, hash, endpoints"),
    ],
)
def test_an_invalid_record_is_rejected_with_its_path(change: dict[str, object], said: str) -> None:
    record = {**RECORD.model_dump(mode="json", exclude_unset=True), **change}
    with pytest.raises(ConfigError, match=said) as raised:
        KeyRing.parse(json.dumps([record]))
    assert "the-key-itself" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- [", "not YAML, line"),
        ("a: b", "valid tuple"),
        ("\0", "not YAML"),
        pytest.param(RECORD.line * 2, "two keys have this id", id="twice"),
        pytest.param(f"- {{id: {RECORD.id}, expires: 2030-02-31}}", "not YAML", id="no such day"),
        ("[" * 400, "not YAML"),
        ("- {name: a, name: b}", "line 1: duplicate key;"),
        ("- {[name]: a}", "line 1: a key must be plain text"),
        ("- {}", r"\[0\].id: Field required"),
    ],
)
def test_an_invalid_file_is_rejected(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KeyRing.parse(text)


@pytest.mark.parametrize(
    "misplaced", ["- {}\n", "- {{{}: team}}\n", "- {{{0}: 1, {0}: 2}}\n", "- {}: [\n", "{}: a\n", "a: !{}"]
)
def test_a_key_in_the_file_is_not_quoted(misplaced: str) -> None:
    with pytest.raises(ConfigError) as raised:
        KeyRing.parse(misplaced.format(KEY))
    assert KEY not in str(raised.value)


def check_nothing(ring: KeyRing) -> None: ...


def looks(file: KeyFile, check: Callable[[KeyRing], None] = check_nothing) -> list[bool]:
    """Two of the checks that run once a second: a change is judged only once two checks see it."""
    return [file.reread(check) for _ in range(2)]


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    append(path, RECORD.line)
    assert path.stat().st_mode & 0o777 == 0o600
    file = KeyFile(path)
    assert looks(file) == [False, False]
    key, record = create("another")
    append(path, record.line)
    assert looks(file) == [False, True]
    assert file.ring.caller(key, 0).name == "another"
    path.write_text(record.line)
    assert looks(file) == [False, True]
    with pytest.raises(Unauthorized):
        file.ring.caller(KEY, 0)
    path.write_text("")
    assert looks(file) == [False, True]
    with pytest.raises(Unauthorized):
        file.ring.caller(key, 0)


def test_a_half_written_file_is_not_applied(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(RECORD.line)
    file = KeyFile(path)
    key, record = create("another")
    whole = RECORD.line + record.line
    for half in ("", whole[:30], RECORD.line, whole[:-20], whole):
        path.write_text(half)
        assert not file.reread(check_nothing)
        assert file.ring.caller(KEY, 0).name == "team"
    assert file.reread(check_nothing)
    assert file.ring.caller(key, 0).name == "another"


@pytest.mark.parametrize("content", [None, "- {", b"\xff\xfe", RECORD.line.replace("team", "")])
def test_an_invalid_file_changes_nothing_and_is_reported_once(tmp_path: Path, content: str | bytes | None) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(RECORD.line)
    file = KeyFile(path)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError, match=r"keys\.yaml: "):
        looks(file)
    assert looks(file) == [False, False]
    assert file.ring.caller(KEY, 0).name == "team"
    path.write_text(RECORD.line)
    assert looks(file) == [False, True]


def test_content_that_the_check_rejects_is_not_applied(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(RECORD.line)
    file = KeyFile(path)

    def refuse(ring: KeyRing) -> None:
        raise ConfigError(["no"])

    _, record = create("another")
    path.write_text(record.line)
    with pytest.raises(ConfigError):
        looks(file, refuse)
    assert looks(file, refuse) == [False, False]
    assert file.ring.caller(KEY, 0).name == "team"
    file.recheck()
    assert file.reread(check_nothing), "after the check has changed, the file is read again"
    file.recheck()
    assert looks(file) == [False, False], "applied content is not applied again"


@pytest.mark.parametrize("content", ["endpoints: {}\n", "[]\n", "- {", RECORD.line.replace("team", "other")])
def test_a_record_is_appended_only_to_a_keys_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"file\.yaml: not a keys file: "):
        append(path, RECORD.line)
    assert path.read_text() == content


def test_a_record_is_appended_to_a_file_without_a_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(RECORD.line.rstrip())
    key, record = create("another")
    append(path, record.line)
    ring = KeyRing.parse(path.read_text())
    assert (ring.caller(KEY, 0).name, ring.caller(key, 0).name) == ("team", "another")


def moment(days: float) -> datetime:
    return (NOW + timedelta(days=days)).replace(microsecond=0)


def test_a_rotated_key_has_two_secrets_of_one_caller_and_the_old_one_ends() -> None:
    limits = Limits(requests_per_minute=3)
    old, record = create("team", endpoints=["chat"], limits=limits, expires=moment(30))
    new, after = rotated(record, now=NOW, until=moment(7), expires=moment(90))
    ring = KeyRing.parse(after.line)
    assert new != old
    assert ring.caller(new, moment(1).timestamp()) == ring.caller(old, moment(1).timestamp())
    assert ring.caller(new, moment(8).timestamp()) == KeyRing.parse(record.line).caller(old, moment(8).timestamp())
    for key, end in ((old, moment(7)), (new, moment(90))):
        ring.caller(key, end.timestamp() - 1)
        with pytest.raises(Unauthorized, match="of 'team' has expired"):
            ring.caller(key, end.timestamp())
    assert not any(key.rpartition("-")[2] in after.line for key in (old, new))
    for hash in (record.hash, after.hash):
        assert hash not in repr(after)


def test_a_rotation_gives_no_key_a_later_end_than_it_had() -> None:
    old, record = create("team", expires=moment(2))
    _, after = rotated(record, now=NOW, until=moment(7), expires=None)
    with pytest.raises(Unauthorized, match="has expired"):
        KeyRing.parse(after.line).caller(old, moment(2).timestamp())


def test_a_rotation_without_an_overlap_ends_the_old_key_at_once() -> None:
    old, record = create("team")
    new, after = rotated(record, now=NOW, until=NOW, expires=None)
    assert "previous" not in after.line
    assert KeyRing.parse(after.line).caller(new, 0).name == "team"
    with pytest.raises(Unauthorized, match="not valid"):
        KeyRing.parse(after.line).caller(old, 0)


def test_a_key_has_at_most_two_secrets() -> None:
    _, record = create("team")
    _, after = rotated(record, now=NOW, until=moment(7), expires=None)
    with pytest.raises(ConfigError, match="'team' has two valid keys until"):
        rotated(after, now=NOW, until=moment(8), expires=None)
    _, third = rotated(after, now=moment(8), until=moment(9), expires=None)
    assert third.previous is not None
    assert third.previous.hash == after.hash


def test_an_expired_key_is_not_replaced_by_one_that_has_expired() -> None:
    _, record = create("team", expires=moment(-1))
    with pytest.raises(ConfigError, match="has expired; name the new key's end"):
        rotated(record, now=NOW, until=moment(7), expires=None)
    new, after = rotated(record, now=NOW, until=moment(7), expires=moment(7))
    assert after.previous is None
    assert KeyRing.parse(after.line).caller(new, NOW.timestamp()).name == "team"


def test_the_last_use_of_each_secret_is_known_to_the_minute_and_outlives_a_new_file() -> None:
    old, record = create("team")
    new, after = rotated(record, now=NOW, until=moment(7), expires=None)
    used: dict[str, float] = {}
    KeyRing.parse(record.line, used).caller(old, 61.5)
    ring = KeyRing.parse(after.line, used)
    (use,) = ring.uses()
    assert (use.caller.id, use.caller.name, use.expires, use.last_used) == (f"key-{record.id}", "team", None, None)
    assert use.previous == (moment(7).timestamp(), 60.0)
    ring.caller(new, 125.0)
    (use,) = ring.uses()
    assert use.last_used == 120.0


def test_a_wrong_or_expired_key_counts_as_no_use() -> None:
    old, record = create("team", expires=moment(1))
    ring = KeyRing.parse(record.line)
    for key, at in ((old, moment(2)), (f"{old[:-1]}{'a' if old[-1] != 'a' else 'b'}", NOW)):
        with pytest.raises(Unauthorized):
            ring.caller(key, at.timestamp())
    assert [use.last_used for use in ring.uses()] == [None]


def test_two_keys_of_one_name_are_refused_with_their_lines(tmp_path: Path) -> None:
    first, other, again = create("boss")[1], create("ann")[1], create("boss")[1]
    text = f"# team keys\n{first.line}{other.line}\n{again.line}"
    with pytest.raises(ConfigError) as raised:
        KeyRing.parse(text)
    (problem,) = raised.value.problems
    assert problem.startswith("line 5: 'boss' has a key on line 2 already; ")
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"keys.yaml: line 5: 'boss'"):
        KeyFile(tmp_path / "keys.yaml")


def test_a_name_is_appended_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    append(path, create("boss")[1].line)
    before = path.read_text()
    with pytest.raises(
        ConfigError, match="has a key of 'boss' already; choose another name, or replace it: switchyard"
    ):
        append(path, create("boss")[1].line)
    assert path.read_text() == before


def test_a_record_is_replaced_where_it_stands(tmp_path: Path) -> None:
    real, path = tmp_path / "real.yaml", tmp_path / "keys.yaml"
    records = [create(name)[1] for name in ("ann", "boss", "eve")]
    lines = [record.line for record in records]
    real.write_text(f"# first\n{lines[0]}{lines[1].rstrip()}  # of the platform team\n# last\n{lines[2]}")
    real.chmod(0o640)
    path.symlink_to(real)
    _, changed = rotated(records[1], now=NOW, until=moment(7), expires=None)
    replace(path, "boss", lambda record: changed if record == records[1] else record)
    after = f"# first\n{lines[0]}{changed.line.rstrip()}  # of the platform team\n# last\n{lines[2]}"
    assert real.read_text() == after
    assert real.stat().st_mode & 0o777 == 0o640
    assert path.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.yaml", "real.yaml"]
    with pytest.raises(ConfigError, match=r"has no key of 'bob'; it has: ann, boss, eve"):
        replace(path, "bob", lambda record: record)


def test_a_record_on_several_lines_is_left_as_it_is(tmp_path: Path) -> None:
    path, (_, record) = tmp_path / "keys.yaml", create("boss")
    path.write_text(f"- id: '{record.id}'\n  name: boss\n  hash: '{record.hash}'\n")
    before = path.read_text()
    with pytest.raises(ConfigError, match="line 1: the record is not on one line"):
        replace(path, "boss", lambda record: record)
    assert path.read_text() == before
