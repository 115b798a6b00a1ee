"""Shadow copies on the real router: the shadow's requests, the records, and that clients never notice."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse

from app.exposures.wire import Failure, FinishCode, Skip, TrafficBlock
from app.mirror.mirrors import MOST_WAITING
from tests.router.conftest import PROMPT, Rig
from tests.support.engine.fake_engine import CARD, USAGE, Answer, FakeEngine, RawServer, chat, chunk, refuse, stream
from tests.support.engine.other_answers import every_route
from tests.support.experiments.recording_controller import SeenPair
from tests.support.processes.load import Lane, lanes
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

SAY: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "What is a secret?"}]}
EXPERIMENT: dict[str, Any] = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
}
MIRROR: dict[str, Any] = {"deployment": "green", "percent": 100}
HANGS: Answer = lambda body: stream([3600.0, "data: [DONE]\n\n"])  # noqa: E731


def like_blue(answer: Answer) -> Answer:
    """The primary's answer, from another deployment."""
    return lambda body: answer({**body, "model": "blue-model"})


@pytest.fixture
def mirrored(rig: Rig) -> Rig:
    """A rig whose endpoint `chat` is mirrored to green, which answers the same as blue."""
    rig.green.answer = like_blue(chat)
    rig.chat_endpoint(mirror=MIRROR)
    return rig


