"""Deployments that answer with status 200 and anything: clients get an error in their dialect's form."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from app.internal_api import MODEL_PATH
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.hostile.budget import attempt
from tests.router.hostile.client import Client, Reply
from tests.router.hostile.engine import ANSWERS, compact
from tests.router.hostile.errors import dialects, in_events
from tests.router.hostile.strategies import places
from tests.support.engine.fake_engine import CARD, CONTEXT, USAGE, stream
from tests.support.processes.servers import serve

SAY: Mapping[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TOKENS = {"tokens": [5, 6, 7], "count": 3, "max_model_len": CONTEXT}
AZURE = "?api-version=2024-05-01-preview"


@dataclass(frozen=True)
class Ask:
    """A request, the dialect of its errors, and the first event of a valid stream of the engine's."""

    dialect: str
    path: str
    body: Mapping[str, Any]
    first: bytes | None = None
    breaks: bool = False
    """The dialect has no error event: a stream that fails is cut off."""

    @property
    def name(self) -> str:
        return f"{self.path} {json.dumps(self.body)}"


def event(**fields: Any) -> bytes:
    name = b"event: %b\n" % fields["type"].encode() if "type" in fields else b""
    return name + b"data: " + compact(fields) + b"\n\n"


CHAT = event(id="c", object="chat.completion.chunk", created=1, model="m", choices=[
    {"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None},
])  # fmt: skip
TEXT = event(id="c", object="text_completion", created=1, model="m", choices=[
    {"index": 0, "text": "Hi", "finish_reason": None, "token_ids": [5], "prompt_token_ids": [5], "logprobs": None},
])  # fmt: skip
RESPONSE = event(type="response.output_text.delta", delta="Hi", item_id="m", output_index=0, sequence_number=1)
MESSAGE = event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
LONG = {"max_tokens": 5}
A_REGEX = {"type": "regex", "value": "a+"}
ASKS = [
    Ask("openai", "/v1/chat/completions", SAY, CHAT),
    Ask("openai", "/v1/chat/completions", {**SAY, "n": 2}, CHAT),
    Ask("openai", "/v1/completions", {"prompt": "hi"}, TEXT),
    Ask("openai", "/v1/completions", {"prompt": ["hi", "ho"], "n": 2}, TEXT),
    Ask("openai", "/v1/responses", {"input": "hi"}, RESPONSE),
    Ask("openai", "/v1/embeddings", {"model": "embed", "input": "hi"}),
    Ask("openai", "/v1/embeddings", {"model": "embed", "input": ["hi", "ho"], "encoding_format": "base64"}),
    Ask("openai", "/v1/rerank", {"model": "embed", "query": "a", "documents": ["b"]}),
    Ask("openai", "/v2/rerank", {"model": "embed", "query": "a", "documents": ["b"], "return_documents": True}),
    Ask("openai", "/score", {"model": "embed", "queries": "a", "documents": ["b"]}),
    Ask("openai", "/v2/embed", {"model": "embed", "texts": ["hi"]}),
    Ask("openai", "/pooling", {"model": "embed", "input": "hi"}),
    Ask("openai", "/classify", {"model": "embed", "input": "hi"}),
    Ask("openai", "/detokenize", {"model": "chat", "tokens": [5]}),
    Ask("openai", "/tokenize", {"model": "chat", "prompt": "a"}),
    Ask("anthropic", "/v1/messages", {**SAY, **LONG}, MESSAGE),
    Ask("anthropic", "/v1/messages/count_tokens", SAY),
    Ask("azure", f"/azure/chat/completions{AZURE}", SAY, CHAT, breaks=True),
    Ask("azure", f"/azure/completions{AZURE}", {"prompt": "hi", **LONG}, TEXT, breaks=True),
    Ask("azure", f"/azure/embeddings{AZURE}", {"model": "embed", "input": ["hi"]}),
    Ask("databricks", "/serving-endpoints/chat/invocations", SAY, CHAT),
    Ask("databricks", "/serving-endpoints/chat/invocations", {"prompt": "hi", **LONG}, TEXT),
    Ask("databricks", "/serving-endpoints/responses", {"model": "chat", "input": "hi"}, RESPONSE),
    Ask("databricks", "/serving-endpoints/embed/invocations", {"input": "hi"}),
    Ask("tgi", "/tgi/chat/v1/chat/completions", SAY, CHAT),
    Ask("tgi", "/tgi/chat/v1/completions", {"prompt": "hi", **LONG}, TEXT),
    Ask("tgi", "/tgi/embed/embed", {"inputs": "hi"}),
    Ask("tgi", "/tgi/embed/embed_all", {"inputs": "hi"}),
    Ask("tgi", "/tgi/embed/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    Ask("tgi", "/tgi/embed/rerank", {"query": "a", "texts": ["b"]}),
    Ask("tgi", "/tgi/chat/generate", {"inputs": "hi", "parameters": {"max_new_tokens": 5}}),
    Ask("tgi", "/tgi/chat/generate_stream", {"inputs": "hi", "parameters": {"max_new_tokens": 5}}, TEXT),
    Ask("tgi", "/tgi/chat/generate", {"inputs": "hi", "parameters": {"max_new_tokens": 5, "grammar": A_REGEX}}),
    Ask("friendli", "/dedicated/v1/chat/completions", SAY, CHAT),
    Ask("friendli", "/dedicated/v1/completions", {"prompt": "hi", **LONG}, TEXT, breaks=True),
]

JSON, EVENTS = "application/json", "text/event-stream"
VALID: Mapping[str, Callable[[dict[str, Any]], Response]] = {
    **ANSWERS,
    "/v1/rerank": lambda body: JSONResponse(
        {"id": "r", "results": [{"index": 0, "document": {"text": "b"}, "relevance_score": 0.5}], "usage": USAGE}
    ),
    "/pooling": lambda body: JSONResponse({"id": "p", "data": [{"index": 0, "object": "pooling", "data": [0.5, 1]}]}),
    "/classify": lambda body: JSONResponse({"id": "c", "data": [{"index": 0, "label": "a", "probs": [0.5, 0.5]}]}),
    "/detokenize": lambda body: JSONResponse({"prompt": "hi"}),
    "/score": lambda body: JSONResponse({"id": "s", "data": [{"index": 0, "object": "score", "score": 0.5}]}),
}
WRONG: Sequence[Any] = (5, -1.5, True, "x", [], [5], {}, {"a": 5}, 1e999)
FOREIGN = ("kv_transfer_params", "prompt_logprobs", "internal")
"""Names of members that no request here asks for."""
DONE = "[DONE]"


@dataclass(frozen=True)
class Damage:
    """What is wrong with a valid answer: at one of its values is another, `wrong`, one of its lists has an item twice
    or lacks one, an object has a member more, or in a stream an event is missing or comes after the end. `at`: the
    place, a share of all of them. None is wrong with the answer of "nothing"."""

    kind: str = "nothing"
    at: float = 0.0
    wrong: Any = None

    async def __call__(self, valid: Response) -> Response:
        if self.kind == "no route":
            return Response(self.wrong, 404, media_type="text/html" if self.wrong.startswith(b"<") else JSON)
        if not isinstance(valid, StreamingResponse):
            return Response(_dumped(self._value(json.loads(bytes(valid.body)))), media_type=JSON)
        parts = [part.encode() if isinstance(part, str) else bytes(part) async for part in valid.body_iterator]
        events = b"".join(parts).decode().split("\n\n")[:-1]
        names, datas = zip(*(event.rpartition("data: ")[::2] for event in events), strict=True)
        values = self._value([data if data == DONE else json.loads(data) for data in datas])
        frames = [
            f"{name}data: {value if value == DONE else _dumped(value)}\n\n"
            for name, value in zip(names, values, strict=False)
        ]
        if self.kind == "missing":
            del frames[int(self.at * len(frames))]
        if self.kind == "late":
            frames.append(frames[int(self.at * len(frames))])
        return stream(frames)

    def _value(self, valid: Any) -> Any:
        match self.kind:
            case "wrong value":
                self._put(valid, places(valid), self.wrong)
            case "twice" | "one less":
                lists = [place for place in places(valid) if isinstance(_at(valid, place), list)]
                if lists:
                    items = _at(valid, self._choice(lists))
                    items[-1:] = items[-1:] * 2 if self.kind == "twice" else []
            case "more":
                objects = [item for item in (valid if isinstance(valid, list) else [valid]) if isinstance(item, dict)]
                inner = self._choice(objects)
                inner = next((inner[name] for name in ("response", "message") if name in inner), inner)
                inner[FOREIGN[int(self.at * 1000) % len(FOREIGN)]] = {"host": "SECRET"}
        return valid

    def _put(self, valid: Any, ways: Sequence[Sequence[Any]], wrong: Any) -> None:
        *way, last = self._choice(ways)
        _at(valid, way)[last] = wrong

    def _choice(self, among: Sequence[Any]) -> Any:
        return among[int(self.at * len(among))]


def _dumped(value: Any) -> str:
    """JSON, with a number that is infinite once it is read."""
    return json.dumps(value).replace("Infinity", "1e999")


def _at(value: Any, way: Sequence[Any]) -> Any:
    for key in way:
        value = value[key]
    return value


WORDS = {
    "finish_reason": {"stop", "length", "tool_calls", "content_filter", "eos_token", "stop_sequence"},
    "finishReason": {"stop", "length", "tool_calls", "content_filter"},
    "stop_reason": {"end_turn", "max_tokens", "stop_sequence", "tool_use"},
}
"""A member's words, in any dialect. vLLM's `stop_reason` of a choice is any text."""
COUNTED = {"choices", "data", "results", "embedding", "embeddings", "float", "probs"}
"""Lists of parts, whose number the request determines, and vectors, which are not empty."""


def counts(value: Any, name: str = "data") -> Iterator[int]:
    """The lengths of a whole answer's lists of COUNTED; of those with numbers, whether they have any."""
    if isinstance(value, list) and name in COUNTED:
        yield len(value) if value and isinstance(value[0], dict | list) else bool(value)
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from counts(inner, str(key))


def fits(value: Any, sample: Any, name: str | None = None) -> bool:
    """Whether a value has the types of a valid one and its words, and repeats the client's documents. Members may be
    missing, and null is a value of unknown type."""
    if isinstance(sample, dict):
        if name == "document" and value != sample:
            return value is None or value == {"text": None} or value == {}
        return isinstance(value, dict) and all(
            fits(value[name], sample[name], name) for name in sample.keys() & value.keys()
        )
    if isinstance(sample, list):
        return isinstance(value, list) and (not sample or all(any(fits(item, one) for one in sample) for item in value))
    if isinstance(sample, str) and name in WORDS and sample in WORDS[name]:
        return value is None or value in WORDS[name]
    if isinstance(sample, bool) or sample is None or value is None:
        return sample is None or value is None or isinstance(value, bool)
    kinds = (int, float) if isinstance(sample, int | float) else type(sample)
    return isinstance(value, kinds) and not isinstance(value, bool)


def events_of(reply: Reply) -> list[Any]:
    """The data of a stream's events; ``[DONE]`` as a text."""
    datas = [line.removeprefix(b"data:").strip() for line in reply.body.splitlines() if line.startswith(b"data:")]
    return [DONE if data == DONE.encode() else json.loads(data) for data in datas]


def is_well_formed(reply: Reply, valid: Reply) -> bool:
    """Whether an answer has the types of the valid one, and ends as that does."""
    if reply.status != 200 or not reply.complete:
        return False
    if b"SECRET" in reply.body or b"Infinity" in reply.body:
        return False
    if reply.headers["content-type"].startswith(JSON):
        whole, sample = json.loads(reply.body), json.loads(valid.body)
        return fits(whole, sample) and [*counts(whole)] == [*counts(sample)]
    events, samples = events_of(reply), events_of(valid)
    if not events or not (fits(events[-1], samples[-1]) and reasons(events) >= reasons(samples)):
        return False
    return all(any(fits(event, sample) for sample in samples) for event in events)


def reasons(events: Sequence[Any]) -> int:
    """The number of reasons for an end in a stream, by any of their names."""
    text = json.dumps(events)
    return sum(text.count(f'"{name}": "') for name in ("finish_reason", "stop_reason", "generated_text"))


@dataclass(frozen=True)
class Garbage:
    """What an engine sends as the body of its answer."""

    name: str
    body: bytes
    media_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    of_stream: bool | None = None
    """Whether it is for streams, or for whole answers; None: for both."""


SHAPES = (b"[]", b"{}", b'"text"', b"5", b"null", b"true", b'{"choices":5}', b'{"choices":[5]}', b'{"data":{}}',
          b'{"output":5}', b'{"content":"x"}', b'{"results":{}}', b'{"object":"error","message":"x"}')  # fmt: skip
WHOLE = [
    Garbage("html", b"<html><h1>It works!</h1></html>", "text/html"),
    Garbage("html as json", b"<html><h1>It works!</h1></html>"),
    Garbage("empty", b""),
    Garbage("truncated", b'{"id":"c","choices":[{"index":0,"message":{"role":"assist', of_stream=False),
    Garbage("truncated at a bracket", b'{"id":"c","choices":[{"index":0,"message":{"a":{}}', of_stream=False),
    Garbage("another charset", '{"choices":[{"message":{"content":"é"},"text":"é"}]}'.encode("latin-1")),
    Garbage("utf-16", '{"choices":[{"message":{"content":"a"},"text":"a"}]}'.encode("utf-16")),
    Garbage("gzip", b"\x1f\x8b\x08\x00" + bytes(range(128)), headers={"content-encoding": "gzip"}),
    Garbage("huge", b"<p>" * 700_000, "text/html"),
    Garbage("huge json", b'{"choices":[' + b"{}," * 300_000 + b"5]}"),
    Garbage("plain text", b'{"choices":[{"message":{},"text":"a"}],"data":[{}]}', "text/plain", of_stream=False),
    Garbage("events", CHAT + b"data: [DONE]\n\n", EVENTS, of_stream=False),
    *(Garbage(f"shape {shape.decode()}", shape, of_stream=False) for shape in SHAPES),
]
FRAMES = [
    Garbage("a line", b"garbage\n\n"),
    Garbage("html", b"<html>\n\n</html>\n\n"),
    Garbage("no json", b"data: {not json}\n\n"),
    Garbage("cut", CHAT[:40] + b"\n\n"),
    Garbage("another charset", b'data: {"choices":[{"index":0,"delta":{"content":"\xe9"},"text":"\xe9"}]}\n\n'),
    Garbage("a control character", b'data: {"choices":[{"index":0,"delta":{"content":"\x01"}}]}\n\n'),
    Garbage("two lines", b"<b>\n" + CHAT),
    Garbage("no end", b"data: {\n"),
    *(Garbage(f"shape {shape.decode()}", b"data: " + shape + b"\n\n") for shape in SHAPES),
]


class Liar:
    """An engine that says 200 and sends `body` to every request but lookups; its model card and token counts are right.

    `good`: the valid events before the garbage. With a `damage` it sends its valid answer, damaged.
    """

    def __init__(self) -> None:
        self.damage: Damage | None = None
        self.garbage = WHOLE[0]
        self.good = b""
        self.calls = 0

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", lambda request: Response()),
                Route(MODEL_PATH, lambda request: JSONResponse(CARD)),
                Route("/{path:path}", self._call, methods=["POST"]),
            ]
        )

    async def _call(self, request: Request) -> Response:
        body = await request.json()
        if request.url.path.endswith("/tokenize") and body.get("prompt") != "a":
            return JSONResponse(TOKENS)
        self.calls += 1
        if self.damage is not None:
            return await self.damage(VALID["/" + request.path_params["path"]](body))
        garbage, is_stream = self.garbage, bool(body.get("stream"))
        media_type = garbage.media_type or (EVENTS if is_stream else JSON)
        if self.good:
            return stream([self.good, garbage.body])
        return Response(garbage.body, headers={"content-type": media_type, **garbage.headers})


