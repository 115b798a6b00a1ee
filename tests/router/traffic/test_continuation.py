"""Streams outlive their engines: what clients of every dialect see, and what the router's books say."""

import asyncio
import json
import re
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from app.control_plane import RUNNING, Replicas
from app.exchange.state import Departure, Vacancies
from app.exposures.wire import Failure
from app.internal_api import (
    APP_PREFIX,
    CONTINUATION_HEADER,
    NO_SERVER_HEADER,
    REPLICA_HEADER,
)
from app.routing.resilience import AT_ONCE_S, FAULTS_IN_A_ROW, RESERVE, Fuse
from app.server.application import Router
from app.upstream.balancer import Address
from app.upstream.target import RuntimeEnvironment
from tests.support.clients.conversations import TOOL
from tests.support.clients.documents import blocks
from tests.support.clients.samples import MODEL
from tests.support.engine.fake_engine import CARD, USAGE, FakeEngine, chat, chunk, frame, refuse, stream
from tests.support.engine.marked import Fate, grouped
from tests.support.engine.other_answers import every_route
from tests.support.experiments.recording_controller import Keeper
from tests.support.processes.project import ROOT
from tests.support.processes.servers import ServerPool
from tests.support.telemetry.otlp_receiver import receiving
from tests.support.waiting import wait_until

ASKS: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
AZURE = "/azure/chat/completions?api-version=2024-05-01-preview"
STREAMS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "openai chat": ("/v1/chat/completions", {"messages": ASKS, "stream_options": {"include_usage": True}}),
    "openai completions": ("/v1/completions", {"prompt": "hi"}),
    "openai responses": ("/v1/responses", {"input": "hi"}),
    "anthropic": ("/v1/messages", {"messages": ASKS, "max_tokens": 9}),
    "azure": (AZURE, {"messages": ASKS}),
    "databricks": ("/serving-endpoints/chat/invocations", {"messages": ASKS}),
    "databricks responses": ("/serving-endpoints/responses", {"input": "hi"}),
    "tgi": ("/tgi/chat/generate_stream", {"inputs": "hi", "parameters": {"max_new_tokens": 9}}),
    "tgi chat": ("/tgi/chat/v1/chat/completions", {"messages": ASKS}),
    "friendli chat": ("/dedicated/v1/chat/completions", {"messages": ASKS}),
    "friendli": ("/dedicated/v1/completions", {"prompt": "hi", "max_tokens": 9}),
}
each = pytest.mark.parametrize("name", STREAMS)


