"""A caller's identity, access and remaining limits, and for managers everyone's usage: `/api/me` and `/api/callers`."""

import re
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.keys import KeyRecord, append, create, replace, rotated
from app.config.access import Limits
from deployments.cli.main import main
from tests.router.conftest import Rig
from tests.support.processes.servers import free_port
from tests.support.waiting import wait_until

USER = [{"role": "user", "content": "x" * 40}]  # estimated at 10 tokens


class Callers:
    """Ann may use only `chat`, with limits of her own; Eve is a manager."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.rig = rig
        self.keys: dict[str, str] = {}
        own = Limits(tokens_per_minute=1000, concurrent_requests=4)
        for name, endpoints, limits in (("ann", ("chat",), own), ("eve", (), None)):
            key, record = create(name, endpoints=endpoints, limits=limits)
            append(directory / "keys.yaml", record.line)
            self.keys[name] = key
        default = {"requests_per_minute": 10}
        rig.change(
            access={"keys_file": str(directory / "keys.yaml"), "managers": ["eve"], "limits": {"default": default}}
        )

    def get(self, path: str, name: str = "") -> httpx.Response:
        return httpx.get(f"{self.rig.url}{path}", headers=self._headers(name))

    def chat(self, name: str, **fields: Any) -> httpx.Response:
        body = {"model": "chat", "messages": USER, **fields}
        return httpx.post(f"{self.rig.url}/v1/chat/completions", json=body, headers=self._headers(name))

    def _headers(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[name]}"} if name else {}


@pytest.fixture
def callers(rig: Rig, tmp_path: Path) -> Callers:
    return Callers(rig, tmp_path)


def test_a_caller_sees_its_endpoints_and_what_is_left_of_its_limits(callers: Callers) -> None:
    assert callers.chat("ann").status_code == 200  # 12 tokens
    me = callers.get("/api/me", "ann")
    assert me.headers["cache-control"] == "no-store"
    (chat,) = me.json().pop("endpoints")
    assert {**me.json(), "endpoints": []} == {
        "caller": "ann",
        "server": {"version": version("switchyard"), "environment": None, "docs_url": None},
        "anonymous": False,
        "role": "caller",
        "manages": False,
        "operates": [],
        "views": False,
        "colours": 6,
        "limits_counted": "by this router alone",
        "endpoints": [],
    }
    assert chat["endpoint"] == "chat"
    assert chat["tasks"] == ["chat", "completions", "responses"]
    assert chat["deployments"] == [
        {"deployment": "blue", "weight": 100, "images": False, "colour": 1},
        {"deployment": "green", "weight": 0, "images": False, "colour": 2},
    ]
    assert chat["limits"] == [
        {"kind": "requests", "limit": 10, "used": 1, "remaining": 9, "resets_in_s": 90.0},
        {"kind": "tokens", "limit": 1000, "used": 12, "remaining": 988, "resets_in_s": 90.0},
        {"kind": "concurrent", "limit": 4, "used": 0, "remaining": 4, "resets_in_s": None},
    ]


def test_asking_for_limits_costs_nothing(callers: Callers) -> None:
    for _ in range(12):
        (chat,) = callers.get("/api/me", "ann").json()["endpoints"]
    assert [limit["used"] for limit in chat["limits"]] == [0, 0, 0]


def test_limits_are_listed_while_their_store_is_away(callers: Callers) -> None:
    store = {"url": f"redis://127.0.0.1:{free_port()}/0"}
    callers.rig.change(access={"limits": {"default": {"requests_per_minute": 10}, "store": store}})
    me = callers.get("/api/me", "eve").json()
    assert me["limits_counted"] == "by all routers together"
    left = {"kind": "requests", "limit": 10, "used": None, "remaining": None, "resets_in_s": None}
    assert [endpoint["limits"] for endpoint in me["endpoints"]] == [[left], [left]]


def test_callers_without_a_key_are_anonymous(callers: Callers, rig: Rig) -> None:
    assert callers.get("/api/me").status_code == 401
    assert callers.get("/api/callers").status_code == 401
    rig.change(access={"allow_anonymous": True})
    me = callers.get("/api/me").json()
    assert (me["caller"], me["anonymous"], me["manages"]) == ("anonymous", True, False)


def test_without_access_settings_every_local_caller_is_a_manager(rig: Rig) -> None:
    me = httpx.get(f"{rig.url}/api/me").json()
    assert (me["anonymous"], me["manages"]) == (True, True)
    assert [endpoint["limits"] for endpoint in me["endpoints"]] == [[], []]


def test_the_scores_of_experiments_and_models_that_read_images_are_listed(rig: Rig) -> None:
    rig.change(deployments={"green": {**rig.config["deployments"]["green"], "images": True}})
    rig.change(
        experiments={
            "colours": {
                "endpoint": "chat",
                "control": "blue",
                "treatments": ["green"],
                "primary": [{"metric": "ttft", "minimal_effect": 0.1}],
                "feedback": {"liked": {}, "stars": {"type": "number", "min": 1, "max": 5}},
            }
        }
    )
    chat, embed = httpx.get(f"{rig.url}/api/me").json()["endpoints"]
    assert chat["feedback"] == [
        {"metric": "liked", "type": "boolean", "min": None, "max": None},
        {"metric": "stars", "type": "number", "min": 1, "max": 5},
    ]
    assert embed["feedback"] == []
    assert [deployment["images"] for deployment in chat["deployments"]] == [False, True]


def test_managers_see_what_callers_used_and_no_answer_has_a_key(callers: Callers) -> None:
    started = time.time()
    callers.chat("ann")
    callers.chat("eve", model="gone")
    callers.chat("eve", temperature=9)
    answer = callers.get("/api/callers", "eve")
    view = answer.json()
    assert started - 60 < view["since"] <= time.time()
    assert "this router alone" in view["view"]
    ann, *eves = view["callers"]
    assert [(eve["endpoint"], eve["requests"], eve["failed"]) for eve in eves] == [(None, 1, 1), ("chat", 1, 1)]
    assert started <= ann.pop("last_at") <= time.time()
    assert ann == {
        "caller": "ann",
        "endpoint": "chat",
        "requests": 1,
        "failed": 0,
        "not_answered": 0,
        "prompt_tokens": 9,
        "completion_tokens": 3,
    }
    refused = callers.get("/api/callers", "ann")
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        403,
        "'ann' may not see what others use: it is listed neither in `access.managers` nor in `access.viewers`",
    )
    for shown in (answer.text, callers.get("/api/me", "ann").text):
        assert not any(key in shown or key.split("-")[2] in shown for key in callers.keys.values())


def test_managers_see_when_each_key_ends_and_was_used_last(callers: Callers) -> None:
    """Also the secret that a rotation replaces, so that it can be dropped once nobody uses it."""
    path = Path(callers.rig.config["access"]["keys_file"])
    now, end = datetime.now(UTC), (datetime.now(UTC) + timedelta(days=7)).replace(microsecond=0)
    old, made = callers.keys["ann"], []

    def change(record: KeyRecord) -> KeyRecord:
        made.append(rotated(record, now=now, until=end, expires=None))
        return made[0][1]

    callers.chat("ann")
    replace(path, "ann", change)
    callers.keys["ann"] = made[0][0]
    wait_until(lambda: callers.get("/api/me", "ann").status_code == 200)
    keys = callers.get("/api/callers", "eve").json()["keys"]
    ann, eve = keys
    for used in (ann["last_used"], ann["previous"].pop("last_used"), eve["last_used"]):
        assert used % 60 == 0
        assert now.timestamp() - 120 < used <= time.time()
    assert (ann["caller"], ann["endpoints"], ann["expires"]) == ("ann", ["chat"], None)
    assert ann["previous"] == {"expires": end.timestamp()}
    assert (eve["caller"], eve["endpoints"], eve["previous"]) == ("eve", None, None)
    callers.keys["ann"] = old
    assert callers.get("/api/me", "ann").json()["caller"] == "ann", "both keys are valid"
    assert next(limit["used"] for limit in callers.get("/api/me", "ann").json()["endpoints"][0]["limits"]) == 1


def test_the_command_line_lists_them_to_managers(callers: Callers, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--url", callers.rig.url, "--key"]
    callers.chat("eve")
    assert main(["keys", "list", *options, callers.keys["eve"]]) == 0
    header, ann, eve = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "ENDPOINTS", "EXPIRES", "LAST", "USED", "PREVIOUS", "KEY"]
    assert ann.split() == ["ann", "chat", "never", "never"]
    assert eve.split()[:3] == ["eve", "all", "never"]
    assert re.search(r" \d\d:\d\d UTC$", eve), "uses are known to the minute"
    assert main(["keys", "list", *options, callers.keys["ann"]]) == 4
    assert "'ann' may not see what others use" in capsys.readouterr().err