@dataclass
class Lied:
    """A router in front of a liar."""

    liar: Liar
    router: Router
    client: Client

    def ask(self, ask: Ask, *, stream: bool) -> Reply:
        body = {"model": "chat", **ask.body, **({"stream": True} if stream else {})}
        body.pop("model" if ask.path.endswith("invocations") else "", None)
        reply = self.client.request("POST", ask.path, compact(body), [(b"content-type", b"application/json")])
        assert self.liar.calls > 0, (reply.status, reply.body)
        self.liar.calls = 0
        return reply

    def faults(self) -> float:
        """The failed attempts that the metrics have counted."""
        text = self.client.request("GET", "/metrics").body.decode()
        begins = ("switchyard_errors_total{", "switchyard_retries_total{")
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(begins))


@pytest.fixture(scope="module")
def lied() -> Iterator[Lied]:
    liar, router = Liar(), Router(RuntimeEnvironment(), random=Random(7))
    with serve(Starlette(routes=[Mount("/e", liar.app)])) as engine:
        tasks = {"chat": ["chat", "completions", "responses"], "embed": ["embeddings", "rerank", "classify"]}
        router.reconfigure(
            {
                "endpoints": {name: {"tasks": its, "traffic": {f"{name}-1": 100}} for name, its in tasks.items()},
                "deployments": {
                    f"{name}-1": {"url": f"{engine}/e", "model": "m", "tasks": its} for name, its in tasks.items()
                },
                "defaults": {"chat": "chat", "completions": "chat", "responses": "chat", "embeddings": "embed"},
            }
        )
        with serve(router.app) as url:
            host, _, port = url.removeprefix("http://").partition(":")
            client = Client(host, int(port))
            yield Lied(liar, router, client)
            client.close()