class ContinuingRig:
    """A router, and the replicas of its one deployment, all of which one fake plays."""

    def __init__(
        self, router: Router, engine: FakeEngine, green: FakeEngine, client: httpx.Client, keeper: Keeper
    ) -> None:
        self.router, self.engine, self.green, self.client, self.keeper = router, engine, green, client, keeper
        self.config: dict[str, Any] = {
            "endpoints": {"chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"blue": 100}}},
            "deployments": {"blue": {"app": "blue", "model": "m"}},
            "defaults": {"chat": "chat", "completions": "chat", "responses": "chat"},
        }
        self.router.reconfigure(self.config)

    def change(self, continuation: Mapping[str, Any] | None = None, **sections: Any) -> None:
        blue = {**self.config["deployments"]["blue"], "continuation": continuation or {}}
        deployments = {**self.config["deployments"], "blue": blue}
        self.config = {**self.config, "deployments": deployments, **sections}
        self.router.reconfigure(self.config)

    def ask(self, name: str = "openai chat", **fields: Any) -> httpx.Response:
        path, body = STREAMS[name]
        return self.client.post(path, json={"model": "chat", "stream": True, **body, **fields})

    def text(self, name: str = "openai chat", **fields: Any) -> str:
        """The body of a stream; of a broken one, what came of it."""
        path, body = STREAMS[name]
        parts: list[str] = []
        with self.client.stream("POST", path, json={"model": "chat", "stream": True, **body, **fields}) as response:
            assert response.status_code == 200, response.read()
            try:
                parts = [part for part in response.iter_text()]
            except httpx.RemoteProtocolError:
                parts.append("broken")
        return "".join(parts)

    def metric(self, begins: str) -> float:
        lines = [line for line in self.client.get("/metrics").text.splitlines() if line.startswith(begins)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def breaker_is(self, is_open: int) -> bool:
        return self.metric("switchyard_breaker_open") == is_open

    def continued(self, reason: str, outcome: str) -> float:
        labels = f'deployment="blue",endpoint="chat",outcome="{outcome}",reason="{reason}"'
        return self.metric(f"switchyard_continued_streams_total{{{labels}}}")


@pytest.fixture
def rig(servers: ServerPool) -> Iterator[ContinuingRig]:
    engine = FakeEngine(card=CARD, continues=True)
    others = every_route(engine)
    engine.answer = lambda body: completion(body) if isinstance(body.get("prompt"), str) else others(body)
    green = FakeEngine(card=CARD)
    mounts = [Mount(f"{APP_PREFIX}{name}", fake.app) for name, fake in (("blue", engine), ("green", green))]
    with servers.host(Starlette(routes=mounts)) as ingress:
        keeper = Keeper()
        router = Router(RuntimeEnvironment(ingress, internal_key="internal"), controller=keeper, send_every_s=0.02)
        with servers.host(router.app) as url, httpx.Client(base_url=url, timeout=30) as client:
            yield ContinuingRig(router, engine, green, client, keeper)


def completion(body: dict[str, Any]) -> Response:
    """vLLM's completion of a text, in several chunks."""
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    texts = [("Hel", None), ("lo", None), (" you", None), ("", "length")]
    choices = [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason} for text, reason in texts]
    frames = [frame({**head, "choices": [choice]}) for choice in choices]
    return stream([*frames, frame({**head, "choices": [], "usage": USAGE}), "data: [DONE]\n\n"])


def plain(text: str) -> str:
    """An answer without what differs between two requests for the same."""
    return re.sub(r'"(id|created|created_at|request_id|seed)":("[^"]*"|[0-9]+)', "", text)


@each
def test_a_stream_goes_on_wherever_its_engine_dies(rig: ContinuingRig, name: str) -> None:
    undisturbed = plain(rig.text(name))
    assert CONTINUATION_HEADER not in undisturbed
    assert ":t " not in undisturbed
    for how in ("closed", "half", "error", "handover"):
        for after in range(1, 9):
            rig.engine.fates = [Fate(after, how)]
            rig.engine.known.clear()
            assert plain(rig.text(name)) == undisturbed, (how, after)
            if len(rig.engine.known) == 1:
                break  # the stream was over
        assert after > 1, how
    assert rig.continued("closed", "continued") > 0 < rig.continued("handover", "continued")


BETWEEN_S = 0.25
"""At most, on a busy machine, from the reading of a token until it is counted."""
FAILS = ("openai chat", "openai responses", "anthropic", "databricks", "tgi", "friendli", "azure")


def is_error(text: str) -> bool:
    """Whether a stream ends with an error, in any dialect."""
    last = text.rstrip().rpartition("\n\n")[2]
    return text.endswith("broken") or '"error' in last or "response.failed" in last


@pytest.mark.parametrize("name", FAILS)
def test_a_request_that_kills_its_engine_kills_one_more_and_is_refused_for_a_minute(
    rig: ContinuingRig, name: str
) -> None:
    rig.engine.fates = [Fate(2), Fate(0), Fate(2)]
    assert is_error(rig.text(name))
    generations = [path for path in rig.engine.paths if "tokenize" not in path]
    assert len(generations) == 2, generations
    refused = rig.ask(name)
    assert "Two engines died while they worked on this request" in refused.text
    if name != "tgi":  # which answers every request for a stream with one
        assert refused.status_code in (400, 422)
        assert 50 < int(refused.headers["retry-after"]) <= 60
    assert rig.engine.fates == [Fate(2)], "no third engine has seen it"
    rig.engine.fates = []
    assert not is_error(rig.text(name, user="another") if name == "openai chat" else rig.text("openai completions"))
    assert rig.continued("closed", "ended") == 1


@pytest.mark.parametrize("how", ["closed", "error"])
def test_a_stream_that_kills_engines_before_their_first_token_kills_two_and_is_refused(
    rig: ContinuingRig, how: Literal["closed", "error"]
) -> None:
    rig.engine.fates = [Fate(0, how), Fate(0, how), Fate(0, how)]
    assert rig.ask().status_code == 502
    refused = rig.ask()
    assert refused.status_code == 422
    assert "Two engines died while they worked on this request" in refused.text
    assert len(rig.engine.fates) == 1, "no third engine has seen it"
    rig.engine.fates = []
    assert rig.ask(user="another").status_code == 200


def test_a_whole_answer_that_kills_engines_before_its_first_byte_kills_two_and_is_refused(rig: ContinuingRig) -> None:
    """vLLM says so to every request of an engine that has died."""
    names = iter(["first", "second", "third"])
    dead = {"error": {"message": "EngineCore encountered an issue. See stack trace", "type": "InternalServerError"}}
    rig.engine.answer = lambda body: JSONResponse(dead, 500, {REPLICA_HEADER: next(names)})
    assert rig.ask("azure", stream=False).status_code == 502
    assert rig.ask("azure", stream=False).status_code == 422
    assert next(names) == "third", "no third engine has seen it"


WHOLE: Mapping[str, tuple[str, dict[str, Any]]] = {
    **{name: (path.replace("_stream", ""), body) for name, (path, body) in STREAMS.items()},
    "embeddings": ("/v1/embeddings", {"input": ["hi"]}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_request_for_a_whole_answer_kills_two_engines_of_many_and_is_refused(rig: ContinuingRig, name: str) -> None:
    """However it kills them: the connection ends, and no engine has said anything."""
    if name == "embeddings":
        rig.config["deployments"]["blue"]["tasks"] = [name]
        rig.change(endpoints={"chat": {"tasks": [name], "traffic": {"blue": 100}}}, defaults={name: "chat"})
    rig.engine.answer = every_route(rig.engine)
    answer = Replicas({"blue": {RUNNING: 9}}, {})
    rig.router.state.running.last = answer
    path, body = WHOLE[name]

    def ask(**fields: Any) -> httpx.Response:
        whole = {"model": "chat", **{name: value for name, value in body.items() if name != "stream_options"}}
        return rig.client.post(path, json={**whole, **fields})

    undisturbed = ask()
    assert undisturbed.status_code == 200, undisturbed.text
    rig.engine.fates = [Fate()] * 9
    assert ask().status_code in (500, 502)
    assert ask().status_code in (400, 422)
    assert len(rig.engine.fates) == 7, "no third engine has seen it"
    requests = rig.router.state.requests
    wait_until(lambda: len(requests.after(0)[1]) == 3, lambda: "all have ended")
    answered, died, refused = (request.engine for request in requests.after(0)[1])
    assert {name.partition("-")[0] for name in (answered, died)} == {"whole"}
    assert answered != died
    assert not refused


def with_green(rig: ContinuingRig, running: int, asleep: Collection[str] = ()) -> None:
    """Green takes what blue fails on; the control plane runs so many replicas of blue."""
    endpoint = {"tasks": ["chat"], "traffic": {"blue": 100}, "fallback": ["green"]}
    green = {"app": "green", "model": "m"}
    deployments = {**rig.config["deployments"], "green": green}
    rig.change(endpoints={"chat": endpoint}, deployments=deployments, defaults={"chat": "chat"})
    answer = Replicas({"blue": {RUNNING: running}, "green": {RUNNING: 1}}, {}, asleep)
    rig.router.state.running.last = answer


@pytest.mark.parametrize(("running", "serves"), [(2, "blue"), (1, "green")])
def test_what_a_dead_engine_had_goes_to_the_deployment_s_other_replicas_if_there_are_any(
    rig: ContinuingRig, running: int, serves: str
) -> None:
    with_green(rig, running)
    rig.engine.fates = [Fate(0)]
    answer = rig.ask()
    assert (answer.status_code, answer.headers["azureml-model-deployment"]) == (200, serves)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("running", [1, 2])
def test_however_many_requests_an_engine_had_others_take_them_all(
    rig: ContinuingRig, running: int, streamed: bool
) -> None:
    """More than the retries that a budget allows. Those that are left are green's."""
    with_green(rig, running)
    number = round(2 * RESERVE)
    rig.engine.fates = [Fate(0, of=1, pause_s=1)] * number

    def ask(one: int) -> int:
        return rig.ask("azure", messages=[{"role": "user", "content": f"{one}"}], stream=streamed).status_code

    with ThreadPoolExecutor(number) as pool:
        answers = list(pool.map(ask, range(number)))
    assert answers == [200] * number


def test_requests_that_lose_two_engines_together_go_to_another_deployment(rig: ContinuingRig) -> None:
    with_green(rig, 2)
    one, other = Fate(0, of=1, pause_s=1), Fate(0, of=2, pause_s=1)
    rig.engine.fates = [*[one] * 5, *[other] * 20]  # of which checks take some
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda user: rig.ask(user=f"{user}"), range(5)))
    served = {(answer.status_code, answer.headers["azureml-model-deployment"]) for answer in answers}
    assert served == {(200, "green")}


def test_a_request_that_is_alone_with_two_engines_that_died_goes_nowhere_else(rig: ContinuingRig) -> None:
    """It may have killed them."""
    with_green(rig, 2)
    rig.engine.fates = [Fate(0), Fate(0)]
    assert rig.ask().status_code == 502
    assert rig.ask().status_code == 422
    assert rig.green.paths == []


@pytest.mark.parametrize("asleep", [[], ["blue"]], ids=["kept running", "scaled to zero"])
def test_only_where_replicas_are_missing_does_a_request_go_elsewhere_at_once(
    rig: ContinuingRig, asleep: list[str]
) -> None:
    """Elsewhere it waits at the ingress."""
    with_green(rig, 1, asleep)
    rig.router.state.balancer.update({"blue": [], "green": []})
    absent = JSONResponse({"error": {"message": "No router"}}, 503, {NO_SERVER_HEADER: "1"})
    rig.engine.answer = lambda body: absent
    for number in range(FAULTS_IN_A_ROW):
        answer = rig.ask()
        assert (answer.status_code, answer.headers["azureml-model-deployment"]) == (200, "green")
        assert number or bool(rig.engine.paths) == bool(asleep)
    wait_until(lambda: rig.breaker_is(1), lambda: "no connection was made")


@pytest.mark.parametrize("streamed", [True, False])
def test_a_request_that_waits_where_no_replica_is_left_goes_elsewhere(rig: ContinuingRig, streamed: bool) -> None:
    """The ingress has it wait at Serve's own proxy, if a replica dies while it calls it."""
    with_green(rig, 1)
    left, state = Replicas({"blue": {"STARTING": 1}, "green": {RUNNING: 1}}, {}), rig.router.state

    class Leaving(Vacancies):
        def departure(self, application: str, deadline: float) -> Departure:
            asyncio.get_running_loop().call_later(0.3, self.seen, left)
            return super().departure(application, deadline)

    state.vacancies = Leaving()
    rig.engine.answer = lambda body: stream([20.0, chunk("late")])
    answer = rig.ask("azure", stream=streamed)
    assert (answer.status_code, answer.headers["azureml-model-deployment"]) == (200, "green")


def at_once(rig: ContinuingRig, *bodies: dict[str, Any]) -> list[str]:
    """The streams of requests that are under way at the same moment."""
    rig.engine.pause_s = 0.05
    with ThreadPoolExecutor(len(bodies)) as pool:
        return [stream for stream in pool.map(lambda fields: rig.text(**fields), bodies)]


def test_the_death_of_one_engine_is_one_death_for_a_request_that_meets_it_again(rig: ContinuingRig) -> None:
    """The system of a replica that dies takes connections for a while, and answers none."""
    undisturbed = plain(rig.text())
    dying = Fate(how="dying", pause_s=0.05)
    rig.engine.fates = [Fate(2), dying, dying]
    assert plain(rig.text()) == undisturbed
    rig.engine.fates = [dying, Fate(2), dying]
    assert plain(rig.text()) == undisturbed, "met before the first byte"
    assert rig.ask().status_code == 200


def test_many_identical_requests_on_one_dying_engine_are_one_death(rig: ContinuingRig) -> None:
    undisturbed = plain(rig.text())
    rig.change({"wait_s": 20})
    rig.engine.fates = [*[Fate(2, of=1, pause_s=1)] * 8, *[Fate(how="dying", pause_s=0.05)] * 12]
    assert {plain(stream) for stream in at_once(rig, *[{}] * 8)} == {undisturbed}
    assert rig.ask().status_code == 200


def test_several_requests_that_lose_two_engines_together_are_not_refused(rig: ContinuingRig) -> None:
    rig.engine.fates = [*[Fate(2, of=1, pause_s=1)] * 2, *[Fate(0, of=2, pause_s=1)] * 2]
    assert all(map(is_error, at_once(rig, {"user": "one"}, {"user": "two"})))
    assert {rig.ask(user=user).status_code for user in ("one", "two")} == {200}


def test_a_request_that_engines_may_have_died_of_is_not_called_its_client_s_fault(rig: ContinuingRig) -> None:
    rig.engine.fates = [Fate(2), Fate(0)]
    rig.text()
    refused = rig.ask()
    assert refused.status_code == 422
    (endpoint,) = rig.client.get("/api/overview").json()["endpoints"]
    assert (endpoint["refused"], endpoint["errors"]) == (0, 2)


def test_a_body_that_an_engine_answers_meanwhile_is_not_refused(rig: ContinuingRig) -> None:
    rig.engine.fates = [Fate(2), Fate(0)]
    assert is_error(rig.text())
    assert rig.ask().status_code == 422
    assert not is_error(rig.text(user="another"))
    assert rig.ask().status_code == 422, "another body says nothing of this one"


def test_an_engine_that_gave_tokens_before_it_died_accuses_no_request(rig: ContinuingRig) -> None:
    rig.engine.fates = [Fate(2), Fate(1)]
    assert is_error(rig.text())
    assert not is_error(rig.text())


def test_the_replica_that_has_died_is_known_until_it_answers_again(rig: ContinuingRig) -> None:
    rig.engine.fates = [Fate(1, "handover"), Fate(1)]
    rig.ask()
    (name,) = rig.router.state.fuse.dead()
    rig.engine.fates = [Fate(9, of=-int(name.removeprefix("engine-")))]  # only its connection had ended
    assert rig.ask().status_code == 200
    assert rig.router.state.fuse.dead() == set()


def test_a_stream_is_handed_over_any_number_of_times_and_survives_one_death(rig: ContinuingRig) -> None:
    undisturbed = plain(rig.text())
    rig.engine.fates = [Fate(1, "handover"), Fate(0, "handover"), Fate(1), Fate(0, "handover"), Fate(1, "handover")]
    assert plain(rig.text()) == undisturbed
    assert rig.engine.known[1:] == [None, [70], [70], [70, 71], [70, 71], [70, 71, 72]]
    assert rig.continued("handover", "continued") == 2
    assert rig.continued("closed", "continued") == 1


SIGNS = {
    "azure": '"delta":{"content":""},"logprobs":null,"finish_reason":null}]}\n\n',
    "databricks": '"delta":{"content":""},"logprobs":null,"finish_reason":null}]}\n\n',
}
"""What shows clients that their stream is alive, where that is no comment: those of Azure and Databricks take none."""


@each
def test_a_stream_waits_for_a_replica_and_its_client_hears_of_it(rig: ContinuingRig, name: str) -> None:
    undisturbed = plain(rig.text(name))
    rig.change({"wait_s": 20, "keep_alive_s": 0.1})
    rig.engine.fates = [Fate(2), *[Fate(how="busy")] * 4]
    frames = plain(rig.text(name)).split("\n\n")
    signs = [frame for frame in frames if f"{frame}\n\n".endswith(SIGNS.get(name, ": keep-alive\n\n"))]
    assert len(signs) >= 3
    assert "\n\n".join(frame for frame in frames if frame not in signs) == undisturbed


NOT_THERE: Mapping[str, tuple[dict[str, float], list[Fate]]] = {
    "refused": ({}, [Fate(how="absent")] * 99),
    "held": ({}, [Fate(how="held", pause_s=60)] * 99),
    "held for longer than an answer may take": ({"first_byte_s": 0.4}, [Fate(how="held", pause_s=60)] * 99),
    "held, then lost": ({}, [Fate(how="dying", pause_s=0.4)] * 99),
    "without room to wait": ({}, [Fate(how="queued")] * 99),
    "by turns": (
        {"first_byte_s": 0.4},
        [Fate(how="held", pause_s=60), Fate(how="dying"), Fate(how="queued"), Fate(how="absent")] * 9,
    ),
}
"""What an ingress does without a replica, and the timeouts."""


def no_replica(rig: ContinuingRig) -> None:
    """The control plane knows that blue's only replica is gone."""
    starting = Replicas({"blue": {"STARTING": 1}}, {})
    rig.router.state.running.last = starting


@pytest.mark.parametrize("name", NOT_THERE)
def test_a_stream_waits_as_long_as_its_deployment_says_wherever_its_call_waits(rig: ContinuingRig, name: str) -> None:
    timeouts, fates = NOT_THERE[name]
    no_replica(rig)
    rig.change({"wait_s": 2.5, "keep_alive_s": 0.5}, timeouts=timeouts)
    rig.engine.fates = [Fate(2), *fates]
    began = time.monotonic()
    text = rig.text()
    assert 1.4 < time.monotonic() - began < 4.5
    assert "The deployment's engine has died" in text
    assert text.count(": keep-alive\n\n") >= 2
    rig.engine.fates = []
    assert rig.ask().status_code == 200, "the body is not refused"


@pytest.mark.parametrize("name", NOT_THERE)
def test_a_stream_goes_on_when_there_is_a_replica_wherever_its_call_waited(rig: ContinuingRig, name: str) -> None:
    timeouts, fates = NOT_THERE[name]
    undisturbed = plain(rig.text())
    no_replica(rig)
    rig.change({"wait_s": 30}, timeouts=timeouts)
    rig.engine.fates = [Fate(2), *([Fate(how="held", pause_s=0.8)] if name == "held" else fates[:3])]
    assert plain(rig.text()) == undisturbed


def test_a_call_that_the_ingress_loses_while_no_replica_runs_is_no_death(rig: ContinuingRig) -> None:
    """However long ago the engine has died."""
    undisturbed = plain(rig.text())
    no_replica(rig)
    rig.change({"wait_s": 30})
    rig.engine.fates = [Fate(2), Fate(how="dying", pause_s=AT_ONCE_S + 0.2)]
    assert plain(rig.text()) == undisturbed


def test_a_replica_that_has_taken_a_stream_is_given_the_time_of_any_answer(rig: ContinuingRig) -> None:
    """Not what is left of the wait: it may have a long prompt to compute."""
    undisturbed = plain(rig.text())
    rig.change({"wait_s": 0.5}, timeouts={"first_byte_s": 1.5})
    rig.engine.fates = [Fate(2), Fate(how="held", pause_s=0.3), Fate(0, "handover", pause_s=1.3)]
    assert plain(rig.text()) == undisturbed


@each
def test_the_client_of_a_silent_stream_hears_of_it_though_no_engine_is_known_to_be_lost(
    rig: ContinuingRig, name: str
) -> None:
    undisturbed = plain(rig.text(name))
    rig.change({"keep_alive_s": 0.1})
    rig.engine.pause_s = 0.35
    frames = plain(rig.text(name)).split("\n\n")
    signs = [frame for frame in frames if f"{frame}\n\n".endswith(SIGNS.get(name, ": keep-alive\n\n"))]
    assert len(signs) >= 2
    assert "\n\n".join(frame for frame in frames if frame not in signs) == undisturbed


def test_the_pause_is_what_the_client_sees_not_what_follows_the_detection(rig: ContinuingRig) -> None:
    """A hung engine's connection is closed a second later."""
    rig.change(endpoints={"chat": {**rig.config["endpoints"]["chat"], "ledger": "always"}})
    rig.engine.fates = [Fate(2, pause_s=1.0)]
    rig.text()
    (row,) = rig.keeper.wait_for(rows=1)
    assert 1.0 < row.item.pause_s <= row.item.itl_max_s + BETWEEN_S
    assert rig.metric("switchyard_continuation_pause_seconds_sum") == pytest.approx(row.item.pause_s, rel=1e-3)
    wait_until(lambda: len(rig.router.state.requests.after(0)[1]) == 1)
    (request,) = rig.router.state.requests.after(0)[1]
    ((at, pause_s),) = request.pauses
    assert request.first_byte_s is not None
    assert request.first_byte_s <= at < at + pause_s < request.duration_s


def test_a_stream_does_not_wait_longer_than_its_deployment_allows(rig: ContinuingRig) -> None:
    rig.change({"wait_s": 0.4})
    rig.engine.fates = [Fate(2), *[Fate(how="absent")] * 9]
    text = rig.text()
    assert "The deployment's engine has died" in text
    assert is_error(text)
    assert len(rig.engine.fates) > 5
    rig.engine.fates = []
    assert not is_error(rig.text()), "the body is not refused"


@pytest.mark.parametrize(
    "fates",
    [
        [Fate(2, "handover"), *[Fate(how="busy")] * 5],
        [Fate(2), *[Fate(how="busy")] * 5],
        [Fate(2, "handover"), Fate(0, "handover", pause_s=0.6), Fate(0, "closed", pause_s=0.6)],
    ],
    ids=["full", "full after a death", "lost again"],
)
def test_neither_full_engines_nor_those_that_are_lost_in_turn_count_as_waiting(
    rig: ContinuingRig, fates: list[Fate]
) -> None:
    undisturbed = plain(rig.text())
    rig.change({"wait_s": 0.5})
    rig.engine.fates = list(fates)
    assert plain(rig.text()) == undisturbed
    assert not rig.engine.fates


def test_the_deadline_counts_while_a_stream_waits(rig: ContinuingRig) -> None:
    rig.change({"wait_s": 60})
    rig.engine.fates = [Fate(2), *[Fate(how="busy")] * 99]
    began = time.monotonic()
    path, body = STREAMS["openai chat"]
    answer = rig.client.post(
        path, json={"model": "chat", "stream": True, **body}, headers={"x-request-timeout-s": "0.8"}
    )
    assert 0.7 < time.monotonic() - began < 5
    assert "took longer than the 0.8 s that the request allows" in answer.text
    assert rig.continued("closed", "deadline") == 1


def test_nothing_waits_for_a_client_that_has_gone(rig: ContinuingRig) -> None:
    rig.change({"wait_s": 60})
    rig.engine.fates = [Fate(2), *[Fate(how="busy")] * 999]
    path, body = STREAMS["openai chat"]
    with rig.client.stream("POST", path, json={"model": "chat", "stream": True, **body}) as response:
        parts = response.iter_text()  # it would close the stream if it were forgotten
        next(parts)
        wait_until(lambda: len(rig.engine.paths) > 3)
    wait_until(lambda: rig.continued("closed", "client_gone") == 1)
    calls = len(rig.engine.paths)
    time.sleep(1.2)
    assert len(rig.engine.paths) == calls


def test_a_stream_that_its_client_leaves_tells_how_many_tokens_it_had(rig: ContinuingRig) -> None:
    def listed(status: str) -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = rig.client.get(f"/api/requests?status={status}").json()["requests"]
        return requests

    rig.engine.fates = [Fate(3, "silence")]
    path, body = STREAMS["openai chat"]
    with rig.client.stream("POST", path, json={"model": "chat", "stream": True, **body}) as response:
        parts, text = response.iter_text(), ""
        while text.count("data: ") < 3:
            text += next(parts)
        wait_until(lambda: [one["sent_tokens"] for one in listed("running")] == [3])
    wait_until(lambda: listed("left"))
    (request,) = listed("left")
    assert (request["outcome"], request["sent_tokens"], request["completion_tokens"]) == ("left", 3, None)
    (use,) = rig.client.get("/api/callers").json()["callers"]
    assert (use["requests"], use["failed"], use["completion_tokens"]) == (1, 1, 3)
    assert use["prompt_tokens"] > 0, "an estimate, as limits count it"
    counted = r'gen_ai_client_token_usage_tokens_sum\{.*gen_ai_token_type="(\w+)".*\} (.*)'
    assert re.findall(counted, rig.client.get("/metrics").text) == [("output", "3.0")], "no estimate"


def test_a_stream_is_not_said_to_go_on_before_an_engine_goes_on(rig: ContinuingRig) -> None:
    def listed() -> dict[str, Any]:
        (request,) = rig.client.get("/api/requests").json()["requests"]
        return request  # type: ignore[no-any-return]

    rig.change({"wait_s": 60})
    rig.engine.fates = [Fate(2), *[Fate(how="busy")] * 999]
    with ThreadPoolExecutor() as pool:
        text = pool.submit(rig.text)
        wait_until(lambda: len(rig.engine.paths) > 2)
        wait_until(lambda: listed()["paused_s"] is not None)
        waits = listed()
        assert (waits["moves"], waits["running"]) == (0, True)
        assert waits["pause_s"] == waits["paused_s"] == waits["pauses"][0][1] > 0
        (lost,) = waits["failed_attempts"]
        assert (lost["interrupted"], lost["continued"], lost["engine"]) == (True, False, waits["engine"])
        (chat,) = rig.client.get("/api/overview").json()["endpoints"]
        assert any("1 stream is paused" in finding["text"] for finding in chat["findings"])
        rig.engine.fates = []
        assert not is_error(text.result())
    wait_until(lambda: not listed()["running"])
    moved = listed()
    assert (moved["moves"], moved["paused_s"], moved["failed_attempts"][0]["continued"]) == (1, None, True)
    assert moved["engine"] != lost["engine"]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_stream_that_no_engine_continues_is_one_failed_attempt(rig: ContinuingRig, streamed: bool) -> None:
    rig.change({"wait_s": 0.2})
    rig.engine.fates = [Fate(2), *[Fate(how="absent")] * 9]
    fields = {"stream": True} if streamed else FORCED
    rig.client.post("/v1/chat/completions", json={"model": "chat", "messages": ASKS, **fields})
    wait_until(lambda: len(rig.router.state.requests.after(0)[1]) == 1)
    (request,) = rig.router.state.requests.after(0)[1]
    assert len(request.failed_attempts) == request.attempts
    assert (request.failed_attempts[0].interrupted, request.failed_attempts[0].continued) == (True, False)
    assert request.moves == 0
    assert request.pause_s > 0.1


async def tokens_in(answer: Response, groups: int) -> int:
    """The tokens in the first groups of an engine's stream."""
    assert isinstance(answer, StreamingResponse)
    parts = [part if isinstance(part, bytes) else str(part).encode() async for part in answer.body_iterator]
    return sum(len(group.ids) for group in grouped(b"".join(parts))[:groups])


@each
@pytest.mark.parametrize("ends", ["left", "failed"])
def test_the_tokens_that_were_sent_count_however_a_stream_ends(rig: ContinuingRig, name: str, ends: str) -> None:
    rig.engine.fates = [Fate(2, "silence")] if ends == "left" else [Fate(2), Fate(how="refused")]
    path, body = STREAMS[name]
    with rig.client.stream("POST", path, json={"model": "chat", "stream": True, **body}) as response:
        sent = asyncio.run(tokens_in(rig.engine.answer(rig.engine.requests[-1]), 2))
        if ends == "left":
            running = partial(rig.client.get, "/api/requests?status=running")
            wait_until(lambda: [one["sent_tokens"] for one in running().json()["requests"]] == [sent])
        else:
            with suppress(httpx.RemoteProtocolError):
                response.read()
    wait_until(lambda: rig.client.get("/api/callers").json()["callers"])
    (use,) = rig.client.get("/api/callers").json()["callers"]
    assert (use["requests"], use["failed"]) == (1, 1)
    assert use["completion_tokens"] == sent > 0
    assert use["prompt_tokens"] > 0
    counted = r'gen_ai_client_token_usage_tokens_sum\{.*gen_ai_token_type="output".*\} (.*)'
    assert re.findall(counted, rig.client.get("/metrics").text) == [str(float(sent))]


def test_a_successor_that_refuses_ends_the_stream_with_the_engines_failure(rig: ContinuingRig) -> None:
    rig.engine.fates = [Fate(2), Fate(how="refused")]
    text = rig.text()
    assert "The deployment's engine has died" in text
    assert "these are not the tokens" not in text


def test_a_stream_that_cannot_be_continued_any_more_ends_with_an_error(rig: ContinuingRig) -> None:
    rig.engine.fates = [Fate(2, "none")]
    assert is_error(rig.text())
    assert len(rig.engine.paths) == 1


def test_an_engine_that_does_not_mark_is_not_continued(rig: ContinuingRig) -> None:
    rig.engine.continues = False
    rig.engine.answer = lambda body: stream([chunk("a"), chunk("b")])
    assert is_error(rig.text())
    assert len(rig.engine.paths) == 1


def test_a_stream_never_goes_on_at_another_deployment(rig: ContinuingRig) -> None:
    """Green is there, and would answer a new request at once."""
    traffic = {"blue": 100, "green": 0}
    endpoints = {"chat": {**rig.config["endpoints"]["chat"], "traffic": traffic, "fallback": ["green"]}}
    rig.config["deployments"]["green"] = {"app": "green", "model": "m"}
    rig.change({"wait_s": 0.3}, endpoints=endpoints)
    rig.engine.fates = [Fate(2), *[Fate(how="absent")] * 9]
    assert is_error(rig.text())
    assert rig.green.paths == []


def test_all_calls_have_one_id_and_the_next_one_goes_to_another_replica(rig: ContinuingRig) -> None:
    snapshot = rig.router.state.snapshot
    assert snapshot is not None
    origin, _, prefix = snapshot.targets["blue"].url.partition("/deployments")
    origins = origin, origin.replace("127.0.0.1", "localhost")
    rig.router.state.balancer.update({"blue": [Address(each, each, f"/deployments{prefix}") for each in origins]})
    rig.engine.fates = [Fate(2)]
    rig.text()
    first, second = rig.engine.headers
    assert first["x-request-id"] == second["x-request-id"]
    assert first["host"] != second["host"]
    assert rig.engine.requests[0] == rig.engine.requests[1]


FORCED: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 9}


