"""Every management call, whether it is accepted or refused, leaves exactly one record: who, from where, what before,
what after, why. No record holds a key, a prompt or a unit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.keys import append, create
from app.server.application import Router
from app.server.audit_log import REFUSED_PER_MINUTE
from app.upstream.target import RuntimeEnvironment
from deployments.cli.main import main
from tests.router.conftest import Rig
from tests.router.experiments.ramp_rig import RampRig, ramp_rig
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

TRAFFIC = "/api/endpoints/chat/traffic"
DATABRICKS = "/api/2.0/serving-endpoints/chat/config"
DECISION, RUNS = "/api/experiments/first/decision", "/api/experiments/first/aa"
PLAN = {"weights": {"blue": 90, "green": 10}, "reason": "more for green"}
ROUTES = {"routes": [{"served_entity_name": "green", "traffic_percentage": 100}]}
CALLS: dict[str, tuple[str, str, Any]] = {
    "put_traffic": ("PUT", TRAFFIC, PLAN),
    "roll_back_traffic": ("POST", f"{TRAFFIC}/rollback", {"generation": 0, "reason": "as before"}),
    "decide": ("POST", DECISION, {"action": "advance", "reason": "as agreed"}),
    "start_aa_runs": ("POST", RUNS, {"runs": 1}),
    "update_config": ("PUT", DATABRICKS, {"traffic_config": ROUTES}),
    "export_exposures": ("GET", "/api/exposures?format=csv", None),
}
ANY = {"if-match": "*"}


class Audited:
    """A router with keys: of a manager, `boss`, and of a caller who is none, `ann`."""

    def __init__(self, ramped: RampRig, directory: Path) -> None:
        self.ramped = ramped
        self.keys: dict[str, str] = {}
        for name in ("boss", "ann"):
            self.keys[name], record = create(name)
            append(directory / "keys.yaml", record.line)
        access = {"keys_file": str(directory / "keys.yaml"), "managers": ["boss"]}
        ramped.config = {**ramped.config, "access": access}
        ramped.control.config = ramped.config
        ramped.take(ramped.config)

    def call(self, action: str, key: str | None = "boss", body: Any = None, **headers: str) -> httpx.Response:
        method, path, usual = CALLS[action]
        sent = {"x-request-id": "a-call", **ANY, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if key is not None:
            sent["authorization"] = f"Bearer {self.keys.get(key, key)}"
        return httpx.request(method, self.ramped.url + path, json=body or usual, headers=sent, timeout=30)

    def records(self, **query: str) -> list[dict[str, Any]]:
        """Those of calls: the tests deploy files, too."""
        key = {"authorization": f"Bearer {self.keys['boss']}"}
        answer = httpx.get(f"{self.ramped.url}/api/audit", params=query, headers=key, timeout=30)
        assert answer.status_code == 200, answer.text
        return [record for record in answer.json()["records"] if record["call"]]

    def one(self, **query: str) -> dict[str, Any]:
        """The only record."""
        (record,) = wait_until(lambda: self.records(**query), lambda: self.records())
        return record


@pytest.fixture
def audited(rig: Rig, servers: ServerPool, tmp_path: Path) -> Iterator[Audited]:
    with ramp_rig(rig, servers, tmp_path) as ramped:
        yield Audited(ramped, tmp_path)


REFUSALS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "no key": (401, "unauthorized", {"key": None}),
    "a wrong key": (401, "unauthorized", {"key": "sk-sy-wrong"}),
    "no manager": (403, "forbidden", {"key": "ann"}),
    "another name": (403, "foreign_host", {"host": "evil.example"}),
    "no JSON": (415, "unsupported_media_type", {"content_type": "text/plain"}),
    "wrong fields": (400, "bad_request", {"body": {"secret-prompt": "sk-sy-secret"}}),
    "stale": (412, "precondition_failed", {"if_match": '"9-00000000"'}),
}


@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.parametrize("action", CALLS)
def test_a_refused_call_leaves_one_record(audited: Audited, action: str, why: str) -> None:
    status, error, call = REFUSALS[why]
    method, path, _ = CALLS[action]
    if method == "GET" and status in (400, 412, 415):
        return  # it has no body
    if why == "stale" and action in ("start_aa_runs", "update_config"):
        return  # it takes no If-Match
    if why == "another name":
        audited.ramped.take({**audited.ramped.config, "hosts": ["switchyard.example.com"]})
    before = audited.ramped.traffic
    answer = audited.call(action, **call)
    assert answer.status_code == status, answer.text
    record = audited.one()
    known = why in ("no manager", "no JSON", "wrong fields", "stale")
    assert (record["action"], record["outcome"], record["status"], record["error"]) == (
        action,
        "refused",
        status,
        error,
    )
    assert record["call"] == f"{method} {path.partition('?')[0]}"
    assert record["caller"] == ({"no manager": "ann"}.get(why, "boss") if known else "")
    assert (record["address"], record["request_id"], record["count"]) == ("127.0.0.1", "a-call", 1)
    assert (record["before"], record["after"]) == (None, None)
    assert "sk-sy-" not in json.dumps(record)
    assert "secret-prompt" not in json.dumps(record)
    assert audited.ramped.traffic == before


_WITH_DRY_RUNS = ("put_traffic", "decide")


@pytest.mark.parametrize("value", ["true", "false", "TRUE"])
@pytest.mark.parametrize("action", CALLS)
def test_only_what_changes_nothing_leaves_no_record(audited: Audited, action: str, value: str) -> None:
    method, path, body = CALLS[action]
    url = f"{audited.ramped.url}{path}{'&' if '?' in path else '?'}dry_run={value}"
    before = audited.ramped.traffic
    key = {"authorization": f"Bearer {audited.keys['boss']}", **ANY}
    answer = httpx.request(method, url, json=body, headers=key, timeout=30)
    assert answer.status_code == (200 if action in _WITH_DRY_RUNS and value != "TRUE" else 400), answer.text
    if answer.status_code == 400:
        assert audited.one()["status"] == 400
        assert audited.ramped.traffic == before
    elif value == "true":
        assert audited.records() == []
        assert audited.ramped.traffic == before
    else:
        assert audited.one()["action"] == action


@pytest.mark.parametrize("method", ["DELETE", "PATCH", "POST", "PUT", "OPTIONS", "TRACE", "PROPFIND"])
def test_a_call_with_a_method_that_there_is_not_leaves_one_record(audited: Audited, method: str) -> None:
    path = "/api/experiments" if method in ("POST", "PUT") else TRAFFIC
    for key, caller in (("boss", "boss"), ("no-such-key", "")):
        sent = {"authorization": f"Bearer {audited.keys.get(key, key)}", "x-request-id": key}
        assert httpx.request(method, audited.ramped.url + path, headers=sent).status_code == 405
        (record,) = wait_until(lambda: [record for record in audited.records() if record["request_id"] == key])  # noqa: B023
        assert (record["call"], record["caller"], record["status"]) == (f"{method} {path}", caller, 405)
        assert (record["outcome"], record["error"], record["address"]) == ("refused", "method_not_allowed", "127.0.0.1")


@pytest.mark.parametrize("path", ["/api/audit", "/api/callers"])
def test_a_read_without_the_right_leaves_one_record(audited: Audited, path: str) -> None:
    key = {"authorization": f"Bearer {audited.keys['ann']}", "x-request-id": "a-look"}
    assert httpx.get(audited.ramped.url + path, headers=key).status_code == 403
    record = audited.one()
    assert (record["call"], record["caller"], record["status"]) == (f"GET {path}", "ann", 403)


SEED, AFTER = {"blue": 99, "green": 1}, {"blue": 90, "green": 10}


def test_each_line_of_x_forwarded_for_is_recorded(audited: Audited) -> None:
    """The client may have written the first one: the ingress appends its own."""
    method, path, body = CALLS["put_traffic"]
    lines = [("x-forwarded-for", "203.0.113.9"), ("x-forwarded-for", "198.51.100.7")]
    headers = [*ANY.items(), ("authorization", f"Bearer {audited.keys['boss']}"), *lines]
    httpx.request(method, audited.ramped.url + path, json=body, headers=headers, timeout=30)
    assert audited.one()["forwarded_for"] == "203.0.113.9, 198.51.100.7"


@pytest.mark.parametrize("action", CALLS)
def test_an_accepted_call_leaves_one_record_with_what_it_changed(audited: Audited, action: str) -> None:
    forwarded = "203.0.113.9, 198.51.100.7"
    answer = audited.call(action, x_forwarded_for=forwarded)
    if action == "export_exposures":
        assert answer.status_code == 503, "this rig exports nothing"
        assert audited.one()["outcome"] == "failed"
        return
    assert answer.status_code in (200, 202), answer.text
    (record,) = audited.records()  # it is durable before the answer
    assert (record["action"], record["outcome"], record["error"]) == (action, "accepted", "")
    assert (record["caller"], record["request_id"], record["forwarded_for"]) == ("boss", "a-call", forwarded)
    assert record["endpoint"] == "chat"
    assert record["address"]
    assert record["experiment"] == ("first" if action in ("decide", "start_aa_runs") else "")
    _, _, body = CALLS[action]
    assert record["reason"] == body.get("reason")
    before, after = record["before"], record["after"]
    if action in ("put_traffic", "update_config"):
        wanted = AFTER if action == "put_traffic" else {"blue": 0, "green": 100}
        assert (before["weights"], after["weights"]) == (SEED, wanted)
    if action == "decide":
        assert after["action"] == "advance"
        assert after["revision"] > before["revision"]
    if action == "start_aa_runs":
        assert after == {"runs": 1}


def test_what_changes_nothing_leaves_no_record(audited: Audited) -> None:
    boss = {"authorization": f"Bearer {audited.keys['boss']}", **ANY}
    url = audited.ramped.url
    assert httpx.put(f"{url}{TRAFFIC}?dry_run=true", json=PLAN, headers=boss).status_code == 200
    decision = CALLS["decide"][2]
    assert httpx.post(f"{url}{DECISION}?dry_run=true", json=decision, headers=boss).status_code == 200
    assert httpx.get(f"{url}{TRAFFIC}", headers=boss).status_code == 200
    assert httpx.get(f"{url}/api/audit", headers=boss).status_code == 200
    preflight = {"origin": url, "access-control-request-method": "PUT"}
    assert httpx.options(f"{url}{TRAFFIC}", headers=preflight).status_code == 405
    assert audited.records() == []


def test_records_are_found_by_their_fields_and_page_by_page(audited: Audited) -> None:
    for _ in range(3):
        assert audited.call("put_traffic", "ann").status_code == 403
    assert audited.call("put_traffic").status_code == 200
    assert audited.call("decide", None).status_code == 401
    every = wait_until(lambda: found if len(found := audited.records()) == 5 else None, audited.records)
    assert [record["action"] for record in every] == [
        "decide",
        "put_traffic",
        "put_traffic",
        "put_traffic",
        "put_traffic",
    ]
    assert [record["at"] for record in every] == sorted((record["at"] for record in every), reverse=True)
    assert len(audited.records(caller="ann", outcome="refused")) == 3
    assert len(audited.records(outcome="accepted", endpoint="chat")) == 1
    assert audited.records(since=str(every[0]["at"])) == every[:1]
    assert audited.records(until=str(every[0]["at"])) == every[1:]
    assert audited.records(until="2026-01-01") == audited.records(request_id="none") == []
    first = audited.records(limit="2")
    assert first + audited.records(before=first[-1]["id"], limit="9") == every
    key = {"authorization": f"Bearer {audited.keys['boss']}"}
    lines = httpx.get(f"{audited.ramped.url}/api/audit", params={"format": "jsonl"}, headers=key)
    assert lines.headers["content-type"].startswith("application/jsonl")
    assert [record for line in lines.text.splitlines() if (record := json.loads(line))["call"]] == every
    for name, value in [("limit", "0"), ("limit", "x"), ("since", "x"), ("until", "nan"), ("outcome", "x"), ("x", "1")]:
        wrong = httpx.get(f"{audited.ramped.url}/api/audit", params={name: value}, headers=key)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, name), value


def test_a_flood_of_refused_calls_is_summed_and_buries_nothing(audited: Audited) -> None:
    for _ in range(REFUSED_PER_MINUTE + 20):
        assert audited.call("put_traffic", "ann").status_code == 403
    assert audited.call("put_traffic").status_code == 200
    assert len(audited.records(outcome="accepted")) == 1
    refused = audited.records(outcome="refused", limit="1000")
    assert len(refused) == REFUSED_PER_MINUTE


def test_the_command_prints_who_did_what(audited: Audited, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited.call("put_traffic").status_code == 200
    assert audited.call("decide", "ann").status_code == 403
    wait_until(lambda: len(audited.records()) == 2, audited.records)
    options = ["--url", audited.ramped.url, "--key", audited.keys["boss"]]
    assert main(["audit", *options]) == 0
    _, refused, changed, *deployed = capsys.readouterr().out.splitlines()
    assert {tuple(line.split()[3:5]) for line in deployed} == {("deploy", "accepted")}
    assert any(line.split()[-1] == "chat" for line in deployed), "the plan with which the controller began"
    assert refused.split()[3:] == ["decide", "forbidden", "ann", "127.0.0.1", "first"]
    assert changed.split()[3:7] == ["put_traffic", "accepted", "boss", "127.0.0.1"]
    assert changed.endswith("chat blue=99 green=1 → blue=90 green=10: more for green")
    assert main(["audit", "--format", "json", "--limit", "1", *options]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == audited.records()[0]
    assert main(["audit", "--url", audited.ramped.url, "--key", audited.keys["ann"]]) == 4


def test_records_wait_while_the_controller_is_away(audited: Audited) -> None:
    audited.ramped.controller.absent = True
    assert audited.call("put_traffic").status_code == 200
    assert audited.call("put_traffic", "ann").status_code == 403
    audited.ramped.controller.absent = False
    listed = wait_until(lambda: records if len(records := audited.records()) == 2 else None, audited.records)
    assert [record["outcome"] for record in listed] == ["refused", "accepted"]


def test_a_router_without_a_controller_keeps_its_own_records(rig: Rig, tmp_path: Path, servers: ServerPool) -> None:
    router = Router(RuntimeEnvironment(ledger_base=tmp_path))
    router.reconfigure(rig.config)
    with servers.host(router.app) as url:
        refused = httpx.put(f"{url}{TRAFFIC}", json=PLAN, headers={**ANY, "origin": "https://evil.example"})
        assert refused.status_code == 403
        listed = wait_until(lambda: httpx.get(f"{url}/api/audit").json()["records"])
    assert [(record["action"], record["outcome"], record["error"]) for record in listed] == [
        ("put_traffic", "refused", "foreign_origin")
    ]
    (file,) = (tmp_path / ".run/ledger/audit").glob("date=*/*.jsonl")
    lines = file.read_text().splitlines()  # a delivery that the shutdown interrupts is repeated, under the same id
    assert {json.loads(line)["id"] for line in lines} == {listed[0]["id"]}