def is_error(reply: Reply, ask: Ask) -> bool:
    """Whether the client sees a failure, in the form of its dialect."""
    if reply.status >= 500 or (ask.dialect == "tgi" and reply.status == 424):
        return ask.dialect in dialects(reply)
    return ask.dialect in in_events(reply.body)  # TGI's streams have status 200 whatever happens


def deployment(ask: Ask) -> str:
    return "embed-1" if ask.body.get("model") == "embed" or "/embed/" in ask.path else "chat-1"


@contextmanager
def counted(lied: Lied, ask: Ask, count: int) -> Iterator[None]:
    """Asserts that the block's requests are failures of the deployment, for the metrics and its breaker."""
    before = lied.faults()
    yield
    assert lied.faults() >= before + count
    breaker = lied.router.state.health.breakers.of(deployment(ask))
    assert breaker.faults > 0 or breaker.is_open


def is_event(frame: bytes) -> bool:
    """Whether a frame has one line of data, and no other but the event's name, which is the data's type."""
    *names, data = frame.split(b"\n")
    if not (names and data.startswith(b"data: {")):
        return not names and (not data or data.startswith((b"data:", b"{")))
    return names == [b"event: " + json.loads(data[6:]).get("type", "").encode()]


@pytest.mark.parametrize("ask", [ask for ask in ASKS if ask.first], ids=lambda ask: f"{ask.dialect} {ask.name}")
@pytest.mark.parametrize("line", [b"event: error", b"event: evil", b"event:", b"id: LEAK", b"retry: 1", b"LEAK: 1"])
def test_an_event_has_no_lines_but_those_of_its_dialect(lied: Lied, ask: Ask, line: bytes) -> None:
    """First of a stream, and later: clients would obey such a line."""
    assert ask.first is not None
    named, _, data = ask.first.partition(b"data: ")
    frames = [line + b"\n" + b"data: " + data, b"data: " + data.removesuffix(b"\n") + line + b"\n\n"]
    if named:
        frames.append(named + line + b"\n" + b"data: " + data)
    for good in (b"", ask.first):
        for frame in frames:
            lied.liar.good, lied.liar.garbage = good, Garbage("lines", frame, EVENTS)
            reply = lied.ask(ask, stream=True)
            assert all(map(is_event, reply.body.split(b"\n\n"))), reply.body
            assert is_error(reply, ask) or (ask.breaks and not reply.complete), (frame, reply)


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
def test_a_whole_answer_that_is_none_is_an_error(lied: Lied, ask: Ask) -> None:
    lied.liar.good = b""
    kinds: Sequence[bool] = [True] if "generate_stream" in ask.path else [False, True] if ask.first else [False]
    for streamed in kinds:
        garbage = [answer for answer in WHOLE if answer.of_stream in (None, streamed)]
        with counted(lied, ask, len(garbage)):
            for lied.liar.garbage in garbage:
                reply = lied.ask(ask, stream=streamed)
                assert is_error(reply, ask), (lied.liar.garbage.name, reply.status, reply.body[:200])
                assert b"<" not in reply.body