def test_a_whole_answer_that_is_collected_goes_on(rig: ContinuingRig) -> None:
    def ask() -> httpx.Response:
        return rig.client.post("/v1/chat/completions", json={"model": "chat", "messages": ASKS, **FORCED})

    undisturbed = ask().json()
    assert len(rig.engine.paths) == 1
    for fate in (Fate(2), Fate(3, "error"), Fate(2, "handover"), Fate(1, "half")):
        rig.engine.fates = [fate]
        assert {**ask().json(), "id": 0} == {**undisturbed, "id": 0}, fate
    assert rig.metric("switchyard_retries_total") == 0


def test_a_whole_answer_that_kills_engines_kills_two(rig: ContinuingRig) -> None:
    rig.engine.fates = [Fate(2), Fate(0), Fate(2)]
    body = {"model": "chat", "messages": ASKS, **FORCED}
    assert rig.client.post("/v1/chat/completions", json=body).status_code == 502
    assert rig.client.post("/v1/chat/completions", json=body).status_code == 422
    assert rig.engine.fates == [Fate(2)]


def test_a_death_counts_for_the_breaker_and_a_hand_over_does_not(rig: ContinuingRig) -> None:
    streams = rig.engine.answer
    rig.engine.answer = lambda body: streams(body) if body.get("stream") else refuse(500, "unhealthy")(body)
    deaths: list[tuple[Fate, int]] = [(Fate(2, "handover"), 0), (Fate(2, "closed"), 1)]
    for death, is_open in deaths:
        for _ in range(FAULTS_IN_A_ROW):
            rig.engine.fates = [death, *[Fate(how="busy")] * 3]
            rig.text()
        wait_until(partial(rig.breaker_is, is_open))


