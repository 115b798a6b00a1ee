"""Roles: for every management route, role and endpoint, who is let in."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.keys import append, create
from deployments.cli.main import main
from tests.router.conftest import Rig
from tests.support.waiting import wait_until

ENDPOINTS = ("chat", "other")
USED = {"boss": ENDPOINTS, "operator": ENDPOINTS, "viewer": ENDPOINTS, "plain": ENDPOINTS, "outsider": ("embed",)}
"""The endpoints that each caller may use. `outsider` is an operator of both that it may not use."""

ANY, VIEW, WATCH, OPERATE, MANAGE, OPEN = (
    "any caller",
    "managers and viewers",
    "managers, viewers and the operators of an endpoint",
    "managers and operators",
    "managers",
    "no credentials",
)
_SERVING = "/api/2.0/serving-endpoints"
ROUTES = {
    ("GET", "/api/me"): ANY,
    ("GET", "/api/audit"): VIEW,
    ("GET", "/api/callers"): VIEW,
    ("GET", "/api/keys"): VIEW,
    ("POST", "/api/keys"): MANAGE,
    ("PATCH", "/api/keys/{id}"): MANAGE,
    ("POST", "/api/keys/{id}/rotate"): MANAGE,
    ("POST", "/api/keys/{id}/revoke"): MANAGE,
    ("GET", "/api/models"): WATCH,
    ("GET", "/api/texts/{id}"): MANAGE,
    ("GET", "/api/overview"): ANY,
    ("GET", "/api/events"): ANY,
    ("GET", "/api/exposures"): VIEW,
    ("GET", "/api/experiments"): ANY,
    ("POST", "/api/experiments/check"): ANY,
    ("GET", "/api/experiments/{name}"): ANY,
    ("GET", "/api/experiments/{name}/report"): ANY,
    ("GET", "/api/experiments/{name}/history"): ANY,
    ("GET", "/api/experiments/{name}/planner"): ANY,
    ("GET", "/api/experiments/{name}/aa"): ANY,
    ("POST", "/api/experiments/{name}/aa"): OPERATE,
    ("POST", "/api/experiments/{name}/decision"): OPERATE,
    ("GET", "/api/endpoints/{endpoint}/assignment"): ANY,
    ("GET", "/api/endpoints/{endpoint}/mirror"): ANY,
    ("GET", "/api/endpoints/{endpoint}/traffic"): ANY,
    ("PUT", "/api/endpoints/{endpoint}/traffic"): OPERATE,
    ("GET", "/api/endpoints/{endpoint}/traffic/history"): ANY,
    ("POST", "/api/endpoints/{endpoint}/traffic/rollback"): OPERATE,
    ("GET", "/api/history"): ANY,
    ("GET", "/api/requests"): ANY,
    ("GET", "/api/requests/{id}"): ANY,
    ("POST", "/api/feedback"): ANY,
    ("GET", _SERVING): ANY,
    ("GET", f"{_SERVING}/{{name}}"): ANY,
    ("GET", f"{_SERVING}/{{name}}/openapi"): ANY,
    ("GET", f"{_SERVING}/{{name}}/metrics"): ANY,
    ("PUT", f"{_SERVING}/{{name}}/config"): OPERATE,
}


class Staff:
    """A key for each role. `url` and `config` are the rig's."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.rig, self.keys = rig, {}
        for name, endpoints in USED.items():
            key, record = create(name, endpoints=endpoints)
            append(directory / "keys.yaml", record.line)
            self.keys[name] = key
        chat = {**rig.config["endpoints"]["chat"], "traffic": {"blue": 50, "green": 50}, "sticky": {"by": "user"}}
        embed = rig.config["endpoints"]["embed"]
        experiment = {
            "control": "blue",
            "treatments": ["green"],
            "primary": [{"metric": "ttft", "minimal_effect": 0.1}],
        }
        rig.change(
            endpoints={"chat": chat, "other": chat, "embed": embed},
            experiments={f"try-{endpoint}": {**experiment, "endpoint": endpoint} for endpoint in ENDPOINTS},
            access={
                "keys_file": str(directory / "keys.yaml"),
                "managers": ["boss"],
                "operators": {"chat": ["key:operator", "key:outsider"], "other": ["outsider"]},
                "viewers": ["key:viewer"],
            },
        )

    def status(self, method: str, path: str, caller: str) -> tuple[int, bytes]:
        headers = {"authorization": f"Bearer {self.keys[caller]}"} if caller else {}
        with httpx.stream(method, f"{self.rig.url}{path}", headers=headers) as answer:
            return answer.status_code, answer.read() if answer.status_code >= 400 else b""

    def get(self, path: str, caller: str) -> Any:
        headers = {"authorization": f"Bearer {self.keys[caller]}"}
        return httpx.get(f"{self.rig.url}{path}", headers=headers).raise_for_status().json()


@pytest.fixture
def staff(rig: Rig, tmp_path: Path) -> Staff:
    return Staff(rig, tmp_path)


def addressed(path: str, endpoint: str) -> str:
    name = f"try-{endpoint}" if "experiments" in path else endpoint
    return path.replace("{name}", name).replace("{endpoint}", endpoint).replace("{id}", "some-id")


def let_in(needed: str, caller: str, endpoint: str | None) -> bool:
    if endpoint is not None and endpoint not in USED[caller]:
        return False
    allowed = {
        ANY: True,
        VIEW: caller in ("boss", "viewer"),
        WATCH: caller in ("boss", "viewer", "operator"),
        MANAGE: caller == "boss",
        OPERATE: caller == "boss" or (caller == "operator" and endpoint == "chat"),
    }
    return allowed[needed]