def post(rig: Rig, path: str = "/v1/chat/completions", body: Any = SAY, **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(rig.url + path, json=body, headers=sent, timeout=60)


def the_pair(rig: Rig) -> SeenPair:
    (pair,) = rig.keeper.wait_for_pairs(1)
    return pair


def outcomes(rig: Rig) -> dict[str, int]:
    """The count of each outcome."""
    lines = httpx.get(f"{rig.url}/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("switchyard_mirrored_requests_total{")]
    return {line.partition('outcome="')[2].partition('"')[0]: int(float(line.rpartition(" ")[2])) for line in counted}


def until_counted(rig: Rig, outcome: str, count: int) -> None:
    wait_until(lambda: outcomes(rig).get(outcome, 0) >= count, lambda: outcomes(rig))


LANES = [
    *(lane for lane in lanes(tokens=50) if lane.name not in ("tgi", "friendli")),
    Lane("openai", "/v1/responses", {"model": "chat", "input": "Say."}, b"output_text", False),
    Lane("openai", "/v1/responses", {"model": "chat", "input": "Say.", "stream": True}, b"response.completed", True),
    Lane("openai", "/v1/completions", {"model": "chat", "prompt": "Say."}, b"text_completion", False),
]


@pytest.mark.parametrize(
    "lane", LANES, ids=lambda lane: f"{lane.name} {lane.path} {'streamed' if lane.streamed else 'whole'}"
)
def test_the_shadow_gets_the_engines_request_and_its_answer_is_compared(mirrored: Rig, lane: Lane) -> None:
    mirrored.blue.card = mirrored.green.card = CARD
    mirrored.blue.answer, mirrored.green.answer = every_route(mirrored.blue), like_blue(every_route(mirrored.green))
    answer = post(mirrored, lane.path, lane.body, **dict(lane.headers))
    assert answer.status_code == 200
    assert lane.ends in answer.content
    pair, row = the_pair(mirrored), mirrored.keeper.the_row()
    assert (pair.endpoint, pair.primary, pair.shadow, pair.skipped) == ("chat", "blue", "green", Skip.NONE)
    assert (pair.item.seq, pair.item.unit, pair.item.at) == (row.item.seq, row.item.unit, row.item.at)
    assert (pair.item.status, pair.error) == (200, Failure.NONE)
    assert mirrored.green.paths == mirrored.blue.paths
    (copy,), (original,) = mirrored.green.requests, mirrored.blue.requests
    assert copy == {**original, "model": "green-model"}
    assert (pair.item.equal, pair.item.equal_words, pair.item.length_ratio) == (1, 1, 1.0)
    assert (pair.item.same_finish, pair.item.finish, pair.item.primary_finish) == (1, FinishCode.STOP, FinishCode.STOP)
    assert (pair.item.visible, pair.item.primary_visible, pair.item.valid, pair.item.same_tools) == (1, 1, None, None)
    assert pair.item.duration_s is not None
    assert (pair.item.ttft_s is not None) == lane.streamed
    assert outcomes(mirrored) == {"compared": 1}


@pytest.mark.parametrize("lane", [lane for lane in lanes(tokens=50) if lane.name in ("tgi", "friendli")])
def test_requests_made_for_the_primarys_tokenizer_are_not_copied(mirrored: Rig, lane: Lane) -> None:
    mirrored.blue.card = mirrored.green.card = CARD
    mirrored.blue.answer = every_route(mirrored.blue)
    assert post(mirrored, lane.path, lane.body, **dict(lane.headers)).status_code == 200
    assert (the_pair(mirrored).skipped, mirrored.green.requests) == (Skip.BOUND_TO_MODEL, [])


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
def test_prompts_of_tokens_are_not_copied(mirrored: Rig, prompt: Any) -> None:
    mirrored.blue.answer = lambda body: every_route(mirrored.blue)({**body, "prompt": "text"})
    assert post(mirrored, "/v1/completions", {"model": "chat", "prompt": prompt}).status_code == 200
    assert the_pair(mirrored).skipped is Skip.BOUND_TO_MODEL


def test_pairs_record_whether_texts_and_words_are_equal(mirrored: Rig) -> None:
    def says(text: str, finish: str = "stop") -> Answer:
        return lambda body: stream([chunk(text), chunk("", finish_reason=finish), "data: [DONE]\n\n"])

    mirrored.blue.answer, mirrored.green.answer = says("one two"), says("one  two\n")
    assert post(mirrored, body={**SAY, "stream": True}).status_code == 200
    first = the_pair(mirrored)
    mirrored.green.answer = says("one two three", "length")
    assert post(mirrored, body={**SAY, "stream": True}).status_code == 200
    second = mirrored.keeper.wait_for_pairs(2)[1]
    assert (first.item.equal, first.item.equal_words, first.item.same_finish) == (0, 1, 1)
    assert (second.item.equal, second.item.equal_words, second.item.same_finish) == (0, 0, 0)
    assert second.item.length_ratio == pytest.approx(13 / 7)
    assert second.item.finish == FinishCode.LENGTH


def test_calls_of_tools_are_compared_by_name_and_arguments(mirrored: Rig) -> None:
    def calls(name: str, arguments: str) -> Answer:
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return lambda body: JSONResponse({"id": "x", "object": "chat.completion", "choices": [choice], "usage": USAGE})

    mirrored.blue.answer = calls("weather", '{"city": "Rome", "days": 2}')
    for number, (name, arguments, same) in enumerate(
        [("weather", '{"days":2,"city":"Rome"}', 1), ("weather", '{"city":"Oslo"}', 0), ("time", "{}", 0)], 1
    ):
        mirrored.green.answer = calls(name, arguments)
        assert post(mirrored).status_code == 200
        assert mirrored.keeper.wait_for_pairs(number)[-1].item.same_tools == same


def test_promised_json_is_checked_on_both_sides(mirrored: Rig) -> None:
    def says(text: str) -> Answer:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return lambda body: JSONResponse({"id": "x", "object": "chat.completion", "choices": [choice], "usage": USAGE})

    mirrored.blue.answer, mirrored.green.answer = says('{"a": 1}'), says('{"a": ')
    assert post(mirrored, body={**SAY, "response_format": {"type": "json_object"}}).status_code == 200
    pair = the_pair(mirrored)
    assert (pair.item.valid, pair.item.primary_valid) == (0, 1)


def test_vectors_are_compared_by_their_cosine(rig: Rig) -> None:
    def answers(vector: list[float]) -> Answer:
        return lambda body: JSONResponse({"data": [{"index": 0, "embedding": vector}], "usage": USAGE})

    rig.change(
        deployments={"mini2": {**rig.config["deployments"]["mini"], "url": rig.config["deployments"]["green"]["url"]}}
    )
    rig.change(
        endpoints={"embed": {**rig.config["endpoints"]["embed"], "mirror": {"deployment": "mini2", "percent": 100}}}
    )
    rig.mini.answer, rig.green.answer = answers([3.0, 4.0]), answers([4.0, 3.0])
    requested = {"model": "embed", "input": "text"}
    assert post(rig, "/v1/embeddings", requested).status_code == 200
    pair = the_pair(rig)
    assert pair.item.cosine == pytest.approx(24 / 25)
    assert (pair.item.equal, pair.item.same_finish, pair.item.visible) == (None, None, None)
    rig.green.answer = answers([1.0, 2.0, 3.0])
    assert post(rig, "/v1/embeddings", requested).status_code == 200
    assert rig.keeper.wait_for_pairs(2)[1].item.cosine is None


def test_scores_are_compared_by_their_times_alone(rig: Rig) -> None:
    mini = {**rig.config["deployments"]["mini"], "tasks": ["rerank"]}
    mirror = {"deployment": "mini2", "percent": 100}
    rig.change(
        deployments={"mini": mini, "mini2": {**mini, "url": rig.config["deployments"]["green"]["url"]}},
        endpoints={"embed": {"tasks": ["rerank"], "traffic": {"mini": 100}, "mirror": mirror}},
    )
    for engine in (rig.mini, rig.green):
        engine.answer = lambda body: JSONResponse(
            {"id": "s", "model": "m", "usage": USAGE, "results": [{"index": 0, "relevance_score": 0.5}]}
        )
    assert post(rig, "/v1/rerank", {"model": "embed", "query": "a", "documents": ["b"]}).status_code == 200
    pair = the_pair(rig)
    assert pair.item.duration_s is not None
    assert (pair.item.cosine, pair.item.equal, pair.item.same_finish) == (None, None, None)


def test_a_forced_call_is_collected_on_both_sides(mirrored: Rig) -> None:
    mirrored.blue.answer, mirrored.green.answer = (_streams_a_call(city) for city in ("Rome", "Oslo"))
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    body = {**SAY, "tools": [tool], "tool_choice": "required", "max_tokens": 20}
    assert post(mirrored, body=body).status_code == 200
    pair = the_pair(mirrored)
    assert mirrored.green.requests[0]["stream"] is True
    assert (pair.item.same_tools, pair.item.valid, pair.item.primary_valid) == (0, 1, 1)
    assert pair.item.tokens == USAGE["total_tokens"]


def _streams_a_call(city: str) -> Answer:
    function = {"name": "weather", "arguments": json.dumps({"city": city})}
    delta = {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]}
    parts: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": USAGE},
    ]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    frames = [f"data: {json.dumps({**head, **part})}\n\n" for part in parts]
    return lambda body: stream([*frames, "data: [DONE]\n\n"])


@pytest.mark.parametrize("streamed", [False, True])
def test_the_shadow_is_called_when_the_primary_has_ended(mirrored: Rig, streamed: bool) -> None:
    ended: list[str] = []

    def slowly(body: dict[str, Any]) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            answer = chat(body)
            if isinstance(answer, StreamingResponse):
                async for part in answer.body_iterator:
                    yield part.encode() if isinstance(part, str) else bytes(part)
            else:
                yield bytes(answer.body)
            ended.append("primary")

        return StreamingResponse(parts(), media_type="text/event-stream" if streamed else "application/json")

    def shadow(body: dict[str, Any]) -> Response:
        ended.append("shadow called")
        return like_blue(chat)(body)

    mirrored.blue.answer, mirrored.green.answer = slowly, shadow
    for number in (1, 2, 3):
        assert post(mirrored, body={**SAY, "stream": streamed}).status_code == 200
        mirrored.keeper.wait_for_pairs(number)
    assert ended == ["primary", "shadow called"] * 3


BAD_SHADOWS: dict[str, tuple[Answer, Failure, int]] = {
    "fails": (refuse(500, "broken", kind="InternalServerError"), Failure.BROKEN, 502),
    "refuses": (refuse(400, "I do not know this field"), Failure.OTHER, 400),
    "is busy": (refuse(503, "busy"), Failure.UNAVAILABLE, 503),
    "answers what is no answer": (lambda body: Response(b'{"choices": '), Failure.INCOMPLETE, 0),
    "answers another question": (lambda body: JSONResponse({"choices": []}), Failure.BROKEN, 502),
    "ends without a reason": (lambda body: JSONResponse({"choices": [{"message": {}}]}), Failure.BROKEN, 502),
    "floods": (lambda body: _flood(), Failure.INCOMPLETE, 0),
}


def _flood() -> Response:
    async def parts() -> AsyncIterator[bytes]:
        yield b'{"choices": ["'
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0)

    return StreamingResponse(parts(), media_type="application/json")