def test_after_two_deaths_in_a_minute_a_check_comes_first(rig: ContinuingRig) -> None:
    now = [0.0]
    rig.router.state.fuse = Fuse(lambda: now[0])
    undisturbed = plain(rig.text())
    checks = iter([refuse(500, "unhealthy"), chat])
    streams = rig.engine.answer
    rig.engine.answer = lambda body: streams(body) if body.get("stream") else next(checks)(body)
    for moment in (0.0, 30.0):
        now[0] = moment
        rig.engine.fates = [Fate(2)]
        rig.engine.requests.clear()
        assert plain(rig.text()) == undisturbed
    assert [bool(body.get("stream")) for body in rig.engine.requests] == [True, False, False, True]


def test_limits_and_usage_count_the_prompt_and_each_token_once(rig: ContinuingRig) -> None:
    rig.change(access={"limits": {"default": {"tokens_per_minute": 100_000}}})

    left = []
    for fates in ([], [Fate(2)], [Fate(3, "handover"), Fate(1)]):
        rig.engine.fates = fates
        assert '"completion_tokens":3' in rig.text().replace(" ", "")
        answer = rig.client.post("/v1/chat/completions", json={"model": "chat", "messages": ASKS, "max_tokens": 1})
        left.append(int(answer.headers["x-ratelimit-remaining-tokens"]))
    assert left[0] - left[1] == left[1] - left[2]
    wait_until(lambda: rig.metric("gen_ai_client_token_usage_tokens_sum") == 6 * 12)


