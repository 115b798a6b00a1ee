"""The router's records of requests: one start and one row each, with the outcome, and no text."""

import json
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, Response

from app.exposures.identity import Hashes, request_hash, secret_of
from app.exposures.wire import Failure, FinishCode, Flag, LateKind, Reason
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import (
    CARD,
    USAGE,
    RawServer,
    broken_after,
    chat,
    chunk,
    frame,
    refuse,
    stream,
)
from tests.support.engine.other_answers import every_route
from tests.support.processes.load import Lane, lanes

EXPERIMENT: dict[str, Any] = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
}
SAY: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
HASHES = Hashes(secret_of("internal"))


@pytest.fixture
def recorded(rig: Rig) -> Rig:
    """A rig whose endpoint `chat` has an experiment, and whose endpoint `embed` is always recorded."""
    rig.blue.card = rig.green.card = CARD
    rig.blue.answer, rig.mini.answer = every_route(rig.blue), every_route(rig.mini)
    rig.change(experiments={"first": EXPERIMENT})
    rig.change(endpoints={"embed": {**rig.config["endpoints"]["embed"], "ledger": "always"}})
    return rig


def post(rig: Rig, path: str = "/v1/chat/completions", body: Any = SAY, **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(rig.url + path, json=body, headers=sent)


LANES = [
    *lanes(tokens=50),
    Lane("openai", "/v1/responses", {"model": "chat", "input": "Say."}, b"output_text", False),
    Lane("openai", "/v1/responses", {"model": "chat", "input": "Say.", "stream": True}, b"response.completed", True),
    Lane("openai", "/v1/embeddings", {"model": "embed", "input": "Say."}, b"embedding", False),
]


@pytest.mark.parametrize(
    "lane", LANES, ids=lambda lane: f"{lane.name} {lane.path} {'streamed' if lane.streamed else 'whole'}"
)
def test_every_request_has_one_start_and_one_row(recorded: Rig, lane: Lane) -> None:
    answer = post(recorded, lane.path, lane.body, x_request_id="req-1", **dict(lane.headers))
    assert answer.status_code == 200
    assert lane.ends in answer.content
    row = recorded.keeper.the_row()
    size = len(answer.request.content)
    endpoint, assigned = ("embed", "mini") if "embed" in lane.path else ("chat", "blue")
    assert (row.endpoint, row.assigned, row.served, row.reason) == (endpoint, assigned, assigned, Reason.TRAFFIC)
    assert (row.dialect, row.item.stream, row.item.status, row.item.attempts) == (lane.name, lane.streamed, 200, 1)
    assert (row.error, row.flags, row.item.prompt_bytes, row.item.turn) == (Failure.NONE, Flag(0), size, 0)
    assert (row.item.request, row.item.in_flight, row.item.cold) == (request_hash("req-1"), 0, False)
    assert row.item.caller == HASHES.caller("anonymous")
    assert row.item.duration_s > 0
    assert (row.item.ttft_s is not None, row.item.itl_max_s is not None) == (lane.streamed, lane.streamed)
    if endpoint == "chat":
        assert row.finish is FinishCode.STOP
    if lane.streamed:
        assert 0 < row.item.ttft_s <= row.item.duration_s
    body = answer.text
    ids = [json.loads(body).get("id")] if not lane.streamed else []
    if ids and ids[0]:
        assert row.item.answer == request_hash(ids[0])


def test_the_tokens_are_counted_though_the_client_did_not_ask(recorded: Rig) -> None:
    answer = post(recorded, body={**SAY, "stream": True, "max_completion_tokens": 7})
    assert '"usage"' not in answer.text
    row = recorded.keeper.the_row()
    assert (row.item.prompt_tokens, row.item.completion_tokens) == (USAGE["prompt_tokens"], USAGE["completion_tokens"])
    assert (row.item.max_tokens, row.item.answer) == (7, request_hash("chatcmpl-1"))


def test_nothing_is_recorded_without_an_experiment(rig: Rig) -> None:
    assert post(rig).status_code == 200
    for state in ("draft", "stopped"):
        rig.change(experiments={"first": {**EXPERIMENT, "state": state}})
        assert post(rig).status_code == 200
    rig.change(experiments={"first": EXPERIMENT})
    assert post(rig).status_code == 200
    rig.keeper.the_row()


def test_requests_that_no_arm_was_drawn_for_are_not_recorded(recorded: Rig) -> None:
    recorded.blue.answer = lambda body: JSONResponse({"count": 1, "max_model_len": 5, "tokens": [1], "input_tokens": 1})
    wrong: list[tuple[str, Any]] = [
        ("/v1/chat/completions", {**SAY, "model": "gone"}),
        ("/v1/chat/completions", {"model": "chat"}),
        ("/v1/chat/completions", {**SAY, "temperature": "hot"}),
    ]
    assert [post(recorded, path, body).status_code for path, body in wrong] == [404, 400, 400]
    assert post(recorded, "/tokenize", {"model": "chat", "prompt": "hi"}).status_code == 200
    assert post(recorded, "/v1/messages/count_tokens", SAY).status_code == 200
    recorded.blue.answer = chat
    assert post(recorded).status_code == 200
    recorded.keeper.the_row()


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        ({"azureml_model_deployment": "green"}, SAY, Reason.HEADER),
        ({}, {**SAY, "model": "green"}, Reason.MODEL),
    ],
)
def test_a_request_that_names_its_deployment_is_forced(
    recorded: Rig, headers: dict[str, str], body: Any, reason: Reason
) -> None:
    post(recorded, body=body, **headers)
    row = recorded.keeper.the_row()
    assert (row.endpoint, row.assigned, row.reason, row.flags) == ("chat", "green", reason, Flag.FORCED)