@pytest.mark.parametrize("ask", [ask for ask in ASKS if ask.first], ids=lambda ask: ask.name)
def test_a_stream_that_begins_with_garbage_is_an_error(lied: Lied, ask: Ask) -> None:
    lied.liar.good = b""
    with counted(lied, ask, len(FRAMES)):
        for lied.liar.garbage in FRAMES:
            reply = lied.ask(ask, stream=True)
            assert is_error(reply, ask), (lied.liar.garbage.name, reply.status, reply.body)


@pytest.mark.parametrize("ask", [ask for ask in ASKS if ask.first], ids=lambda ask: ask.name)
def test_garbage_in_a_stream_ends_it_with_an_error_event(lied: Lied, ask: Ask) -> None:
    assert ask.first is not None
    lied.liar.good = ask.first * 3
    with counted(lied, ask, len(FRAMES)):
        for lied.liar.garbage in FRAMES:
            reply = lied.ask(ask, stream=True)
            assert reply.status == 200
            lines = [line for line in reply.body.splitlines() if line and not line.startswith(b"event: ")]
            assert all(isinstance(json.loads(line.removeprefix(b"data:")), dict) for line in lines), "without [DONE]"
            assert not reply.complete if ask.breaks else ask.dialect in in_events(reply.body), reply.body


