"""A request whose client disconnects may end by itself first, and is cancelled otherwise.

The replica's age in the responses of a model application.
"""

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from app.internal_api import REPLICA_AGE_HEADER, REPLICA_HEADER
from deployments.engine.trial import Trials
from tests.support.waiting import wait_until_async

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, when it is imported
    from deployments.engine.server import (
        QUEUE_TIME,
        SERVICE_TIME,
        DisconnectMiddleware,
        Engine,
        LoadReport,
        ReplicaMiddleware,
        hand_over_when_stopped,
        held_by_serve,
        present_counts,
        replica_id,
    )


async def send(message: Message) -> None:
    """The client has disconnected: messages are discarded."""


class Connection:
    """The receiving side: nothing arrives until the client disconnects."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_an_answer_in_a_task_of_its_own_ends_by_reading_the_disconnect() -> None:
    ended: list[str] = []

    async def generate() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("generation")
            raise

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # what vLLM's with_cancellation does
        work = asyncio.create_task(generate())
        await asyncio.sleep(0)
        await receive()
        work.cancel()

    connection = Connection()
    request = asyncio.create_task(DisconnectMiddleware(app)({"type": "http"}, connection.receive, send))
    await asyncio.sleep(0.01)
    connection.gone.set()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await asyncio.sleep(0)
    assert ended == ["generation"]


async def test_an_application_that_does_not_end_by_itself_is_cancelled() -> None:
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    middleware = DisconnectMiddleware(app, grace_s=0.01)
    request = asyncio.create_task(middleware({"type": "http"}, Connection().receive, send))
    await asyncio.sleep(0.01)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await asyncio.wait_for(ended.wait(), timeout=30)


async def test_an_error_of_the_application_passes() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("from the engine")

    with pytest.raises(ValueError, match="from the engine"):
        await DisconnectMiddleware(app)({"type": "http"}, Connection().receive, send)


def ticking(*times: float) -> Iterator[float]:
    yield from times


def test_vllms_metrics_get_our_names() -> None:
    registry = CollectorRegistry()
    running = Gauge("vllm:num_requests_running", "", ("engine",), registry=registry)
    waiting = Gauge("vllm:num_requests_waiting", "", ("engine",), registry=registry)
    kv = Gauge("vllm:kv_cache_usage_perc", "", ("engine",), registry=registry)
    for engine, (runs, waits, share) in {"0": (3, 1, 0.2), "1": (5, 0, 0.7)}.items():
        running.labels(engine).set(runs)
        waiting.labels(engine).set(waits)
        kv.labels(engine).set(share)
    clock = ticking(10.0, 14.5)
    report = LoadReport(lambda: 2, registry, lambda: next(clock))
    assert report.read() == {"held": 2.0, "age_s": 4.5, "running": 8.0, "waiting": 1.0, "kv": 0.7}


def test_the_time_in_the_queue_is_of_requests_that_began_since_the_last_call() -> None:
    registry = CollectorRegistry()
    times = Histogram(QUEUE_TIME, "", ("engine",), registry=registry)
    report = LoadReport(lambda: 0, registry)
    times.labels("0").observe(1.0)
    times.labels("1").observe(3.0)
    assert report.read()["queue_s"] == 2.0
    assert report.read()["queue_s"] == 0.0
    times.labels("0").observe(8.0)
    assert report.read()["queue_s"] == 8.0


def test_the_time_that_requests_run_is_remembered() -> None:
    registry = CollectorRegistry()
    times = Histogram(SERVICE_TIME, "", ("engine",), registry=registry)
    times.labels("0")
    report = LoadReport(lambda: 0, registry)
    assert report.read()["service_s"] == 0.0
    times.labels("0").observe(4.0)
    times.labels("0").observe(8.0)
    assert [report.read()["service_s"], report.read()["service_s"]] == [6.0, 6.0]
    times.labels("0").observe(1.0)
    assert report.read()["service_s"] == 1.0


def test_the_counts_of_a_card_are_sums_over_the_engines_of_a_replica() -> None:
    registry = CollectorRegistry()
    assert present_counts(2, registry) == {}, "nothing is made up"
    running = Gauge("vllm:num_requests_running", "", ("engine",), registry=registry)
    waiting = Gauge("vllm:num_requests_waiting", "", ("engine",), registry=registry)
    kv = Gauge("vllm:kv_cache_usage_perc", "", ("engine",), registry=registry)
    queries = Counter("vllm:prefix_cache_queries", "", ("engine",), registry=registry)
    hits = Counter("vllm:prefix_cache_hits", "", ("engine",), registry=registry)
    for engine, (runs, waits, share, looked_up, had) in {"0": (3, 1, 0.2, 100, 40), "1": (5, 0, 0.7, 20, 5)}.items():
        running.labels(engine).set(runs)
        waiting.labels(engine).set(waits)
        kv.labels(engine).set(share)
        queries.labels(engine).inc(looked_up)
        hits.labels(engine).inc(had)
    assert present_counts(2, registry) == {
        "running": 8,
        "waiting": 3,
        "kv_cache_use": 0.7,
        "prefix_queries": 120,
        "prefix_hits": 45,
    }


def test_outside_a_replica_no_request_waits_in_serve() -> None:
    assert held_by_serve() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_serve_still_counts_waiting_requests_under_this_name() -> None:
    from ray.serve._private.replica import Replica, ReplicaActor

    assert "_num_queued_requests" in Replica.__init__.__code__.co_names
    assert "_replica_impl" in ReplicaActor.__init__.__code__.co_names


async def hello(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


def test_responses_say_how_long_ago_the_replica_was_ready() -> None:
    now = iter([100.0, 103.25, 190.0])
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("x")), WebSocketRoute("/ws", hello)])
    client = TestClient(ReplicaMiddleware(app, id="r", clock=lambda: next(now)))
    assert client.get("/").headers[REPLICA_AGE_HEADER] in ("3.2", "3.3")
    assert client.get("/gone").headers[REPLICA_AGE_HEADER] == "90.0"
    with client.websocket_connect("/ws") as socket:
        assert socket.receive_text() == "hello"


def test_all_responses_of_a_replica_have_the_id_by_which_serve_knows_it() -> None:
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("x"))])
    client = TestClient(ReplicaMiddleware(app, id="7g54uu1y"))
    assert {client.get(path).headers[REPLICA_HEADER] for path in ("/", "/gone")} == {"7g54uu1y"}


def test_an_engine_that_is_served_without_serve_has_an_id_of_its_own() -> None:
    assert replica_id() != replica_id()


def test_the_headers_are_added_once_to_a_response_in_parts() -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        for message in (
            {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]},
            {"type": "http.response.body", "body": b"x", "more_body": True},
            {"type": "http.response.body", "body": b""},
        ):
            await send(message)  # type: ignore[operator]

    sent: list[Any] = []

    async def send(message: object) -> None:
        sent.append(message)

    asyncio.run(ReplicaMiddleware(app, id="r", clock=lambda: 0.0)({"type": "http"}, None, send))  # type: ignore[arg-type]
    headers = sent[0]["headers"]
    assert headers[:2] == [(b"a", b"b"), (REPLICA_AGE_HEADER.encode(), b"0.0")]
    assert [name for name, _ in headers[2:]] == [REPLICA_HEADER.encode()]
    assert len(sent) == 3


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, when it is imported
    from deployments.engine.server import executor


def test_a_model_on_cpus_runs_beside_its_scheduler_where_threads_are_not_bound() -> None:
    assert executor("mp", 1, "cpu", "nobind") == "uni"


@pytest.mark.parametrize(
    ("chosen", "processes", "device", "binding"),
    [
        ("mp", 1, "cpu", "auto"),  # vLLM binds the threads of a separate process
        ("mp", 1, "cpu", ""),  # its default is `auto`
        ("mp", 1, "cpu", "0-3"),
        ("mp", 2, "cpu", "nobind"),  # the model is in two processes
        ("ray", 1, "cuda", "nobind"),
        ("mp", 1, "cuda", "nobind"),
        ("external_launcher", 1, "cpu", "nobind"),
    ],
)
def test_another_executor_chosen_by_ray_or_vllm_stays(chosen: str, processes: int, device: str, binding: str) -> None:
    assert executor(chosen, processes, device, binding) == chosen


class SlowTrials(Trials):
    """Those of a process that is still starting."""

    def __init__(self) -> None:
        super().__init__("")
        self.has_started = asyncio.Event()

    async def ready(self) -> bool:
        return await self.has_started.wait()


async def test_an_engine_has_started_when_constraints_can_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def started(_: Engine) -> None:
        """vLLM's part has."""

    monkeypatch.setattr("ray.llm._internal.serve.engines.vllm.vllm_engine.VLLMEngine.start", started)
    engine: Any = object.__new__(Engine)
    engine.trials = trials = SlowTrials()
    starting = asyncio.create_task(engine.start())
    await asyncio.wait({starting}, timeout=0.1)
    assert not starting.done()
    trials.has_started.set()
    await starting


class Streams:
    """Open streams, of which one more opens before each look."""

    def __init__(self) -> None:
        self.handed_over = 0

    def __len__(self) -> int:
        return 1

    def hand_over(self) -> int:
        self.handed_over += 1
        return 1


async def test_streams_are_handed_over_after_the_stop_while_another_replica_runs() -> None:
    open_streams, is_stopped, has_successor = Streams(), asyncio.Event(), asyncio.Event()
    streams: Any = open_streams
    handing_over = hand_over_when_stopped(streams, is_stopped.is_set, has_successor.is_set, 0.1, every_s=0.01)
    watching = asyncio.create_task(handing_over)
    await asyncio.sleep(0.2)
    is_stopped.set()
    await asyncio.sleep(0.2)
    assert open_streams.handed_over == 0  # nobody could continue them
    has_successor.set()
    await wait_until_async(lambda: open_streams.handed_over > 2, lambda: str(open_streams.handed_over))
    watching.cancel()