def test_the_ledger_has_the_moves_the_pause_and_the_first_engines_failure(rig: ContinuingRig) -> None:
    rig.change(endpoints={"chat": {**rig.config["endpoints"]["chat"], "ledger": "always"}})
    for fates in ([], [Fate(2), Fate(how="busy")], [Fate(2, "error")], [Fate(2, "handover")], [Fate(2), Fate(1)]):
        rig.engine.fates = fates
        rig.text()
    rows = rig.keeper.wait_for(rows=5)
    assert [row.item.moves for row in rows] == [0, 1, 1, 1, 1]
    assert [row.item.status for row in rows] == [200] * 5
    errors = [Failure.NONE, Failure.INCOMPLETE, Failure.INCOMPLETE, Failure.NONE, Failure.INCOMPLETE]
    assert [row.error for row in rows] == errors
    assert {row.served for row in rows} == {row.assigned for row in rows} == {"blue"}
    pauses = [row.item.pause_s for row in rows]
    assert pauses[0] == 0 < min(pauses[1:])
    assert pauses[1] > 0.15, "it waited twice"
    longest = [row.item.itl_max_s + 0.001 for row in rows]  # the event loop's clock counts milliseconds
    assert all(gap >= pause for gap, pause in list(zip(longest, pauses, strict=True))[1:4]), (longest, pauses)