SHARE = 0.2
"""Of the cases of `attempt`."""


def test_a_damaged_answer_is_well_formed_or_an_error(lied: Lied) -> None:
    """The law: whatever an engine answers, a client gets an answer of its dialect or its dialect's error, and an error
    is the deployment's failure."""
    kinds = [(ask, streamed) for ask in ASKS for streamed in ([False, True] if ask.first else [False])]
    asked: dict[tuple[str, bool], Reply] = {}

    def check(case: tuple[tuple[Ask, bool], Damage]) -> None:
        (ask, streamed), damage = case
        if (ask.name, streamed) not in asked:
            lied.liar.damage = Damage()
            asked[ask.name, streamed] = valid = lied.ask(ask, stream=streamed)
            assert is_well_formed(valid, valid), valid
        lied.liar.damage = damage
        before = lied.faults()
        reply = lied.ask(ask, stream=streamed)
        if is_well_formed(reply, asked[ask.name, streamed]):
            return
        assert (ask.breaks and not reply.complete) or is_error(reply, ask), (reply, asked[ask.name, streamed])
        assert DONE.encode() not in reply.body
        assert lied.faults() > before, "it counts as the deployment's"

    ats = st.floats(0, 1, exclude_max=True)
    damages = st.one_of(
        st.builds(Damage, st.just("wrong value"), ats, st.sampled_from(WRONG)),
        st.builds(Damage, st.sampled_from(["missing", "late", "twice", "one less", "more"]), ats),
    )
    try:
        attempt(st.tuples(st.sampled_from(kinds), damages), SHARE, check)
    finally:
        lied.liar.damage = None


@pytest.mark.parametrize("page", [b"<html><h1>Not Found</h1></html>", b'{"detail":"Not Found"}'])
def test_an_engines_missing_route_is_not_the_callers_fault(lied: Lied, page: bytes) -> None:
    for ask in ASKS:
        lied.liar.damage = Damage("no route", wrong=page)
        try:
            for streamed in [False, True] if ask.first else [False]:
                reply = lied.ask(ask, stream=streamed)
                assert is_error(reply, ask), (ask.name, reply)
        finally:
            lied.liar.damage = None
