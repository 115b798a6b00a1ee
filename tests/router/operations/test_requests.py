"""`GET /api/requests` and `GET /api/history`, on real routers."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import validate
from starlette.responses import Response, StreamingResponse

from app.access.keys import append, create
from app.config.schema import parse
from app.routing.resilience import Fault
from app.server.application import Router
from app.server.openapi import answers
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import chunk, frame, refuse, stream
from tests.support.experiments.live_controller import LiveController
from tests.support.processes.servers import ServerPool, free_port
from tests.support.waiting import wait_until

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "a secret prompt"}], "max_tokens": 5}


def listed(url: str, key: str = "", **query: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = httpx.get(f"{url}/api/requests", params=query, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    document: dict[str, Any] = answer.json()
    return document


def chat(url: str, id: str, key: str = "", **fields: Any) -> httpx.Response:
    headers = {"x-request-id": id} | ({"authorization": f"Bearer {key}"} if key else {})
    return httpx.post(f"{url}/v1/chat/completions", json={**CHAT, **fields}, headers=headers)


def ids(url: str, key: str = "", **query: Any) -> list[str]:
    return [one["id"] for one in listed(url, key, **query)["requests"]]


def wait_for(url: str, *wanted: str, key: str = "") -> None:
    """Until these requests have ended and are listed. A client may have its answer before that."""

    def ended() -> bool:
        shown = listed(url, key)["requests"]
        return sorted(one["id"] for one in shown) == sorted(wanted) and not any(one["running"] for one in shown)

    wait_until(ended, lambda: ids(url, key))


def test_a_lone_router_lists_its_requests_with_the_times_of_each_step(rig: Rig) -> None:
    assert chat(rig.url, "whole").status_code == 200
    assert chat(rig.url, "stream", stream=True).status_code == 200
    assert chat(rig.url, "unknown", model="none").status_code == 404
    assert chat(rig.url, "wrong", temperature="hot").status_code == 400
    httpx.get(f"{rig.url}/v1/models")
    httpx.get(f"{rig.url}/api/overview")
    wait_for(rig.url, "whole", "stream", "unknown", "wrong")
    by_id = {one["id"]: one for one in listed(rig.url)["requests"]}
    assert listed(rig.url)["view"] == "this router alone"
    whole = by_id["whole"]
    assert (whole["endpoint"], whole["deployment"], whole["reason"]) == ("chat", "blue", "traffic")
    assert (whole["prompt_tokens"], whole["completion_tokens"], whole["max_tokens"]) == (9, 3, 5)
    assert (whole["status"], whole["attempts"], whole["stream"], by_id["stream"]["stream"]) == (200, 1, False, True)
    assert whole["plan"].startswith("0-")
    assert 0 < whole["admitted_s"] <= whole["sent_s"] <= whole["first_byte_s"] <= whole["duration_s"]
    assert by_id["unknown"]["endpoint"] == ""
    assert by_id["wrong"]["admitted_s"] is None
    assert by_id["wrong"]["endpoint"] == "chat"
    assert "secret" not in str(by_id)
    assert [(group["status"], group["count"]) for group in listed(rig.url)["groups"]] == [(400, 1), (404, 1)] or [
        (404, 1),
        (400, 1),
    ]
    assert ids(rig.url, status="400") == ["wrong"]
    assert sorted(ids(rig.url, id="stream")) == ["stream"]


def test_a_running_request_is_listed_by_every_router_until_it_ends(
    rig: Rig, tmp_path: Path, servers: ServerPool
) -> None:
    two = Two(rig, tmp_path)
    ended = threading.Event()

    def slow(body: dict[str, Any]) -> Response:
        async def parts() -> AsyncIterator[str]:
            yield frame({"id": "x", "model": "m", "choices": [{"index": 0, "delta": {"content": "a"}}]})
            while not ended.is_set():  # noqa: ASYNC110  set by another thread
                await asyncio.sleep(0.01)
            yield "data: [DONE]\n\n"

        return StreamingResponse(parts(), media_type="text/event-stream")

    def runs(url: str, count: int) -> bool:
        return bool(listed(url, status="running")["running"] == count)

    rig.blue.answer = slow
    with servers.host(two.routers[0].app) as a, servers.host(two.routers[1].app) as b, ThreadPoolExecutor(1) as pool:
        try:
            answer = pool.submit(chat, a, "long", stream=True)
            for url in (a, b):
                wait_until(partial(runs, url, 1))
            wait_until(lambda: listed(b, id="long")["requests"][0]["first_byte_s"] is not None)
            document = listed(b, id="long")
            (request,) = document["requests"]
            assert (request["running"], request["deployment"], request["status"]) == (True, "blue", 200)
            assert request["plan"].startswith("0-")
            age = request["duration_s"]
            wait_until(lambda: listed(b, id="long")["requests"][0]["duration_s"] > age)
            assert (listed(b, status="not_answered")["matching"], listed(b, status="answered")["matching"]) == (0, 0)
        finally:
            ended.set()
        assert answer.result().status_code == 200
        for url in (a, b):
            wait_until(partial(runs, url, 0))
            assert [one["running"] for one in listed(url, id="long")["requests"]] == [False]
    two.controller.close()


def test_a_failure_is_listed_with_its_attempts_and_where_it_ended(rig: Rig) -> None:
    rig.chat_endpoint(traffic={"blue": 100, "green": 0}, fallback=["green"])
    rig.blue.answer = refuse(500, "broken")
    assert chat(rig.url, "replaced").status_code == 200
    rig.green.answer = refuse(500, "broken")
    assert chat(rig.url, "lost").status_code == 502
    wait_for(rig.url, "replaced", "lost")
    by_id = {one["id"]: one for one in listed(rig.url)["requests"]}
    assert (by_id["replaced"]["deployment"], by_id["replaced"]["reason"]) == ("green", "failover")
    assert by_id["replaced"]["attempts"] == 2
    (group,) = listed(rig.url)["groups"]
    assert (group["endpoint"], group["status"], group["count"], group["id"]) == ("chat", 502, 1, "lost")


CHAT_MESSAGES = {"messages": CHAT["messages"], "max_tokens": 5}
FAILURES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {**CHAT, "temperature": "hot"}, "chat"),
    ("/v1/chat/completions", {**CHAT, "model": "blue", "temperature": "hot"}, "chat"),
    ("/v1/chat/completions", {**CHAT, "model": "blue-model", "n": -1}, "chat"),
    ("/v1/chat/completions", {**CHAT, "model": "embed"}, "embed"),
    ("/v1/chat/completions", {**CHAT, "model": "none"}, ""),
    ("/v1/messages", {**CHAT, "temperature": "hot"}, "chat"),
    ("/v1/messages", {**CHAT, "model": "none"}, ""),
    ("/generate", {"inputs": "a secret prompt", "parameters": {"max_new_tokens": 0}}, "chat"),
    ("/serving-endpoints/chat/invocations", {**CHAT_MESSAGES, "temperature": "hot"}, "chat"),
    ("/serving-endpoints/none/invocations", CHAT_MESSAGES, ""),
    ("/models/chat/completions", {**CHAT, "temperature": 9}, "chat"),
]
"""Requests that no deployment gets: path, body, and the endpoint that they are for, if it is there."""


def told(answer: httpx.Response) -> tuple[str, str | None, str | None]:
    """The text, the code and the type of an error in any dialect."""
    body = answer.json()
    inner = body["error"] if isinstance(body.get("error"), dict) else body
    code, type = (inner.get(name) or inner.get(f"error_{name}") for name in ("code", "type"))
    return inner.get("message") or inner["error"], code, type


@pytest.mark.parametrize(("path", "body", "endpoint"), FAILURES)
def test_a_failed_request_says_what_its_client_was_told_and_the_endpoint_that_it_is_for(
    rig: Rig, path: str, body: dict[str, Any], endpoint: str
) -> None:
    rig.change(defaults={"chat": "chat", "completions": "chat"})
    answer = httpx.post(f"{rig.url}{path}", json=body, headers={"x-request-id": "failed"})
    assert 400 <= answer.status_code < 500
    wait_for(rig.url, "failed")
    document = listed(rig.url)
    (request,), (group,) = document["requests"], document["groups"]
    assert (request["message"], request["code"] or None, request["type"] or None) == told(answer)
    assert (request["endpoint"], group["endpoint"], group["message"]) == (endpoint, endpoint, request["message"])
    assert not request["is_engines"]
    assert "secret" not in str(document)


def test_a_stream_that_breaks_off_says_why(rig: Rig) -> None:
    rig.blue.answer = lambda body: stream([chunk("Hel")])
    chat(rig.url, "cut", stream=True)
    wait_for(rig.url, "cut")
    (request,) = listed(rig.url)["requests"]
    assert (request["status"], request["error"]) == (200, "broken")
    assert request["message"] == "The deployment ended its response before it was complete"
    assert (request["code"], request["type"]) == ("", "server_error")
    assert (request["outcome"], request["sent_events"]) == ("errors", 1)
    assert (ids(rig.url, status="errors"), ids(rig.url, status="answered")) == (["cut"], [])
    (endpoint,) = (one for one in httpx.get(f"{rig.url}/api/overview").json()["endpoints"] if one["requests"])
    assert (endpoint["errors"], endpoint["answered"]) == (1, 0)


def test_an_event_with_the_role_alone_is_no_token_of_a_cut_stream(rig: Rig) -> None:
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    first = frame({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", **role})
    rig.blue.answer = lambda body: stream([first, chunk("Hel"), chunk("lo")])
    chat(rig.url, "cut", stream=True)
    wait_for(rig.url, "cut")
    (request,) = listed(rig.url)["requests"]
    assert (request["error"], request["sent_tokens"], request["sent_events"]) == ("broken", None, 2)


def test_a_stream_that_its_clients_own_limit_cuts_says_whose_limit_it_was(rig: Rig) -> None:
    rig.blue.answer = lambda body: stream([chunk("Hel"), 5.0])
    headers = {"x-request-id": "impatient", "x-request-timeout-s": "0.2"}
    answer = httpx.post(f"{rig.url}/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers)
    wait_for(rig.url, "impatient")
    (request,) = listed(rig.url)["requests"]
    assert request["message"] == "The response took longer than the 0.2 s that the request allows"
    assert request["message"] in answer.text
    assert (request["code"], request["error"]) == ("timeout", "client_timeout")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_over_its_own_limit_has_failed_wherever_it_is_counted(rig: Rig, streamed: bool) -> None:
    rig.blue.answer = lambda body: stream([chunk("Hel"), 5.0]) if streamed else stream([60.0])
    headers = {"x-request-id": "impatient", "x-request-timeout-s": "0.2"}
    httpx.post(f"{rig.url}/v1/chat/completions", json={**CHAT, "stream": streamed}, headers=headers)
    wait_for(rig.url, "impatient")
    (request,) = listed(rig.url)["requests"]
    assert (request["error"], request["outcome"], request["own_limit_s"]) == ("client_timeout", "errors", 0.2)
    assert (ids(rig.url, status="errors"), ids(rig.url, status="left")) == (["impatient"], [])
    (endpoint,) = (one for one in httpx.get(f"{rig.url}/api/overview").json()["endpoints"] if one["requests"])
    assert (endpoint["errors"], endpoint["left"]) == (1, 0)
    assert "1 over the request's own time limit" in str(endpoint["findings"])
    tgi = httpx.get(f"{rig.url}/tgi/chat/metrics").text
    assert 'tgi_request_failure{err="generation"} 1' in tgi


def test_an_endpoint_that_does_not_exist_is_no_empty_list(rig: Rig) -> None:
    unknown = [
        listed(rig.url, **query)["no_such_endpoint"] for query in ({"endpoint": "nope"}, {"endpoint": "chat"}, {})
    ]
    assert unknown == ["nope", None, None]


def test_an_engines_own_words_are_for_managers_where_texts_are_recorded(rig: Rig, tmp_path: Path) -> None:
    keys = {}
    for name in ("boss", "viewer", "ann"):
        keys[name], record = create(name)
        append(tmp_path / "keys.yaml", record.line)
    access = {"keys_file": str(tmp_path / "keys.yaml"), "managers": ["boss"], "viewers": ["viewer"]}
    rig.change(access=access)
    words = "messages: 'a secret prompt' is not to be answered"
    rig.blue.answer = refuse(400, words)
    assert chat(rig.url, "kept-nowhere", keys["ann"]).json()["error"]["message"] == words
    wait_for(rig.url, "kept-nowhere", key=keys["boss"])
    rig.chat_endpoint(record={"text": "full"})
    chat(rig.url, "kept", keys["ann"])
    wait_for(rig.url, "kept", "kept-nowhere", key=keys["boss"])
    for name, message in (("boss", words), ("viewer", ""), ("ann", "")):
        document = listed(rig.url, keys[name])
        (group,) = document["groups"]
        by_id = {one["id"]: one for one in document["requests"]}
        assert [by_id[id]["message"] for id in ("kept-nowhere", "kept")] == ["", message]
        assert [by_id[id]["param"] for id in by_id] == ["messages", "messages"]
        assert all(one["is_engines"] for one in by_id.values())
        assert (group["message"], group["messages"]) == (message, 1), "the other one is not known"
        assert ("secret" in str(document)) == bool(message)


def test_an_engines_message_of_its_own_failure_is_kept_and_logged_where_texts_are_recorded(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {}
    for name in ("boss", "viewer", "ann"):
        keys[name], record = create(name)
        append(tmp_path / "keys.yaml", record.line)
    access = {"keys_file": str(tmp_path / "keys.yaml"), "managers": ["boss"], "viewers": ["viewer"]}
    rig.change(access=access)
    words = f"assert 'a secret prompt' and {keys['ann']}; " + 600 * "x"
    broken = frame({"error": {"message": words, "type": "InternalServerError", "code": 500}})

    def logged() -> list[str]:
        lines = [vars(line) for line in caplog.records if getattr(line, "event", "") == "engine_error"]
        assert all(line["levelname"] == "WARNING" for line in lines)
        return [line["fields"]["engine_message"] for line in lines]

    for id, text, answer in (
        ("kept-nowhere", "none", refuse(500, words)),
        ("whole", "full", refuse(500, words)),
        ("stream", "full", lambda body: stream([chunk("Hel"), chunk("lo"), broken])),
        ("busy", "full", refuse(429, words)),
    ):
        rig.chat_endpoint(record={"text": text})
        rig.blue.answer = answer
        told = chat(rig.url, id, keys["ann"], stream=id == "stream").text
        assert "secret" not in told
        assert bool(logged()) == (text == "full")
    wait_until(lambda: listed(rig.url, keys["boss"], status="errors")["matching"] == 4)
    for name, reads in (("boss", True), ("viewer", False), ("ann", False)):
        document = listed(rig.url, keys[name])
        by_id = {one["id"]: one["engine_message"] for one in document["requests"]}
        assert by_id["kept-nowhere"] == ""
        for id in ("whole", "stream", "busy"):
            assert by_id[id].startswith("assert 'a secret prompt' and …; x") == reads, by_id
        assert ("secret" in str(document)) == reads
        groups = {group["status"]: group["engine_message"] for group in document["groups"]}
        assert groups == {200: by_id["stream"], 502: by_id["whole"], 503: by_id["busy"]}
    assert {len(message) for message in logged()} < set(range(513))
    assert not any(keys["ann"] in message for message in logged())


def test_a_name_that_its_caller_may_not_know_is_not_shown(rig: Rig, tmp_path: Path) -> None:
    keys = {}
    for name, endpoints in (("boss", ()), ("ann", ("chat",))):
        keys[name], record = create(name, endpoints=endpoints)
        append(tmp_path / "keys.yaml", record.line)
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml"), "managers": ["boss"]})
    assert chat(rig.url, "hers", keys["ann"], temperature="hot").status_code == 400
    assert chat(rig.url, "not-hers", keys["ann"], model="embed").status_code == 403
    wait_for(rig.url, "hers", "not-hers", key=keys["boss"])
    for name, endpoint in (("boss", "embed"), ("ann", "")):
        by_id = {one["id"]: one for one in listed(rig.url, keys[name])["requests"]}
        assert (by_id["hers"]["endpoint"], by_id["not-hers"]["endpoint"]) == ("chat", endpoint)


def test_a_key_that_a_client_sends_as_a_name_is_not_shown(rig: Rig, tmp_path: Path) -> None:
    key, record = create("boss")
    append(tmp_path / "keys.yaml", record.line)
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml"), "managers": ["boss"]})
    for number, name in enumerate((key, f"x {key} y", "sk-ant-api03-" + 90 * "a", f"eyJ{80 * 'a'}.b.c")):
        assert chat(rig.url, f"r{number}", key, model=name).status_code == 404
    wait_for(rig.url, "r0", "r1", "r2", "r3", key=key)
    document = listed(rig.url, key)
    assert all(one["message"].startswith("The model '") for one in document["requests"])
    assert not any(secret in str(document) for secret in (key[20:], "sk-ant-api03-aaa", "eyJaaa"))


def test_requests_without_valid_credentials_are_counted_for_whoever_has_a_role(rig: Rig, tmp_path: Path) -> None:
    keys = {}
    for name in ("boss", "viewer", "operator", "ann"):
        keys[name], record = create(name)
        append(tmp_path / "keys.yaml", record.line)
    roles = {"managers": ["boss"], "viewers": ["viewer"], "operators": {"chat": ["operator"]}}
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml"), **roles})
    wrong = "sk-sy-000000000000-" + 43 * "x"
    for _ in range(25):  # the last ones get a 429
        chat(rig.url, "a guess", wrong)
    chat(rig.url, "none")
    httpx.get(f"{rig.url}/api/me")

    def counted() -> dict[str, int]:
        sums = listed(rig.url, keys["boss"])["unauthorized"]
        assert sum(sums["requests"]) == sum(one["requests"] for one in sums["reasons"])
        assert (len(sums["requests"]), sums["step_s"]) == (60, 60)
        return {one["reason"]: one["requests"] for one in sums["reasons"]}

    wait_until(lambda: sum(counted().values()) == 27, counted)
    assert sorted(counted().values()) == [2, 25]
    assert counted()["The API key is not valid"] == 25
    for name in ("viewer", "operator"):
        assert listed(rig.url, keys[name])["unauthorized"]["reasons"]
    assert "unauthorized" not in listed(rig.url, keys["ann"])
    assert wrong[:20] not in str(listed(rig.url, keys["boss"]))


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"status": "bad"}, "status"),
        ({"status": "6xx"}, "status"),
        ({"last_s": "1_000"}, "last_s"),
        ({"last_s": "nan"}, "last_s"),
        ({"last_s": "1e999"}, "last_s"),
        ({"slower_than_s": "nan"}, "slower_than_s"),
        ({"slower_than_s": "-1"}, "slower_than_s"),
        ({"limit": "0"}, "limit"),
        ({"limit": "501"}, "limit"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_filter_that_cannot_be_is_refused_by_name(rig: Rig, query: dict[str, str], param: str) -> None:
    answer = httpx.get(f"{rig.url}/api/requests", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    answer = httpx.get(f"{rig.url}/api/history", params={"range": "2h"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "range")


def test_callers_see_their_own_requests_and_viewers_everyones_at_their_endpoints(rig: Rig, tmp_path: Path) -> None:
    keys = {}
    for name, endpoints in (
        ("ann", ()),
        ("bob", ()),
        ("boss", ()),
        ("chat viewer", ("chat",)),
        ("embed viewer", ("embed",)),
    ):
        keys[name], record = create(name, endpoints=endpoints)
        append(tmp_path / "keys.yaml", record.line)
    access = {
        "keys_file": str(tmp_path / "keys.yaml"),
        "managers": ["boss"],
        "viewers": ["chat viewer", "embed viewer"],
    }
    rig.change(access={**access, "allow_anonymous": True})
    chat(rig.url, "anns", keys["ann"])
    chat(rig.url, "bobs", keys["bob"])
    chat(rig.url, "nobodys")
    chat(rig.url, "unknown", keys["ann"], model="none")
    chat(rig.url, "a guess", "sk-sy-000000000000-" + 43 * "x")
    wait_for(rig.url, "anns", "bobs", "nobodys", "unknown", key=keys["boss"])
    assert sorted(ids(rig.url, keys["ann"])) == ["anns", "unknown"]
    assert ids(rig.url, keys["bob"]) == ["bobs"]
    assert ids(rig.url, keys["bob"], caller="ann") == []
    assert ids(rig.url, keys["bob"], id="anns") == []
    assert sorted(ids(rig.url, keys["chat viewer"])) == ["anns", "bobs", "nobodys"]
    assert ids(rig.url, keys["embed viewer"]) == []
    assert ids(rig.url) == [], "everyone without credentials is one caller"
    assert listed(rig.url, keys["bob"])["callers"] == ["bob"]
    assert not any(key in str(listed(rig.url, keys["boss"])) for key in keys.values())


class Two:
    """Two routers that report to one controller."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.controller = LiveController(directory / "ledger")
        self.controller.configure(parse(rig.config))
        self.routers = [self._router(rig.config) for _ in range(2)]

    def _router(self, config: Any) -> Router:
        router = Router(RuntimeEnvironment(internal_key="internal"), controller=self.controller, send_every_s=0.02)
        router.reconfigure(config)
        return router