def test_a_continued_stream_is_two_calls_in_its_trace_and_one_line_in_the_log(
    rig: ContinuingRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    with receiving() as (collector, url):
        rig.change(tracing={"endpoint": url, "percent": 100})
        rig.engine.fates = [Fate(2)]
        answer = rig.ask()
        span, first, second = collector.of(answer.headers["x-request-id"])
        rig.change(tracing={"endpoint": url, "percent": 0})
    assert (span.failed, first.failed, second.failed) == (False, True, False)
    assert first.attributes["error.type"] == "broken"
    assert span.attributes["switchyard.moves"] == 1
    assert span.attributes["switchyard.pause"] > 0
    parents = [headers["traceparent"].split("-")[2] for headers in rig.engine.headers]
    assert parents == [first.id, second.id]
    (moved,) = [vars(line)["fields"] for line in caplog.records if getattr(line, "event", "") == "stream_moved"]
    assert (moved["reason"], moved["outcome"], moved["deployment"]) == ("closed", "continued", "blue")
    assert 0 <= moved["noticed_ms"] < moved["pause_ms"]


def test_a_stream_that_finds_no_successor_has_no_call_of_one_in_its_trace(
    rig: ContinuingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    with receiving() as (collector, url):
        rig.change({"wait_s": 0.01}, tracing={"endpoint": url, "percent": 100})  # less than the first pause
        for how in ("closed", "handover"):
            rig.engine.fates = [Fate(2, how)]
            span, call = collector.of(rig.ask().headers["x-request-id"])
            assert (span.failed, call.failed) == (True, True)
            assert call.times[1] <= span.times[-1]
        rig.change(tracing={"endpoint": url, "percent": 0})
    assert len(rig.engine.headers) == 2


def test_a_client_cannot_ask_for_the_rest_of_a_stream(rig: ContinuingRig) -> None:
    """Neither with the internal header, nor with a parameter for it: it would put words into the model's mouth."""
    for name, (path, body) in STREAMS.items():
        for content in (b"", b"\5\0\0\0"):
            sent = json.dumps({"model": "chat", "stream": True, **body}).encode() + content
            headers = {CONTINUATION_HEADER: "1", "content-type": "application/json"}
            answer = rig.client.post(path, content=sent, headers=headers)
            assert (answer.status_code == 200) == (content == b""), (name, answer.text)
            assert CONTINUATION_HEADER not in answer.headers
    assert {headers.get(CONTINUATION_HEADER) for headers in rig.engine.headers} <= {None, "new"}
    assert set(map(str, rig.engine.known)) == {"None"}


def resumed(rig: ContinuingRig, name: str, tokens: Any, **fields: Any) -> httpx.Response:
    return rig.ask(name, resume={"token_ids": tokens}, **fields)


@pytest.mark.parametrize("name", ["openai chat", "openai completions"])
def test_a_client_gets_the_rest_of_a_stream_that_broke_off_with_its_router(rig: ContinuingRig, name: str) -> None:
    undisturbed = plain(rig.text(name)).split("\n\n")
    for have in (1, 2):
        tokens = [70 + number for number in range(have)]
        answer = resumed(rig, name, tokens, return_token_ids=True)
        assert answer.status_code == 200, answer.text
        assert plain(answer.text).split("\n\n") == undisturbed[have:]
        assert rig.engine.known[-1] == tokens
        assert "resume" not in rig.engine.requests[-1]
    rig.engine.fates = [Fate(1)]
    assert plain(resumed(rig, name, [70]).text).split("\n\n") == undisturbed[1:], "it outlives its engine, too"
    assert rig.engine.known[-1] == [70, 71]


def test_a_resumed_stream_names_its_deployment_where_there_are_several(rig: ContinuingRig) -> None:
    endpoints = {"chat": {**rig.config["endpoints"]["chat"], "traffic": {"blue": 50, "green": 50}}}
    rig.config["deployments"]["green"] = {"app": "green", "model": "m"}
    rig.change(endpoints=endpoints)
    answer = resumed(rig, "openai chat", [70])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "resume")
    assert "azureml-model-deployment" in answer.text
    assert resumed(rig, "openai chat", [70], model="blue").status_code == 200


BAD_RESUMES: list[tuple[Any, dict[str, Any], str]] = [
    ({"token_ids": []}, {}, "resume.token_ids"),
    ({"token_ids": [-1]}, {}, "resume.token_ids[0]"),
    ({"token_ids": [70, 2**32]}, {}, "resume.token_ids[1]"),
    ({"token_ids": [70, 2**31]}, {}, "resume.token_ids[1]"),
    ({"token_ids": ["a"]}, {}, "resume.token_ids[0]"),
    ({"token_ids": "ab"}, {}, "resume.token_ids"),
    ({"tokens": [70]}, {}, "resume.to"),
    ({}, {}, "resume.token_ids"),
    ([70], {}, "resume"),
    ({"token_ids": [70]}, {"stream": False}, "resume"),
    ({"token_ids": [70]}, {"n": 2}, "resume"),
    ({"token_ids": [70, 71]}, {"max_tokens": 2}, "resume.token_ids"),
]


@pytest.mark.parametrize("name", ["openai chat", "openai completions"])
@pytest.mark.parametrize(("resume", "fields", "param"), BAD_RESUMES)
def test_what_cannot_be_resumed_is_refused_by_its_field(
    rig: ContinuingRig, name: str, resume: Any, fields: dict[str, Any], param: str
) -> None:
    path, body = STREAMS[name]
    options = {} if fields.get("stream") is False else {"stream": True}
    body = {key: value for key, value in body.items() if key != "stream_options"}
    answer = rig.client.post(path, json={"model": "chat", **body, **options, **fields, "resume": resume})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)
    assert rig.engine.requests == []