def test_the_unit_is_the_sticky_key_and_a_request_without_one_is_its_own(recorded: Rig) -> None:
    recorded.chat_endpoint(sticky={"by": "header", "name": "x-user"})
    for user in ("ann", "bob", "ann"):
        post(recorded, x_user=user)
    post(recorded)
    post(recorded)
    units = [row.item.unit for row in recorded.keeper.wait_for(rows=5)]
    assert units[:3] == [HASHES.unit("ann"), HASHES.unit("bob"), HASHES.unit("ann")]
    assert len(set(units)) == 4
    assert [row.reason for row in recorded.keeper.rows] == [Reason.STICKY] * 3 + [Reason.TRAFFIC] * 2


def test_the_turns_of_a_conversation_are_one_unit_on_one_deployment(recorded: Rig) -> None:
    recorded.chat_endpoint(sticky={"by": "conversation"}, traffic={"blue": 50, "green": 50})
    for opening in range(20):
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Question {opening}"}]
        for turn in range(3):
            post(recorded, body={**SAY, "messages": messages})
            messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"And {turn}?"}]
    rows = recorded.keeper.wait_for(rows=60)
    units: dict[int, list[Any]] = {}
    for row in rows:
        units.setdefault(row.item.unit, []).append(row)
    assert [len(turns) for turns in units.values()] == [3] * 20
    assert all(len({row.assigned for row in turns}) == 1 for turns in units.values())
    assert {row.assigned for row in rows} == {"blue", "green"}
    assert [row.item.turn for row in rows[:3]] == [0, 1, 2]


def test_a_named_session_is_the_conversation(recorded: Rig) -> None:
    recorded.chat_endpoint(sticky={"by": "conversation"})
    post(recorded, x_session_id="s-1")
    assert recorded.keeper.the_row().item.unit == HASHES.unit("s-1")


def test_a_change_of_weights_is_a_new_plan_and_running_conversations_are_carried(recorded: Rig) -> None:
    running = {**SAY, "messages": [*SAY["messages"], {"role": "assistant", "content": "x"}, *SAY["messages"]]}
    post(recorded, body=running)
    recorded.chat_endpoint(traffic={"blue": 90, "green": 10})
    post(recorded, body=running)
    post(recorded)
    before, carried, first = recorded.keeper.wait_for(rows=3)
    assert before.plan != carried.plan == first.plan
    assert [Flag.CARRIED in row.flags for row in (before, carried, first)] == [False, True, False]
    assert Flag.CARRIED in recorded.keeper.starts[1].flags


def test_a_fallback_leaves_the_failure_with_the_assigned_deployment(recorded: Rig) -> None:
    recorded.blue.answer = refuse(500, "broken", kind="InternalServerError")
    recorded.chat_endpoint(fallback=["green"])
    assert post(recorded).headers["azureml-model-deployment"] == "green"
    row = recorded.keeper.the_row()
    assert (row.assigned, row.served, row.error, row.item.status) == ("blue", "green", Failure.BROKEN, 200)
    assert (row.item.attempts, row.flags) == (2, Flag(0))