def test_every_router_lists_the_requests_of_all_and_its_own_while_the_controller_is_away(
    rig: Rig, tmp_path: Path, servers: ServerPool
) -> None:
    two = Two(rig, tmp_path)
    with servers.host(two.routers[0].app) as a, servers.host(two.routers[1].app) as b:
        chat(a, "at-a")
        chat(b, "at-b")
        for url in (a, b):
            wait_for(url, "at-a", "at-b")
            assert listed(url)["view"] == "all routers"
        two.controller.absent = True
        assert (ids(a), listed(a)["view"]) == (["at-a"], "this router alone")
        chat(a, "later")
        wait_for(a, "later", "at-a")
        two.controller.absent = False
        wait_for(b, "at-a", "at-b", "later")
    two.controller.close()


def test_the_list_outlives_a_kill_of_the_routers_and_the_controller(
    rig: Rig, tmp_path: Path, servers: ServerPool
) -> None:
    before = Two(rig, tmp_path)
    with servers.host(before.routers[0].app) as url:
        chat(url, "answered")
        chat(url, "wrong", temperature="hot")
        wait_for(url, "answered", "wrong")
        before.controller.activity.save_if_due()
    after = Two(rig, tmp_path)
    with servers.host(after.routers[0].app) as url:
        chat(url, "later")
        wait_for(url, "answered", "wrong", "later")
        (group,) = listed(url)["groups"]
        assert (group["id"], group["count"], group["is_whole"]) == ("wrong", 1, True)
    for killed in (before, after):
        killed.controller.close()


