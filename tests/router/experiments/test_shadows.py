"""A shadow from the copy to the report: the real router and controller, over HTTP and by the command line."""

import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.keys import append, create
from deployments.cli.main import main
from tests.router.experiments.conftest import LiveRig
from tests.support.engine.fake_engine import Answer, chunk, refuse, stream
from tests.support.waiting import wait_until

PATH = "/api/endpoints/chat/mirror"


def says(text: str) -> Answer:
    return lambda body: stream([chunk(text), chunk("", finish_reason="stop"), "data: [DONE]\n\n"])


@pytest.fixture
def shadowed(live: LiveRig) -> LiveRig:
    """Green is the shadow of an endpoint that blue serves; no experiment runs."""
    live.blue.answer = live.green.answer = says("It rains.")
    live.change(experiments={"first": {**live.config["experiments"]["first"], "state": "draft"}})
    live.chat_endpoint(traffic={"blue": 100, "green": 0}, mirror={"deployment": "green", "percent": 100})
    return live


def say(live: LiveRig, user: str, **headers: str) -> None:
    body = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "How is the weather?"}]}
    answer = httpx.post(f"{live.url}/v1/chat/completions", json=body, headers={"x-user": user, **headers})
    assert answer.status_code == 200


def until_counted(live: LiveRig, count: int) -> None:
    """Waits until the router has counted the outcomes of that many requests."""

    def mirrored() -> list[str]:
        lines = httpx.get(f"{live.url}/metrics").text.splitlines()
        return [line for line in lines if line.startswith("switchyard_mirrored_requests_total{")]

    wait_until(lambda: sum(float(sample.rpartition(" ")[2]) for sample in mirrored()) >= count, mirrored)


def report(live: LiveRig, copies: int) -> dict[str, Any]:
    """The report, once it has that many copies."""

    def get() -> dict[str, Any]:
        shadow: dict[str, Any] = httpx.get(live.url + PATH, headers=live.headers).json()
        return shadow

    def arrived() -> dict[str, Any] | None:
        shadow = get()
        return shadow if shadow.get("copies", 0) + sum(shadow.get("skipped", {}).values()) >= copies else None

    return wait_until(arrived, get)


def test_a_report_of_many_users(shadowed: LiveRig) -> None:
    calls = itertools.count()
    shadowed.green.answer = lambda body: says("It rains." if next(calls) % 4 else "The sun shines.")(body)
    for number in range(40):
        say(shadowed, f"user {number}")
    shadow = report(shadowed, 40)
    (beside,) = shadow["primaries"]
    values = {value["metric"]: value for value in beside["values"]}
    assert (shadow["shadow"], beside["primary"], beside["compared"], beside["failed"]) == ("green", "blue", 40, {})
    assert values["equal_words"]["value"]["estimate"] == 0.75
    assert values["equal_words"]["value"]["lower"] < 0.75 < values["equal_words"]["value"]["upper"]
    assert (values["ttft"]["units"], values["same_finish"]["value"]["estimate"]) == (40, 1.0)
    assert shadow["headline"].startswith("green as the shadow of chat: of 40 copies 75.0 % gave the same words; first")
    metrics = httpx.get(f"{shadowed.url}/metrics").text
    assert 'metric="equal_words",primary="blue"} 0.75' in metrics
    text = httpx.get(shadowed.url + PATH, params={"format": "text"})
    assert (text.status_code, "Beside blue" in text.text) == (200, True)
    assert "## Beside blue" in httpx.get(shadowed.url + PATH, params={"format": "markdown"}).text


def test_failures_and_skips_are_reported(shadowed: LiveRig, capsys: pytest.CaptureFixture[str]) -> None:
    shadowed.green.answer = refuse(500, "broken", kind="InternalServerError")
    for number in range(6):
        say(shadowed, "one user")
        until_counted(shadowed, number + 1)
    shadow = report(shadowed, 6)
    assert (shadow["primaries"][0]["failed"], shadow["skipped"]) == ({"broken": 5}, {"breaker_open": 1})
    capsys.readouterr()
    assert main(["mirror", "chat", "--url", shadowed.url]) == 0
    printed = capsys.readouterr().out
    assert "green as the shadow of chat: no copy has been compared yet; 5 failed; 1 skipped: shadow fails" in printed
    assert main(["mirror", "chat", "--format", "json", "--url", shadowed.url]) == 0
    assert json.loads(capsys.readouterr().out)["copies"] == 5


def test_an_endpoint_without_a_mirror_says_so(shadowed: LiveRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mirror", "embed", "--url", shadowed.url]) == 1
    assert "The endpoint 'embed' has no mirror; declare one in the configuration" in capsys.readouterr().err
    refused = httpx.get(f"{shadowed.url}/api/endpoints/gone/mirror")
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "endpoint")
    refused = httpx.get(shadowed.url + PATH, params={"format": "pdf"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "format")


def test_callers_without_access_do_not_see_the_endpoints_shadow(shadowed: LiveRig, tmp_path: Path) -> None:
    keys = {}
    for name, endpoints in (("chat team", ["chat"]), ("embed team", ["embed"])):
        keys[name], record = create(name, endpoints=endpoints)
        append(tmp_path / "keys.yaml", record.line)
    shadowed.change(access={"keys_file": str(tmp_path / "keys.yaml")})
    statuses = [
        httpx.get(shadowed.url + PATH, headers={"authorization": f"Bearer {key}"}).status_code for key in keys.values()
    ]
    assert (statuses, httpx.get(shadowed.url + PATH).status_code) == ([200, 403], 401)


def test_no_text_of_mirrored_requests_is_kept(shadowed: LiveRig) -> None:
    say(shadowed, "somebody")
    report(shadowed, 1)
    shadowed.controller.ahead_s += 61
    say(shadowed, "somebody")

    def kept() -> list[Path]:
        say(shadowed, "somebody")
        return list((shadowed.controller.directory / "pairs").rglob("*.parquet"))

    wait_until(kept)
    for file in shadowed.controller.directory.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert not any(word in content for word in (b"weather", b"rains", b"somebody")), file
