"""Keys that managers create over the API, on real routers that share a controller."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.guard import AccessTiming
from app.access.keys import append, create
from app.config.schema import parse
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.experiments.live_controller import LiveController
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


class Issuing:
    """Two routers on one controller. `boss` is a manager, `chat boss` one of `chat` alone, `ann` has no role."""

    def __init__(self, rig: Rig, directory: Path, servers: ServerPool) -> None:
        self.keys = {}
        for name, endpoints in (("boss", ()), ("chat boss", ("chat",)), ("ann", ())):
            self.keys[name], record = create(name, endpoints=endpoints)
            append(directory / "keys.yaml", record.line)
        self.access: dict[str, Any] = {
            "keys_file": str(directory / "keys.yaml"),
            "managers": ["boss", "chat boss"],
            "issue_keys": True,
        }
        self.config = {**rig.config, "access": self.access}
        self.directory = directory
        self.controller = LiveController(directory / "ledger")
        self.routers = [self.router() for _ in range(2)]
        self.a = self.b = ""

    def router(self, **environment: Any) -> Router:
        self.controller.configure(parse(self.config))
        router = Router(
            RuntimeEnvironment(internal_key="internal", **environment),
            controller=self.controller,
            send_every_s=0.02,
            access_timing=AccessTiming(refresh_every_s=0.02),
        )
        router.reconfigure(self.config)
        return router

    def call(
        self, method: str, path: str, by: str = "boss", body: Any = None, match: str | None = None
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[by]}"} | ({"if-match": match} if match else {})
        return httpx.request(method, f"{self.a}{path}", json=body, headers=headers)

    def create(self, name: str, by: str = "boss", **fields: Any) -> httpx.Response:
        answer = self.call("POST", "/api/keys", by, {"name": name, **fields})
        if answer.status_code == 201:
            self.keys[name] = answer.json()["key"]
        return answer

    def listed(self, by: str = "boss") -> dict[str, dict[str, Any]]:
        return {key["name"]: key for key in self.call("GET", "/api/keys", by).raise_for_status().json()["keys"]}

    def chat(self, url: str, name: str, **fields: Any) -> int:
        headers = {"authorization": f"Bearer {self.keys[name]}"}
        return httpx.post(f"{url}/v1/chat/completions", json={**CHAT, **fields}, headers=headers).status_code

    def audited(self, action: str) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = self.call("GET", f"/api/audit?action={action}").json()["records"]
        return records


@pytest.fixture
def issuing(rig: Rig, tmp_path: Path, servers: ServerPool) -> Iterator[Issuing]:
    issuing = Issuing(rig, tmp_path, servers)
    with servers.host(issuing.routers[0].app) as issuing.a, servers.host(issuing.routers[1].app) as issuing.b:
        yield issuing
    issuing.controller.close()


def test_a_key_is_shown_once_works_on_every_router_and_is_kept_as_a_hash(issuing: Issuing) -> None:
    answer = issuing.create("team", endpoints=["chat"], limits={"requests_per_minute": 7}, reason="they asked")
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    secret = answer.json()["key"]
    assert re.fullmatch(r"sk-sy-[0-9a-f]{12}-\w{43}", secret)
    assert issuing.chat(issuing.a, "team") == 200
    wait_until(lambda: issuing.chat(issuing.b, "team") == 200)
    assert issuing.chat(issuing.a, "team", model="embed") == 403
    key = issuing.listed()["team"]
    assert (key["source"], key["endpoints"], key["limits"]) == ("issued", ["chat"], {"requests_per_minute": 7})
    assert (key["created_by"], issuing.listed()["ann"]["source"]) == ("boss", "file")
    wait_until(lambda: issuing.listed()["team"]["last_used"])
    (record,) = issuing.audited("create_key")
    assert (record["caller"], record["reason"], record["after"]["name"]) == ("boss", "they asked", "team")
    everything = issuing.call("GET", "/api/keys").text + issuing.call("GET", "/api/audit").text
    kept = [file.read_bytes() for file in (issuing.directory / "ledger").rglob("*") if file.is_file()]
    for secret_part in (secret, secret[-43:]):
        assert secret_part not in everything
        assert not any(secret_part.encode() in content for content in kept)
    assert "blake2b" not in everything


def test_a_revoked_key_is_refused_everywhere_and_its_name_is_free_again(issuing: Issuing) -> None:
    id = issuing.create("team").json()["id"]
    wait_until(lambda: issuing.chat(issuing.b, "team") == 200)
    revision = issuing.listed()["team"]["revision"]
    assert (
        issuing.call("POST", f"/api/keys/{id}/revoke", body={"reason": "over"}, match=f'"{revision}"').status_code
        == 200
    )
    assert issuing.chat(issuing.a, "team") == 401
    wait_until(lambda: issuing.chat(issuing.b, "team") == 401)
    (record,) = issuing.audited("revoke_key")
    assert (record["before"]["name"], record["reason"]) == ("team", "over")
    assert issuing.create("team").status_code == 201


def test_a_change_names_what_it_saw_and_holds_at_once(issuing: Issuing) -> None:
    created = issuing.create("team").json()
    path, tag = f"/api/keys/{created['id']}", f'"{created["revision"]}"'
    assert issuing.call("PATCH", path, body={"endpoints": ["embed"]}).status_code == 428
    changed = issuing.call("PATCH", path, body={"endpoints": ["embed"], "expires": "2099-01-01T00:00:00Z"}, match=tag)
    assert changed.status_code == 200
    assert changed.headers["etag"] == f'"{changed.json()["revision"]}"'
    assert issuing.chat(issuing.a, "team") == 403
    stale = issuing.call("PATCH", path, body={"endpoints": ["chat"]}, match=tag)
    assert (stale.status_code, stale.json()["current"]["endpoints"]) == (412, ["embed"])
    assert "hash" not in stale.text
    again = issuing.call("PATCH", path, body={"endpoints": None}, match=changed.headers["etag"])
    assert (again.json()["endpoints"], again.json()["expires"]) == (None, "2099-01-01T00:00:00Z")
    assert issuing.chat(issuing.a, "team") == 200


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def rotate(issuing: Issuing, id: str, tag: str, **body: Any) -> httpx.Response:
    return issuing.call("POST", f"/api/keys/{id}/rotate", body=body, match=tag)


def test_a_rotated_key_has_two_secrets_everywhere_until_the_old_one_ends(issuing: Issuing) -> None:
    created = issuing.create("team", endpoints=["chat"], limits={"requests_per_minute": 500}).json()
    issuing.keys["old"] = created["key"]
    end = in_seconds(3)
    answer = rotate(issuing, created["id"], f'"{created["revision"]}"', previous_expires=end, reason="quarterly")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    rotated = answer.json()
    assert answer.headers["etag"] == f'"{rotated["revision"]}"'
    kept = ("id", "name", "endpoints", "limits", "group", "created_at")
    assert {name: rotated[name] for name in kept} == {name: created[name] for name in kept}
    issuing.keys["new"] = rotated["key"]
    assert created["key"] != rotated["key"]
    assert [issuing.chat(issuing.a, name) for name in ("old", "new")] == [200, 200]
    wait_until(lambda: issuing.chat(issuing.b, "new") == 200)
    # One caller: what both used counts together.
    wait_until(lambda: issuing.listed()["team"]["previous"] == datetime.fromisoformat(end).timestamp())
    assert len(issuing.listed()) == 4
    wait_until(lambda: issuing.chat(issuing.a, "old") == issuing.chat(issuing.b, "old") == 401)
    assert [issuing.chat(url, "new") for url in (issuing.a, issuing.b)] == [200, 200]
    (record,) = issuing.audited("rotate_key")
    assert (record["caller"], record["reason"], record["status"]) == ("boss", "quarterly", 200)
    assert record["before"]["previous_expires"] is None
    assert datetime.fromisoformat(record["after"]["previous_expires"]) == datetime.fromisoformat(end)
    everything = issuing.call("GET", "/api/keys").text + issuing.call("GET", "/api/audit").text
    assert not any(secret[-43:] in everything for secret in (created["key"], rotated["key"]))
    assert "blake2b" not in everything


def test_an_old_secret_ends_at_once_if_the_rotation_or_a_change_says_so(issuing: Issuing) -> None:
    created = issuing.create("team").json()
    issuing.keys["first"] = created["key"]
    second = rotate(issuing, created["id"], "*", previous_expires=None).json()
    issuing.keys["second"] = second["key"]
    assert [issuing.chat(issuing.a, name) for name in ("first", "second")] == [401, 200]
    third = rotate(issuing, created["id"], "*", previous_expires=in_seconds(3600), expires=in_seconds(7200)).json()
    issuing.keys["third"] = third["key"]
    assert [issuing.chat(issuing.a, name) for name in ("second", "third")] == [200, 200]
    twice = rotate(issuing, created["id"], "*", previous_expires=None)
    assert (twice.status_code, "two secrets until" in twice.text) == (409, True)
    path = f"/api/keys/{created['id']}"
    changed = issuing.call("PATCH", path, body={"endpoints": ["chat"]}, match="*").json()
    assert changed["previous_expires"] == third["previous_expires"], "a change of something else leaves it"
    assert issuing.call("PATCH", path, body={"previous_expires": None}, match="*").json()["previous_expires"] is None
    assert [issuing.chat(issuing.a, name) for name in ("second", "third")] == [401, 200]
    assert issuing.call("PATCH", path, body={"previous_expires": None}, match="*").status_code == 400


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "previous_expires"),
        ({"previous_expires": "2020-01-01T00:00:00Z"}, "previous_expires"),
        ({"previous_expires": "2099-01-01T00:00:00"}, "previous_expires"),
        ({"previous_expires": None, "expires": "2020-01-01T00:00:00Z"}, "expires"),
        ({"previous_expires": None, "name": "other"}, "name"),
    ],
)
def test_a_rotation_that_is_not_valid_names_its_field(issuing: Issuing, body: dict[str, Any], field: str) -> None:
    id = issuing.create("team").json()["id"]
    refused = rotate(issuing, id, "*", **body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
    assert issuing.chat(issuing.a, "team") == 200


def test_a_key_is_rotated_by_those_who_may_change_it_as_they_saw_it(issuing: Issuing) -> None:
    id = issuing.create("team").json()["id"]
    body = {"previous_expires": None}
    path = f"/api/keys/{id}/rotate"
    assert issuing.call("POST", path, body=body).status_code == 428
    assert rotate(issuing, id, '"another"', **body).status_code == 412
    assert issuing.call("POST", path, "ann", body, "*").status_code == 403
    assert issuing.call("POST", path, "chat boss", body, "*").status_code == 403, "the key may use all endpoints"
    filed = issuing.listed()["ann"]["id"]
    assert rotate(issuing, filed, "*", **body).status_code == 409
    assert issuing.chat(issuing.a, "team") == 200


def test_issued_keys_outlive_routers_and_controllers_and_the_controllers_absence(
    issuing: Issuing, servers: ServerPool
) -> None:
    issuing.create("team")
    issuing.controller.replaced(killed=True)
    with servers.host(issuing.router().app) as url:
        wait_until(lambda: issuing.chat(url, "team") == 200)
        issuing.controller.absent = True
        assert issuing.chat(url, "team") == 200
        answer = issuing.create("other")
        assert answer.status_code == 503
    # A router that has never read the keys does not call a valid one wrong.
    late = issuing.router()
    with servers.host(late.app) as url:
        assert issuing.chat(url, "team") == 503
        assert issuing.chat(url, "ann") == 200
        issuing.controller.absent = False
        wait_until(lambda: issuing.chat(url, "team") == 200)
        issuing.keys["nobody"] = "sk-sy-000000000000-" + 43 * "x"
        assert issuing.chat(url, "nobody") == 401


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"name": "ann"}, 409, "name"),
        ({"name": "anonymous"}, 400, "name"),
        ({"name": "key:boss"}, 400, "name"),
        ({"name": ""}, 400, "name"),
        ({"endpoints": ["chta"]}, 400, "endpoints[0]"),
        ({"endpoints": []}, 400, "endpoints"),
        ({"expires": "2001-01-01T00:00:00Z"}, 400, "expires"),
        ({"expires": "soon"}, 400, "expires"),
        ({"limits": {"requests_per_minute": 0}}, 400, "limits.requests_per_minute"),
        ({"group": "staff"}, 400, "group"),
        ({"prefix": "x"}, 400, "prefix"),
    ],
)
def test_what_a_key_cannot_be_is_refused_by_the_field(
    issuing: Issuing, fields: dict[str, Any], status: int, param: str
) -> None:
    answer = issuing.call("POST", "/api/keys", body={"name": "team", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    assert set(issuing.listed()) == {"boss", "chat boss", "ann"}


def test_only_managers_give_keys_and_none_gives_more_than_it_has(issuing: Issuing) -> None:
    assert issuing.create("team", by="ann").status_code == 403
    assert issuing.create("all", by="chat boss").status_code == 403
    assert issuing.create("other", by="chat boss", endpoints=["chat", "embed"]).status_code in (400, 403)
    assert issuing.create("chats", by="chat boss", endpoints=["chat"]).status_code == 201
    id = issuing.create("wide").json()["id"]
    for path, method, body in (
        (f"/api/keys/{id}", "PATCH", {"endpoints": ["chat"]}),
        (f"/api/keys/{id}/revoke", "POST", {}),
    ):
        assert issuing.call(method, path, "chat boss", body, "*").status_code == 403
    own = issuing.listed()["chats"]["id"]
    assert issuing.call("PATCH", f"/api/keys/{own}", "chat boss", {"endpoints": None}, "*").status_code == 403
    text = httpx.post(
        f"{issuing.a}/api/keys", content="{}", headers={"authorization": f"Bearer {issuing.keys['boss']}"}
    )
    assert text.status_code == 415
    file = issuing.listed()["ann"]["id"]
    assert issuing.call("POST", f"/api/keys/{file}/revoke", body={}, match="*").status_code == 409
    assert issuing.call("POST", "/api/keys/000000000000/revoke", body={}, match="*").status_code == 404


def test_a_name_in_the_keys_file_is_the_files(issuing: Issuing) -> None:
    issuing.create("team")
    assert issuing.chat(issuing.a, "team") == 200
    secret, record = create("team")
    append(issuing.directory / "keys.yaml", record.line)
    wait_until(lambda: issuing.chat(issuing.a, "team") == 401)
    issuing.keys["team"] = secret
    assert issuing.chat(issuing.a, "team") == 200


def test_without_the_setting_no_key_is_issued_and_none_that_was_is_valid(issuing: Issuing) -> None:
    issuing.create("team")
    config = {**issuing.config, "access": {**issuing.access, "issue_keys": False}}
    issuing.routers[0].reconfigure(config)
    assert issuing.chat(issuing.a, "team") == 401
    answer = issuing.create("other")
    assert (answer.status_code, "access.issue_keys: true" in answer.text) == (409, True)
    assert "access.issue_keys" in issuing.call("GET", "/api/keys").json()["why_not"]


def test_a_key_has_no_limits_that_several_routers_cannot_count_together(issuing: Issuing, servers: ServerPool) -> None:
    with servers.host(issuing.router(several_routers=True).app) as issuing.a:
        answer = issuing.create("team", limits={"requests_per_minute": 5})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limits")
        assert issuing.create("team").status_code == 201


def test_the_use_of_each_day_is_that_of_all_routers_and_what_requests_and_callers_say(issuing: Issuing) -> None:
    issuing.create("team")
    for url in (issuing.a, issuing.b, issuing.b):
        wait_until(lambda url=url: issuing.chat(url, "team") == 200)  # type: ignore[misc]
    assert issuing.chat(issuing.a, "team", model="none") == 404
    assert issuing.chat(issuing.b, "team", temperature="hot") == 400
    wait_until(lambda: issuing.listed()["team"]["uses"])
    wait_until(lambda: issuing.listed()["team"]["uses"][-1]["requests"] == 5, lambda: issuing.listed()["team"]["uses"])
    assert len(issuing.listed()["team"]["uses"]) == 14
    today = {"requests": 5, "failed": 2, "not_answered": 2, "prompt_tokens": 27, "completion_tokens": 9}
    assert issuing.listed()["team"]["uses"][-1] == today
    matching = [
        issuing.call("GET", f"/api/requests?caller=team{more}").json()["matching"]
        for more in ("", "&status=not_answered")
    ]
    assert matching == [5, 2]
    headers = {"authorization": f"Bearer {issuing.keys['boss']}"}
    rows = [
        row
        for url in (issuing.a, issuing.b)
        for row in httpx.get(f"{url}/api/callers", headers=headers).json()["callers"]
        if row["caller"] == "team"
    ]
    assert {field: sum(row[field] for row in rows) for field in today} == today