@pytest.mark.parametrize("kind", BAD_SHADOWS)
def test_a_bad_shadow_is_a_row_and_nothing_else(mirrored: Rig, kind: str) -> None:
    mirrored.green.answer, failure, status = BAD_SHADOWS[kind]
    expected = post(mirrored, azureml_model_deployment="blue").json()
    answers = [post(mirrored) for _ in range(4)]
    assert [answer.json() for answer in answers] == [expected] * 4
    pairs = mirrored.keeper.wait_for_pairs(4)
    assert {(pair.error, pair.item.status, pair.skipped) for pair in pairs} == {(failure, status, Skip.NONE)}
    until_counted(mirrored, "failed", 4)
    assert mirrored.router.state.health.open() == []
    assert mirrored.router.state.health.breakers.of("green").faults == 0


async def test_an_unreachable_or_failing_shadow_is_a_row_and_nothing_else(mirrored: Rig) -> None:
    async with RawServer(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{") as url:
        mirrored.change(deployments={"green": {"url": url, "model": "m"}})
        async with httpx.AsyncClient() as client:
            assert (await client.post(f"{mirrored.url}/v1/chat/completions", json=SAY)).status_code == 200
        (pair,) = await asyncio.to_thread(mirrored.keeper.wait_for_pairs, 1)
        assert pair.error is Failure.INCOMPLETE
    async with httpx.AsyncClient() as client:
        assert (await client.post(f"{mirrored.url}/v1/chat/completions", json=SAY)).status_code == 200
    assert mirrored.keeper.wait_for_pairs(2)[1].error is Failure.UNREACHABLE
    assert mirrored.router.state.health.open() == []


def test_the_mirrors_own_breaker_leaves_a_failing_shadow_alone(mirrored: Rig) -> None:
    mirrored.green.answer = refuse(500, "broken", kind="InternalServerError")
    for number in range(1, 6):
        assert post(mirrored).status_code == 200
        mirrored.keeper.wait_for_pairs(number)
    assert post(mirrored).status_code == 200
    assert mirrored.keeper.wait_for_pairs(6)[-1].skipped is Skip.BREAKER_OPEN
    assert len(mirrored.green.requests) == 5
    assert post(mirrored, azureml_model_deployment="green").status_code == 502  # clients still reach it
    assert mirrored.router.state.health.open() == []


def test_a_shadow_that_hangs_fills_its_own_queue_and_nothing_else(mirrored: Rig) -> None:
    mirrored.green.answer = HANGS
    mirrored.chat_endpoint(mirror={**MIRROR, "max_concurrent": 2})
    with httpx.Client(timeout=60) as client:
        for _ in range(2 + MOST_WAITING + 3):
            assert client.post(f"{mirrored.url}/v1/chat/completions", json=SAY).status_code == 200
    pairs = mirrored.keeper.wait_for_pairs(3)
    assert [pair.skipped for pair in pairs] == [Skip.QUEUE_FULL] * 3
    assert outcomes(mirrored) == {"skipped_queue_full": 3}
    assert len(mirrored.green.requests) == 2
    metrics = httpx.get(f"{mirrored.url}/metrics").text
    assert f'switchyard_mirror_waiting{{deployment="green",endpoint="chat"}} {MOST_WAITING}.0' in metrics
    assert "http_server_active_requests" in metrics
    assert 'http_server_active_requests{deployment="green"' not in metrics


def test_the_end_of_the_process_does_not_wait_for_a_shadow(
    engines: tuple[dict[str, FakeEngine], str], servers: ServerPool
) -> None:
    fakes, url = engines
    for fake in fakes.values():
        fake.reset()
    rig = Rig(fakes, url, PROMPT)
    rig.green.answer = HANGS
    rig.chat_endpoint(mirror={**MIRROR, "max_concurrent": 1})
    with servers.host(rig.router.app) as rig.url:
        for _ in range(3):
            assert post(rig).status_code == 200
    assert [pair.skipped for pair in rig.keeper.pairs] == [Skip.SHUTDOWN] * 3


def test_requests_that_name_a_deployment_are_not_mirrored(mirrored: Rig) -> None:
    assert post(mirrored, azureml_model_deployment="blue").status_code == 200
    assert post(mirrored, body={**SAY, "model": "blue"}).status_code == 200
    assert post(mirrored).status_code == 200
    mirrored.keeper.wait_for(rows=3)
    assert len(mirrored.keeper.wait_for_pairs(1)) == len(mirrored.green.requests) == 1


def test_a_primary_that_failed_is_not_copied(mirrored: Rig) -> None:
    mirrored.chat_endpoint(fallback=[])
    mirrored.blue.answer = refuse(400, "no")
    assert post(mirrored).status_code == 400
    mirrored.blue.answer = lambda body: stream([chunk("a"), 'data: {"error": {"message": "gone", "code": 500}}\n\n'])
    post(mirrored, body={**SAY, "stream": True})
    pairs = mirrored.keeper.wait_for_pairs(2)
    assert [(pair.primary, pair.skipped) for pair in pairs] == [("blue", Skip.PRIMARY_FAILED)] * 2
    assert mirrored.green.requests == []


def test_requests_that_the_shadow_answered_are_not_copied(mirrored: Rig) -> None:
    mirrored.chat_endpoint(traffic={"blue": 99, "green": 1}, fallback=["green"])
    mirrored.blue.answer = refuse(503, "busy")
    assert post(mirrored).status_code == 200
    mirrored.keeper.wait_for(rows=1)
    assert (mirrored.keeper.pairs, outcomes(mirrored)) == ([], {})


def test_conversations_that_began_under_other_weights_are_not_copied(mirrored: Rig) -> None:
    mirrored.chat_endpoint(traffic={"blue": 99, "green": 1}, sticky={"by": "conversation"})
    shown = [{"role": "assistant", "content": "A thing."}, {"role": "user", "content": "Why?"}]
    assert post(mirrored, body={**SAY, "messages": [*SAY["messages"], *shown]}).status_code == 200
    assert the_pair(mirrored).skipped is Skip.CARRIED


def test_a_stopped_shadow_gets_no_copies(mirrored: Rig) -> None:
    """The controller sends the stop with an acknowledgement, and lifts it with another."""
    mirrored.change(experiments={"first": EXPERIMENT})
    stop = TrafficBlock("s-1", "chat", "green", "blue")
    for number, (stops, skipped) in enumerate([([stop], Skip.STOPPED), ([], Skip.NONE)], 1):
        mirrored.keeper.stops = stops
        wait_until(lambda stops=stops: mirrored.router.state.mirrors.is_blocked("chat", "green") == bool(stops))  # type: ignore[misc]
        assert post(mirrored).status_code == 200
        assert mirrored.keeper.wait_for_pairs(number)[-1].skipped is skipped


def test_large_requests_and_answers_are_not_copied(mirrored: Rig) -> None:
    long = [{"role": "user", "content": "x" * 300_000}]
    assert post(mirrored, body={**SAY, "messages": long}).status_code == 200
    choice = {"index": 0, "message": {"role": "assistant", "content": "y" * 300_000}, "finish_reason": "stop"}
    mirrored.blue.answer = lambda body: JSONResponse({"id": "x", "choices": [choice], "usage": USAGE})
    assert post(mirrored).status_code == 200
    pairs = mirrored.keeper.wait_for_pairs(2)
    assert [pair.skipped for pair in pairs] == [Skip.REQUEST_TOO_LARGE, Skip.ANSWER_TOO_LARGE]
    assert mirrored.green.requests == []
    state = mirrored.router.state.mirrors
    assert (state.bodies.used, state.answers.used) == (0, 0)


def test_long_streams_are_compared_in_a_thread_and_forgotten(mirrored: Rig) -> None:
    parts = [chunk("word ") for _ in range(1500)]
    answer: Answer = lambda body: stream(["".join(parts), chunk("", finish_reason="stop"), "data: [DONE]\n\n"])  # noqa: E731
    mirrored.blue.answer = mirrored.green.answer = answer
    assert post(mirrored, body={**SAY, "stream": True}).status_code == 200
    assert the_pair(mirrored).item.equal == 1
    until_counted(mirrored, "compared", 1)
    assert (mirrored.router.state.mirrors.bodies.used, mirrored.router.state.mirrors.answers.used) == (0, 0)


def test_the_budget_is_kept(mirrored: Rig) -> None:
    cost = USAGE["total_tokens"]
    mirrored.chat_endpoint(mirror={**MIRROR, "tokens_per_minute": 3 * cost + 1})
    for number in range(1, 8):
        assert post(mirrored).status_code == 200
        mirrored.keeper.wait_for_pairs(number)
    assert [pair.skipped for pair in mirrored.keeper.pairs] == [Skip.NONE] * 3 + [Skip.BUDGET] * 4
    assert [pair.item.tokens for pair in mirrored.keeper.pairs] == [cost] * 3 + [None] * 4


def test_copies_count_against_no_limit(mirrored: Rig) -> None:
    cost = USAGE["total_tokens"]
    limits = {"endpoints": {"chat": {"requests_per_minute": 2, "tokens_per_minute": 10 * cost}}}
    mirrored.change(access={"limits": limits})
    first, second = post(mirrored), post(mirrored)
    mirrored.keeper.wait_for_pairs(2)
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in (first, second)] == ["1", "0"]
    assert post(mirrored).status_code == 429
    metrics = httpx.get(f"{mirrored.url}/metrics").text
    assert 'gen_ai_client_token_usage_tokens_count{deployment="green"' not in metrics
    assert 'switchyard_requests_total{deployment="green"' not in metrics
    assert [row.served for row in mirrored.keeper.wait_for(rows=2)] == ["blue"] * 2


def test_units_are_drawn_whole_and_in_proportion(mirrored: Rig) -> None:
    mirrored.chat_endpoint(sticky={"by": "user"}, mirror={**MIRROR, "percent": 50})
    with httpx.Client() as client:
        for user in range(20):
            for _ in range(2):
                body = {**SAY, "user": f"user {user}"}
                assert client.post(f"{mirrored.url}/v1/chat/completions", json=body).status_code == 200
    rows = mirrored.keeper.wait_for(rows=40)
    pairs = mirrored.keeper.wait_for_pairs(2)
    until_counted(mirrored, "compared", 2)
    wait_until(lambda: len(mirrored.keeper.pairs) == len(mirrored.green.requests))
    pairs = mirrored.keeper.pairs
    units = [pair.item.unit for pair in pairs]
    assert {units.count(unit) for unit in units} == {2}
    assert 0 < len(set(units)) < len({row.item.unit for row in rows})


def test_no_text_leaves_the_routers_memory(mirrored: Rig) -> None:
    assert post(mirrored).status_code == 200
    the_pair(mirrored)
    for word in (b"secret", b"Hel", b"blue-model"):
        assert not any(word in batch for batch in mirrored.keeper.raw)


def test_without_a_mirror_nothing_is_kept(rig: Rig) -> None:
    rig.chat_endpoint(ledger="always")
    assert post(rig).status_code == 200
    rig.keeper.the_row()
    assert (rig.keeper.pairs, outcomes(rig)) == ([], {})