def test_every_management_route_is_in_the_table(rig: Rig) -> None:
    paths = httpx.get(f"{rig.url}/openapi.json").json()["paths"]
    found = {
        (method.upper(), path) for path, methods in paths.items() for method in methods if path.startswith("/api/")
    }
    assert found - {("GET", "/api/hello")} == ROUTES.keys()  # Claude Code's, open and without content


@pytest.mark.parametrize(("route", "needed"), ROUTES.items(), ids=[" ".join(route) for route in ROUTES])
def test_a_route_lets_in_whom_its_role_lets_in(staff: Staff, route: tuple[str, str], needed: str) -> None:
    method, path = route
    for endpoint in ENDPOINTS if re.search(r"\{(name|endpoint)\}", path) else (None,):
        address = addressed(path, endpoint or "")
        assert staff.status(method, address, "")[0] == 401
        for caller in USED:
            status, body = staff.status(method, address, caller)
            if let_in(needed, caller, endpoint):
                assert status not in (401, 403), (caller, address)
            else:
                code = b'"PERMISSION_DENIED"' if path.startswith(_SERVING) else b'"permission_denied"'
                assert (status, code in body) == (403, True), (caller, address)


def test_a_refusal_names_the_lists_that_give_the_right(staff: Staff, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--url", staff.rig.url, "--key", staff.keys["operator"]]
    assert main(["traffic", "other", "blue=100", *options]) == 4
    refused = capsys.readouterr().err
    assert "'operator' may not change the traffic of 'other': it is listed neither in `access.managers`" in refused
    assert "nor in `access.operators.other`" in refused


def test_an_operator_sees_the_requests_of_its_endpoints_and_elsewhere_its_own(staff: Staff) -> None:
    for endpoint in ENDPOINTS:
        for caller in ("boss", "operator"):
            headers = {"authorization": f"Bearer {staff.keys[caller]}", "x-request-id": f"{caller}-at-{endpoint}"}
            body = {"model": endpoint, "messages": [{"role": "user", "content": "hi"}]}
            httpx.post(f"{staff.rig.url}/v1/chat/completions", json=body, headers=headers).raise_for_status()

    def seen(caller: str, query: str = "") -> set[str]:
        return {one["id"] for one in staff.get(f"/api/requests{query}", caller)["requests"]}

    everyones = {f"{caller}-at-{endpoint}" for endpoint in ENDPOINTS for caller in ("boss", "operator")}
    wait_until(lambda: seen("boss") == everyones)
    assert seen("viewer") == everyones
    assert seen("operator") == everyones - {"boss-at-other"}
    assert seen("operator", "?caller=boss") == {"boss-at-chat"}
    assert seen("outsider") == seen("plain") == set()
    assert staff.get("/api/requests", "operator")["operated"] == ["chat"]
    assert staff.get("/api/requests", "outsider")["operated"] == []


def test_an_operator_sees_the_models_of_its_endpoints_alone(staff: Staff) -> None:
    """It has no role at `other`, which it may use."""
    endpoints = staff.rig.config["endpoints"]
    staff.rig.config["experiments"] = {}
    staff.rig.change(endpoints={**endpoints, "other": endpoints["embed"]})
    shown = {"boss": {"blue", "green", "mini"}, "viewer": {"blue", "green", "mini"}, "operator": {"blue", "green"}}
    for caller, deployments in shown.items():
        assert {one["deployment"] for one in staff.get("/api/models", caller)["elsewhere"]} == deployments


def test_units_are_shown_to_those_who_change_the_traffic_or_read_everything(staff: Staff) -> None:
    unit = f"{7:016x}"
    endpoints = staff.rig.config["endpoints"]
    plan = {"overrides": [{"unit": unit, "deployment": "blue"}]}
    staff.rig.change(endpoints={**endpoints, "chat": {**endpoints["chat"], "plan": plan}})
    for caller, shown in (("boss", unit), ("operator", unit), ("viewer", unit), ("plain", None)):
        assert staff.get("/api/endpoints/chat/traffic", caller)["overrides"][0]["unit"] == shown
        named = staff.get("/api/endpoints/chat/assignment?key=ann", caller)["unit"]
        assert (named is not None) == (shown is not None)
    assert staff.get("/api/endpoints/other/assignment?key=ann", "operator")["unit"] is None


def test_a_caller_sees_its_own_roles(staff: Staff) -> None:
    expected = {
        "boss": ("manager", True, ["chat", "other"], True),
        "operator": ("operator", False, ["chat"], False),
        "viewer": ("viewer", False, [], True),
        "plain": ("caller", False, [], False),
        "outsider": ("operator", False, [], False),
    }
    for caller, roles in expected.items():
        me = staff.get("/api/me", caller)
        assert (me["role"], me["manages"], me["operates"], me["views"]) == roles
        overview = staff.get("/api/overview", caller)
        assert [endpoint["endpoint"] for endpoint in overview["endpoints"] if endpoint["may_operate"]] == roles[2]
        assert overview["is_manager"] == roles[1]


def test_databricks_shows_the_permission_on_each_endpoint(staff: Staff) -> None:
    for endpoint, level in (("chat", "CAN_MANAGE"), ("other", "CAN_QUERY")):
        assert staff.get(f"{_SERVING}/{endpoint}", "operator")["permission_level"] == level
