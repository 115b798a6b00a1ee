"""Units are their caller's: no request counts for another caller's unit, whatever session or user it names."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.keys import KeyRecord, append, create, replace, rotated
from app.config.access import ANONYMOUS
from app.exposures.identity import Hashes, own_key, secret_of
from tests.router.conftest import Rig
from tests.support.experiments.recording_controller import Seen
from tests.support.waiting import wait_until

CHAT: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
WAYS: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str]]] = {
    "header": ({"by": "header", "name": "x-tenant"}, {"x-tenant": "s1"}, {}),
    "user": ({"by": "user"}, {}, {"user": "s1"}),
    "session": ({"by": "conversation"}, {"x-session-id": "s1"}, {}),
    "first message": ({"by": "conversation"}, {}, {}),
    "api_key": ({"by": "api_key"}, {}, {}),
}
"""Each setting of `sticky`, and the headers and fields that name a unit."""


class Teams:
    """A recorded router with two callers, and one without credentials."""

    def __init__(self, rig: Rig, file: Path) -> None:
        self.rig, self.file, self.keys = rig, file, dict[str, str]()
        for name in ("ann", "bob"):
            self.keys[name], record = create(name)
            append(file, record.line)
        rig.change(access={"keys_file": str(file), "allow_anonymous": True})

    def replace(self, name: str) -> None:
        """Gives the caller a second key, whose own name here is "…, again"."""
        now, made = datetime.now(UTC), []

        def change(record: KeyRecord) -> KeyRecord:
            made.append(rotated(record, now=now, until=now + timedelta(days=1), expires=None))
            return made[0][1]

        replace(self.file, name, change)
        self.keys[f"{name}, again"] = key = made[0][0]
        headers = {"authorization": f"Bearer {key}"}
        wait_until(lambda: httpx.get(f"{self.rig.url}/api/me", headers=headers).status_code == 200)

    def ask(self, caller: str, headers: dict[str, str], fields: dict[str, str]) -> Seen:
        """The row of a request."""
        key = {"authorization": f"Bearer {self.keys[caller]}"} if caller in self.keys else {}
        rows = len(self.rig.keeper.rows)
        answer = httpx.post(f"{self.rig.url}/v1/chat/completions", json={**CHAT, **fields}, headers={**headers, **key})
        assert answer.status_code == 200
        return self.rig.keeper.wait_for(rows=rows + 1)[-1]


@pytest.fixture
def teams(rig: Rig, tmp_path: Path) -> Teams:
    return Teams(rig, tmp_path / "keys.yaml")


@pytest.mark.parametrize("way", sorted(WAYS))
def test_two_callers_equal_keys_are_two_units_and_one_callers_are_one(teams: Teams, way: str) -> None:
    sticky, headers, fields = WAYS[way]
    teams.rig.chat_endpoint(ledger="always", sticky=sticky)
    ann, again, bob = (teams.ask(caller, headers, fields).item.unit for caller in ("ann", "ann", "bob"))
    assert ann == again != bob


def test_without_credentials_units_are_those_of_earlier_versions(teams: Teams) -> None:
    """An installation without `access` keeps its experiments' units."""
    teams.rig.chat_endpoint(ledger="always", sticky={"by": "user"})
    unit = teams.ask("", {}, {"user": "s1"}).item.unit
    assert unit == Hashes(secret_of("internal")).unit("s1")


def test_nobody_reaches_another_callers_unit_by_the_text_of_its_key(teams: Teams) -> None:
    teams.rig.chat_endpoint(ledger="always", sticky={"by": "user"})
    id = f"key-{teams.keys['ann'].split('-')[-2]}"
    unit = teams.ask("ann", {}, {"user": "s1"}).item.unit
    assert unit == Hashes(secret_of("internal")).unit(own_key(id, "s1"))
    for text in (own_key(id, "s1"), f"{id}s1", f"{id}\0s1"):
        assert unit not in {teams.ask(caller, {}, {"user": text}).item.unit for caller in ("", "bob")}


@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_callers_units_stay_when_its_key_is_replaced(teams: Teams, way: str) -> None:
    sticky, headers, fields = WAYS[way]
    teams.rig.chat_endpoint(ledger="always", sticky=sticky)
    old = teams.ask("ann", headers, fields)
    teams.replace("ann")
    new = teams.ask("ann, again", headers, fields)
    assert (new.item.unit, new.assigned) == (old.item.unit, old.assigned)
    assert teams.ask("ann", headers, fields).item.unit == old.item.unit


@pytest.mark.parametrize("way", ["header", "user", "session"])
def test_the_draw_is_of_the_unit_not_of_the_text(teams: Teams, way: str) -> None:
    """Otherwise all callers' sessions of one name would have one deployment, and be no separate draws."""
    sticky, headers, fields = WAYS[way]
    teams.rig.chat_endpoint(ledger="always", sticky=sticky, traffic={"blue": 50, "green": 50})
    differ = 0
    for number in range(20):
        name = f"s{number}"
        own = ({key: name for key in headers}, {key: name for key in fields})
        ann, again, bob = (teams.ask(caller, *own).assigned for caller in ("ann", "ann", "bob"))
        assert ann == again
        differ += ann != bob
    assert differ >= 2


def test_keys_of_callers_never_meet() -> None:
    ids = (ANONYMOUS, "key-a", "key-ab", "token-a")
    texts = ("", "s", "bs", "\0s", "key-a\0s", "anonymous\0s", "\0")
    keys = {own_key(id, text) for id in ids for text in texts}
    assert len(keys) == len(ids) * len(texts)