def test_a_failure_of_all_has_no_server(recorded: Rig) -> None:
    recorded.change(deployments={"blue": {"url": "http://127.0.0.1:9", "model": "m"}})
    assert post(recorded).status_code == 503
    row = recorded.keeper.the_row()
    assert (row.assigned, row.served, row.error, row.item.status) == ("blue", None, Failure.UNREACHABLE, 503)


def test_a_rejection_by_the_engine_is_the_clients_fault(recorded: Rig) -> None:
    recorded.blue.answer = refuse(400, "too long")
    assert post(recorded).status_code == 400
    row = recorded.keeper.the_row()
    assert (row.served, row.error, row.item.status, row.flags) == ("blue", Failure.NONE, 400, Flag(0))


async def test_a_stream_that_breaks_has_failed(recorded: Rig) -> None:
    async with RawServer(broken_after(chunk("Hel"))) as url:
        recorded.change(deployments={"blue": {"url": url, "model": "m"}})
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{recorded.url}/v1/chat/completions", json={**SAY, "stream": True})
    assert "error" in answer.text
    row = recorded.keeper.the_row()
    assert (row.served, row.error, row.item.status) == ("blue", Failure.INCOMPLETE, 200)
    assert row.item.ttft_s is not None


def test_an_error_event_in_a_stream_is_a_failure(recorded: Rig) -> None:
    failed = frame({"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}})
    recorded.blue.answer = lambda body: stream([chunk("Hel"), failed, "data: [DONE]\n\n"])
    post(recorded, body={**SAY, "stream": True})
    assert recorded.keeper.the_row().error is Failure.BROKEN


def test_a_client_that_leaves_is_recorded(recorded: Rig) -> None:
    recorded.blue.answer = lambda body: stream([chunk("Hel"), 30.0, chunk("lo")])
    with httpx.stream("POST", f"{recorded.url}/v1/chat/completions", json={**SAY, "stream": True}) as answer:
        next(answer.iter_bytes())
    row = recorded.keeper.the_row()
    assert (row.item.status, row.flags, row.served, row.error) == (499, Flag.CLIENT_GONE, "blue", Failure.NONE)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("content", "reason", "finish", "flags"),
    [
        ("", "stop", FinishCode.STOP, Flag.EMPTY),
        (" \\n\n", "stop", FinishCode.STOP, Flag(0)),
        (" \n\t ", "stop", FinishCode.STOP, Flag.EMPTY),
        ("A", "length", FinishCode.LENGTH, Flag(0)),
        ("", "content_filter", FinishCode.CONTENT_FILTER, Flag.EMPTY),
        ('"content":"', "stop", FinishCode.STOP, Flag(0)),
    ],
)
def test_finish_reasons_and_empty_answers(
    recorded: Rig, streamed: bool, content: str, reason: str, finish: FinishCode, flags: Flag
) -> None:
    def answer(body: dict[str, Any]) -> Response:
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": reason}
            return JSONResponse({"id": "c", "choices": [choice], "usage": USAGE})
        return stream([chunk(""), chunk(content), chunk("", finish_reason=reason), "data: [DONE]\n\n"])

    recorded.blue.answer = answer
    post(recorded, body={**SAY, "stream": streamed})
    row = recorded.keeper.the_row()
    assert (row.finish, row.flags) == (finish, flags)


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("text", "flags"), [('{"a": 1}', Flag(0)), ('{"a": ', Flag.INVALID_OUTPUT)])
def test_an_answer_without_the_promised_form_is_flagged(recorded: Rig, streamed: bool, text: str, flags: Flag) -> None:
    def answer(body: dict[str, Any]) -> Response:
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            return JSONResponse({"id": "c", "choices": [choice], "usage": USAGE})
        return stream([*map(chunk, text), chunk("", finish_reason="stop"), "data: [DONE]\n\n"])

    recorded.blue.answer = answer
    post(recorded, body={**SAY, "stream": streamed, "response_format": SCHEMA})
    assert recorded.keeper.the_row().flags == flags


@pytest.mark.parametrize(("age", "cold"), [("3.5", True), ("60", False), ("x", False)])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_young_replica_is_cold_and_its_age_is_not_passed_on(
    recorded: Rig, streamed: bool, age: str, cold: bool
) -> None:
    def answer(body: dict[str, Any]) -> Response:
        made = chat(body)
        made.headers["X-Switchyard-Replica-Age-S"] = age
        return made

    recorded.blue.answer = answer
    shown = post(recorded, body={**SAY, "stream": streamed})
    assert not any("replica" in name for name in shown.headers)
    assert recorded.keeper.the_row().item.cold is cold