def test_a_deployment_that_does_not_continue_streams_resumes_none(rig: ContinuingRig) -> None:
    rig.engine.continues = False
    answer = resumed(rig, "openai chat", [70])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "resume")
    assert rig.engine.requests == []


def test_the_content_filter_reads_what_is_resumed(rig: ContinuingRig) -> None:
    rig.change(endpoints={"chat": {**rig.config["endpoints"]["chat"], "content_filter": {"patterns": ["hello w"]}}})
    answer = resumed(rig, "openai chat", MODEL.encode("hello world"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter")
    assert answer.json()["error"]["param"] == "resume"
    assert rig.engine.requests == []


@pytest.mark.parametrize("name", [name for name in STREAMS if name not in ("openai chat", "openai completions")])
def test_other_dialects_refuse_to_resume_by_name(rig: ContinuingRig, name: str) -> None:
    answer = resumed(rig, name, [70])
    assert "resume" in answer.text
    assert answer.status_code >= 400 or name == "tgi"
    assert rig.engine.requests == []


class BreakingProxy:
    """An ASGI application in front of a router that dies under the first streams: after so many chunks of each."""

    def __init__(self, url: str, after: list[int]) -> None:
        self._url, self._after = url, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        left = self._after.pop(0) if self._after else -1
        async with (
            httpx.AsyncClient() as client,
            client.stream(
                "POST", self._url + scope["path"], content=body, headers={"content-type": "application/json"}
            ) as response,
        ):
            headers = [(b"content-type", response.headers["content-type"].encode())]
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    if left == 0:
                        return  # an unfinished response makes the server break the connection
                    left -= 1
                await send({"type": "http.response.body", "body": f"{line}\n".encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def chat_with_ids(body: dict[str, Any]) -> Response:
    """vLLM's chat with `return_token_ids`: the ids are those of the groups that a replica makes of it."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    texts = [("Hel", [70]), ("lo", [71]), (" you", [72])]
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None, "token_ids": ids}
        for text, ids in texts
    ]
    choices.append({"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "token_ids": [73, 1000]})
    return stream([*(frame({**head, "choices": [choice]}) for choice in choices), "data: [DONE]\n\n"])


@pytest.mark.parametrize("after", [[1], [3], [0, 2], [1, 1], [2, 0]])
def test_the_helper_of_the_docs_brings_the_whole_answer(
    rig: ContinuingRig, servers: ServerPool, after: list[int]
) -> None:
    rig.engine.answer = chat_with_ids
    (block,) = [block for block in blocks(ROOT / "docs/operate/reliability.md") if "def chunks(" in block.code]
    helper: dict[str, Any] = {}
    exec(compile(block.code.partition("\n\nclient = ")[0], block.id, "exec"), helper)
    proxy = BreakingProxy(str(rig.client.base_url).rstrip("/"), after)
    with servers.host(Starlette(routes=[Mount("/", proxy)])) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        got = [chunk.choices[0] for chunk in helper["chunks"](client, model="chat", messages=ASKS)]
    assert "".join(choice.delta.content or "" for choice in got) == "Hello you"
    assert [choice.finish_reason for choice in got] == [None, None, None, "stop"]
    assert {body["model"] for body in rig.engine.requests} == {"m"}


def test_a_client_that_leaves_during_an_outage_has_left_no_engine(rig: ContinuingRig) -> None:
    """However soon it leaves. Where an engine runs, it has left."""
    rig.engine.answer = lambda body: stream([30.0])

    def error(id: str) -> str | None:
        requests = rig.client.get("/api/requests").json()["requests"]
        return next((one["error"] for one in requests if one["id"] == id and not one["running"]), None)

    for id, replicas, said in (("left", {RUNNING: 1}, "client_gone"), ("lost", {"STARTING": 1}, "no_engine")):
        rig.router.state.running.last = Replicas({"blue": replicas}, {})
        with pytest.raises(httpx.TimeoutException):
            rig.client.post(
                "/v1/chat/completions",
                json={"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hi"}]},
                headers={"x-request-id": id},
                timeout=0.3,
            )
        assert wait_until(lambda id=id: error(id)) == said  # type: ignore[misc]