def test_a_history_counts_all_routers_shows_a_caller_its_endpoints_and_outlives_the_controller(
    rig: Rig, tmp_path: Path, servers: ServerPool
) -> None:
    keys = {}
    for name in ("chat", "embed"):
        keys[name], record = create(name, endpoints=(name,))
        append(tmp_path / "keys.yaml", record.line)
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml")})
    two = Two(rig, tmp_path)

    def requests() -> float:
        """What the minutes have counted, the present one included."""
        series = two.controller.activity.board.history("1h", time.time() + 120, None)["series"]
        return round(float(sum(rate * 60 for one in series for rate in one["requests_per_s"])), 1)

    def shown(url: str, name: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {keys[name]}"}
        history: dict[str, Any] = httpx.get(f"{url}/api/history", params={"range": "15m"}, headers=headers).json()
        return history

    with servers.host(two.routers[0].app) as a, servers.host(two.routers[1].app) as b:
        for url in (a, b, b):
            chat(url, "r", keys["chat"])
        wait_until(lambda: requests() == 3, requests)
        two.controller.activity.save()
        two.controller.replaced(killed=True)
        chat(a, "r", keys["chat"])
        wait_until(lambda: requests() == 4, requests)
        wait_until(lambda: shown(b, "chat")["series"])
        history = shown(b, "chat")
        described = answers("switchyard", "request_history")["application/json"]
        validate(history, described)
        series = described["properties"]["series"]["items"]
        assert history.keys() == {*described["required"]}
        assert all(one.keys() == {*series["required"]} for one in history["series"])
        assert (history["view"], history["step_s"], len(history["at"])) == ("all routers", 10.0, 90)
        assert [one["endpoint"] for one in history["series"]] == ["chat"]
        assert shown(b, "embed")["series"] == []
    two.controller.close()


def no_engine(rig: Rig, path: str, after_s: float) -> dict[str, Any]:
    """The listed request of a client that leaves `blue`, which does not answer, without a byte."""
    rig.blue.answer = lambda body: stream([30.0, chunk("a")])
    body = {**CHAT, "stream": True}
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{rig.url}{path}", json=body, headers={"x-request-id": str(after_s)}, timeout=after_s)
    wait_until(lambda: not any(one["running"] for one in listed(rig.url, id=str(after_s))["requests"]))
    (request,) = listed(rig.url, id=str(after_s))["requests"]
    return dict(request)


def test_a_client_that_leaves_while_it_waits_for_an_engine_is_a_failure_everywhere(rig: Rig) -> None:
    """Not where it leaves at once, or while an engine works for it."""
    rig.router.state.no_engine_s = 0.3
    path = "/v1/chat/completions"
    assert no_engine(rig, path, 0.5)["error"] == "client_gone"
    breakers = rig.router.state.health.breakers
    while not breakers.of("blue").is_open:
        breakers.of("blue").failed(Fault.CONNECTION, breakers.clock())
    assert no_engine(rig, path, 0.1)["error"] == "client_gone"
    lost = no_engine(rig, path, 0.6)
    assert (lost["outcome"], lost["error"], lost["first_byte_s"]) == ("errors", "no_engine", None)
    assert [ids(rig.url, status=status) for status in ("failed", "errors", "refused")] == [["0.6"], ["0.6"], []]
    assert len(ids(rig.url, status="not_answered")) == 3
    (group,) = [one for one in listed(rig.url)["groups"] if one["error"] == "no_engine"]
    assert (group["endpoint"], group["deployment"], group["outcome"]) == ("chat", "blue", "errors")
    endpoint = next(
        one for one in httpx.get(f"{rig.url}/api/overview").json()["endpoints"] if one["endpoint"] == "chat"
    )
    assert (endpoint["errors"], endpoint["left"]) == (1, 2)
    assert any("1 without an engine for as long as the client waited" in fact["text"] for fact in endpoint["findings"])


def test_each_attempt_of_a_request_is_named_with_its_failure(rig: Rig) -> None:
    rig.change(deployments={"blue": {"url": f"http://127.0.0.1:{free_port()}", "model": "m"}})
    rig.chat_endpoint(fallback=["green"])
    assert chat(rig.url, "moved", stream=True).status_code == 200
    rig.green.answer = refuse(500, "a secret prompt")
    assert chat(rig.url, "lost").status_code in (502, 503)
    wait_for(rig.url, "moved", "lost")
    by_id = {one["id"]: one for one in listed(rig.url)["requests"]}
    (first,) = by_id["moved"]["failed_attempts"]
    assert (first["deployment"], first["why"], first["continued"]) == ("blue", "it could not be reached", False)
    assert 0 < first["at_s"] < first["until_s"] <= by_id["moved"]["sent_s"]
    assert (by_id["moved"]["attempts"], by_id["moved"]["deployment"]) == (2, "green")
    whys = [(one["deployment"], one["why"]) for one in by_id["lost"]["failed_attempts"]]
    assert whys == [("blue", "it could not be reached"), ("green", "it failed")]
    assert "secret" not in str(by_id)


def test_a_stream_that_fails_before_its_first_byte_is_listed_as_the_stream_that_was_asked_for(rig: Rig) -> None:
    rig.blue.answer = refuse(500, "failed")
    for id, asked in (("stream", True), ("whole", False)):
        assert chat(rig.url, id, stream=asked).status_code == 502
    wait_for(rig.url, "stream", "whole")
    assert {one["id"]: one["stream"] for one in listed(rig.url)["requests"]} == {"stream": True, "whole": False}
    metrics = httpx.get(f"{rig.url}/metrics").text
    assert "gen_ai_server_time_to_first_token_seconds_count" not in metrics, "no token has come"


def test_requests_for_unknown_routes_are_counted_in_groups(rig: Rig) -> None:
    def groups() -> dict[str, int]:
        reasons = listed(rig.url)["unknown_routes"]["reasons"]
        return {one["reason"]: one["requests"] for one in reasons}

    for path in ("/v1/chat/completion", "/v1/chat/completoins", "/v1/chat/completion"):
        assert httpx.post(f"{rig.url}{path}", json=CHAT).status_code == 404
    for number in range(100):
        assert httpx.get(f"{rig.url}/wp-admin/{number}.php").status_code == 404
    assert httpx.post(f"{rig.url}/v1/audio/speech", json={}).status_code == 404
    for number in range(3):
        assert httpx.delete(f"{rig.url}/v1/models/{number}").status_code == 404
    assert httpx.put(f"{rig.url}/health").status_code == 405
    wait_until(lambda: sum(groups().values()) == 108)  # within ten seconds a period ends, or on slow machines two
    counted = groups()
    assert counted.pop("other paths") == 100
    assert counted.pop("/v1/chat/completion (did you mean /v1/chat/completions?)") == 3
    assert counted.pop("/health takes GET, not PUT") == 1
    assert sorted(counted.values()) == [1, 3]
    assert all(reason.startswith("This server has no ") for reason in counted)
    metrics = httpx.get(f"{rig.url}/metrics").text
    assert 'switchyard_unknown_routes_total{status="404"} 107.0' in metrics
    assert listed(rig.url)["kept"] == 0, "no scanner fills the list"


@pytest.mark.parametrize("route", ["/v1/embeddings", "/serving-endpoints/embed/invocations"])
def test_a_request_that_its_caller_may_not_make_counts_at_the_endpoint_without_naming_it(
    rig: Rig, tmp_path: Path, route: str
) -> None:
    keys = {}
    for name, endpoints in (("boss", []), ("ann", ["chat"])):
        keys[name], record = create(name, endpoints=endpoints)
        append(tmp_path / "keys.yaml", record.line)
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml"), "managers": ["boss"]})
    headers = {"authorization": f"Bearer {keys['ann']}", "x-request-id": "not-hers"}
    answer = httpx.post(f"{rig.url}{route}", json={"model": "embed", "input": "hi"}, headers=headers)
    assert answer.status_code == 403
    assert "x-switchyard-plan" not in answer.headers
    wait_for(rig.url, "not-hers", key=keys["boss"])
    for name, endpoint in (("boss", "embed"), ("ann", "")):
        document = listed(rig.url, keys[name])
        assert [one["endpoint"] for one in document["requests"]] == [endpoint]
        assert [group["endpoint"] for group in document["groups"]] == [endpoint]
        assert document["requests"][0]["plan"] == "" or name == "boss"
    overview = httpx.get(f"{rig.url}/api/overview", headers={"authorization": f"Bearer {keys['boss']}"}).json()
    assert {one["endpoint"]: one["refused"] for one in overview["endpoints"]} == {"chat": 0, "embed": 1}