def test_late_requests_are_reported_before_they_end(recorded: Rig) -> None:
    limits = [
        {"event": "slow", "ttft_above_s": 0.05},
        {"event": "slow", "ttft_above_s": 0.1, "tolerance": 3},
        {"event": "unfinished", "unfinished_above_s": 0.15},
    ]
    recorded.change(experiments={"first": {**EXPERIMENT, "guardrails": limits}})
    recorded.blue.answer = lambda body: stream([chunk(""), 30.0])
    body = {**SAY, "stream": True}
    with httpx.stream("POST", f"{recorded.url}/v1/chat/completions", json=body) as answer:
        parts = answer.iter_bytes()
        next(parts)
        recorded.keeper.wait_for(late=3)
        assert recorded.keeper.rows == []
        shown = [(overdue.kind, overdue.item.above_s) for overdue in recorded.keeper.late]
    assert shown == [(LateKind.SLOW, 0.05), (LateKind.SLOW, 0.1), (LateKind.UNFINISHED, 0.15)]
    (start,) = recorded.keeper.starts
    assert {(overdue.item.seq, overdue.item.unit, overdue.assigned) for overdue in recorded.keeper.late} == {
        (start.item.seq, start.item.unit, "blue")
    }
    row = recorded.keeper.the_row()
    assert (row.item.ttft_s, row.flags) == (None, Flag.CLIENT_GONE)


def test_requests_in_flight_are_counted_at_arrival(recorded: Rig) -> None:
    recorded.blue.answer = lambda body: stream([chunk("a"), 30.0])
    body = {**SAY, "stream": True}
    url = f"{recorded.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body) as one, httpx.stream("POST", url, json=body) as two:
        for parts in (one.iter_bytes(), two.iter_bytes()):
            next(parts)
    rows = recorded.keeper.wait_for(rows=2)
    assert sorted(row.item.in_flight for row in rows) == [0, 1]


def test_no_text_key_or_sticky_value_leaves_the_router(recorded: Rig) -> None:
    recorded.chat_endpoint(sticky={"by": "header", "name": "x-user"})
    secrets = ["SECRET-PROMPT", "SECRET-ANSWER", "SECRET-USER", "SECRET-KEY", "SECRET-ID", "SECRET-TOOL"]
    recorded.blue.answer = lambda body: stream([chunk("SECRET-ANSWER"), chunk("", finish_reason="stop")])
    tool = {"type": "function", "function": {"name": "SECRET-TOOL", "parameters": {}}}
    body = {**SAY, "messages": [{"role": "user", "content": "SECRET-PROMPT"}], "stream": True, "tools": [tool]}
    post(recorded, body=body, x_user="SECRET-USER", authorization="Bearer SECRET-KEY", x_request_id="SECRET-ID")
    recorded.blue.answer = chat
    post(recorded, body={**body, "stream": False}, x_user="SECRET-USER", x_request_id="SECRET-ID")
    recorded.keeper.wait_for(rows=2)
    for sent in recorded.keeper.raw:
        assert not any(secret.encode() in sent for secret in secrets)
    shown = httpx.get(f"{recorded.url}/metrics").text
    assert not any(secret in shown for secret in secrets)


def test_the_metrics_count_rows(recorded: Rig) -> None:
    post(recorded)
    recorded.keeper.the_row()
    shown = httpx.get(f"{recorded.url}/metrics").text
    assert 'switchyard_ledger_rows_total{deployment="blue",endpoint="chat"} 1.0' in shown
    assert "switchyard_ledger_batch_seconds_count" in shown
    assert "switchyard_ledger_buffer_bytes" in shown


def test_a_controller_that_hangs_or_fails_disturbs_no_request(recorded: Rig) -> None:
    recorded.keeper.hanging = True
    assert [post(recorded).status_code for _ in range(5)] == [200] * 5
    recorded.keeper.hanging, recorded.keeper.failing = False, True
    assert [post(recorded).status_code for _ in range(5)] == [200] * 5
    recorded.keeper.failing = False
    assert len(recorded.keeper.wait_for(rows=10, starts=10)) == 10
