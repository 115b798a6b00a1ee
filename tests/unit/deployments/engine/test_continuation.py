"""The replica's side of streams that outlive their engine, with an API layer and an engine of a few lines."""

import asyncio
import json
import uuid
import warnings
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Scope

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own, when it is imported
    from vllm import CompletionOutput, RequestOutput, SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.exceptions import EngineDeadError

    from deployments.engine import continuation
    from deployments.engine.continuation import (
        PATHS,
        ContinuationMiddleware,
        ContinuingEngine,
        OpenStreams,
        OutputQueue,
        obstacle,
        why_not_continued,
    )
    from deployments.engine.scheduler import OUTPUT

from app.engine.errors import ENGINE_DIED
from app.exchange.stream import DeliveredStream
from app.internal_api import CONTINUATION_HEADER, CONTINUATION_MARKED, MARK_HAND_OVER, MARK_NONE
from app.upstream.client import EngineLost
from tests.support.engine.marked_streams import Answer, read

TOKENS = (7, 300, 8, 9, 10)


@dataclass
class Engine:
    """Generates TOKENS, after those that the request comes with. `then`: what happens in place of the next token."""

    then: Callable[[], Any] | None = None
    fails_after: int = len(TOKENS)
    sent_before: list[int] = field(default_factory=list)
    """How many messages had been sent whenever an output was asked for."""
    messages: list[Message] = field(default_factory=list)
    closed: int = 0

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        before = (params.extra_args or {}).get(OUTPUT, [])
        try:
            for number, token in enumerate([*before, *TOKENS[len(before) :]], 1):
                self.sent_before.append(len(self.messages))
                if number > self.fails_after and self.then is not None:
                    result = self.then()
                    if result is not None:
                        await result
                await asyncio.sleep(0)
                yield output(token, is_last=number == len(TOKENS))
        finally:
            self.closed += 1


def output(token: int, *, is_last: bool = False, reason: str | None = None) -> RequestOutput:
    choice = CompletionOutput(0, f"<{token}>", [token], None, None, reason or ("length" if is_last else None))
    return RequestOutput("1", None, [1], None, [choice], finished=is_last or reason is not None)


def parameters(**fields: Any) -> SamplingParams:
    return SamplingParams(output_kind=RequestOutputKind.DELTA, max_tokens=9, **fields)


@dataclass
class ApiLayer:
    """Writes a head, two events per output, and an end, as vLLM's servers do."""

    engine: Any
    answers: int = 1
    params: SamplingParams = field(default_factory=parameters)
    is_lazy: bool = False
    """Asks the engine only after its first event, as for `/v1/responses`."""
    body: bytes = b""

    async def answer(self, request: Request) -> Any:
        self.body = await request.body()
        if self.params.output_kind is not RequestOutputKind.DELTA:
            outputs = self.engine.generate("a", self.params, "1")
            return JSONResponse([one.outputs[0].text async for one in outputs])
        eager = None if self.is_lazy else [self.engine.generate("a", self.params, "1") for _ in range(self.answers)]
        return StreamingResponse(self._events(eager), media_type="text/event-stream")

    async def _events(self, eager: Any) -> AsyncIterator[str]:
        try:
            if self.is_lazy:
                yield event("created")
            for number in range(self.answers):
                outputs = eager[number] if eager else self.engine.generate("a", self.params, "1")
                async for one in outputs:
                    if one.outputs[0].finish_reason == "error":
                        raise RuntimeError("broken")
                    for part in ("text", "more"):
                        yield event(f"{part} {one.outputs[0].text} {continuation.UuidsOfStream().uuid4()}")
            yield event("usage")
        except VLLMValidationError:
            if self.is_lazy:
                raise
            yield event("refused")
        except RuntimeError as error:
            yield event(str(error))
        except EngineDeadError:
            yield event("Invalid data format received")  # as for `/v1/messages`
        yield event("[DONE]")


def event(text: str) -> str:
    return f"data: {json.dumps(text)}\n\n"


@dataclass
class Replica:
    """The middleware around the API layer, and one request to it at a time."""

    engine: Engine = field(default_factory=Engine)
    path: str = PATHS[0]
    layer: dict[str, Any] = field(default_factory=dict)
    streams: OpenStreams = field(default_factory=OpenStreams)
    continues: bool = True

    def __post_init__(self) -> None:
        self.api = ApiLayer(ContinuingEngine(self.engine, is_parsed=False), **self.layer)
        app = Starlette(routes=[Route(self.path, self.api.answer, methods=["POST"])])
        self.app = ContinuationMiddleware(app, streams=self.streams, continues=self.continues)
        self.messages = self.engine.messages

    async def ask(self, header: str | None = "new", body: bytes = b"{}", id: str = "r") -> Answer:
        """The answer, read as the router reads it."""
        del self.messages[:]
        headers = [(b"x-request-id", id.encode())]
        if header is not None:
            headers.append((CONTINUATION_HEADER.encode(), header.encode()))
        parts = [body[: len(body) // 2], body[len(body) // 2 :]]

        async def receive() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            await asyncio.sleep(3600)
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            self.messages.append(message)

        await self.app(scope(self.path, headers), receive, send)
        start, *rest = self.messages
        assert [message.get("more_body", False) for message in rest] == [True] * (len(rest) - 1) + [False]
        mark = dict(start["headers"]).get(CONTINUATION_HEADER.encode(), b"").decode()
        answer = Answer(start["status"], mark == CONTINUATION_MARKED)
        text = b"".join(message["body"] for message in rest)
        if answer.is_marked:
            read(text, answer)
        else:
            answer.rest = text
        return answer

    async def rest(self, tokens: tuple[int, ...], body: bytes = b"{}") -> Answer:
        """The answer to a continuation after these tokens."""
        return await self.ask(str(len(tokens)), body + array("I", tokens).tobytes())


def scope(path: str, headers: list[tuple[bytes, bytes]]) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": headers,
    }


async def test_each_output_is_a_group_and_the_last_has_the_end() -> None:
    replica = Replica()
    answer = await replica.ask()
    assert [group.tokens for group in answer.groups] == [[token] for token in TOKENS]
    assert [len(group.events) for group in answer.groups] == [2, 2, 2, 2, 4]
    assert answer.events[-2:] == ["usage", "[DONE]"]
    assert answer.rest == b""


@pytest.mark.parametrize("path", PATHS)
async def test_a_dead_engine_is_named_in_the_same_words_on_every_route(path: str) -> None:
    def die() -> None:
        raise EngineDeadError

    replica = Replica(Engine(then=die, fails_after=2), path=path)
    await replica.ask()
    router = DeliveredStream()
    router.begin({CONTINUATION_HEADER: CONTINUATION_MARKED})
    passed = b"".join(router.feed(message["body"]) for message in replica.messages[1:])
    assert b"Invalid data" not in passed
    with pytest.raises(EngineLost) as lost:
        router.end()
    assert lost.value.failure is not None
    assert lost.value.failure.message == ENGINE_DIED


async def test_no_event_waits_for_the_next_output() -> None:
    replica = Replica()
    await replica.ask()
    assert replica.engine.sent_before == [1, 2, 3, 4, 5]  # the head, and a group for each output before


async def test_without_the_header_nothing_changes() -> None:
    marked, unmarked = await Replica().ask(), await Replica().ask(header=None)
    assert not unmarked.is_marked
    answer = Answer(200, is_marked=True)
    read(unmarked.rest + b":t 1\n\n", answer)
    assert [said.split()[:2] for said in answer.events] == [said.split()[:2] for said in marked.events]
    assert MARK_NONE not in unmarked.rest


@given(st.integers(0, len(TOKENS) - 1), st.booleans(), st.sampled_from(PATHS))
async def test_a_stream_goes_on_after_any_of_its_groups(cut: int, is_lazy: bool, path: str) -> None:
    replica = Replica(layer={"is_lazy": is_lazy}, path=path)
    whole = await replica.ask()
    rest = await replica.rest(TOKENS[:cut], b'{"a": 1}')
    assert replica.api.body == b'{"a": 1}'
    assert rest.tokens == list(TOKENS[cut:])
    assert rest.events == whole.after(cut)
    assert (rest.is_marked, rest.rest) == (True, b"")


async def test_the_ids_of_a_stream_are_those_of_its_request() -> None:
    replica = Replica()
    first, again, other = await replica.ask(), await replica.ask(), await replica.ask(id="s")
    assert first.events == again.events
    assert len({said.split()[-1] for said in [*first.events, *other.events]}) == 2 * 10 + 2
    unmarked = [(await replica.ask(header=None)).rest for _ in range(2)]
    assert unmarked[0] != unmarked[1]


async def test_what_precedes_the_tokens_is_a_group_without_any() -> None:
    answer = await Replica(layer={"is_lazy": True}).ask()
    assert (answer.groups[0].events, answer.groups[0].tokens) == (["created"], [])


@pytest.mark.parametrize(
    "layer",
    [
        {"answers": 2},
        {"params": parameters(n=2)},
        {"params": parameters(prompt_logprobs=1)},
        {"params": SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY)},
    ],
)
async def test_what_is_no_stream_of_one_choice_is_unmarked_and_does_not_go_on(layer: dict[str, Any]) -> None:
    replica = Replica(layer=layer)
    plain, asked = await replica.ask(header=None), await replica.ask()
    assert (plain.status, asked.status, asked.is_marked) == (200, 200, False)
    assert b":t " not in asked.rest
    assert (await replica.rest(TOKENS[:1])).status == 400


async def test_outputs_of_several_choices_pass() -> None:
    engine, merged = Engine(), output(1, is_last=True)
    merged.outputs.append(CompletionOutput(1, "<2>", [2], None, None, "length"))

    async def both(*args: Any, **kwargs: Any) -> AsyncIterator[RequestOutput]:
        yield merged

    engine.generate = both  # type: ignore[method-assign]
    assert b"<1>" in (await Replica(engine, layer={"params": parameters(n=2)}).ask()).rest


async def test_a_second_answer_in_a_stream_ends_the_marks() -> None:
    replica = Replica(layer={"answers": 2, "is_lazy": True})
    answer = await replica.ask()
    text = b"".join(message.get("body", b"") for message in replica.messages)
    marked, _, unmarked = text.partition(MARK_NONE)
    assert (answer.is_marked, answer.tokens) == (True, list(TOKENS))
    assert (marked.count(b":t "), unmarked.count(b":t ")) == (6, 0)
    assert [unmarked.count(f"<{token}>".encode()) for token in TOKENS] == [2] * len(TOKENS)


async def fail() -> None:
    raise RuntimeError("dead")


async def test_an_error_is_a_group_without_tokens() -> None:
    answer = await Replica(Engine(fail, fails_after=2)).ask()
    assert [group.tokens for group in answer.groups] == [[7], [300], []]
    assert answer.groups[-1].events == ["dead", "[DONE]"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("is_lazy", [True, False])
async def test_a_refusal_is_a_400_in_the_routes_form(path: str, is_lazy: bool) -> None:
    engine = Engine()
    replica = Replica(engine, path, {"is_lazy": is_lazy})

    def refused(*args: Any, **kwargs: Any) -> Any:
        stream = continuation.current_stream.get()
        assert stream is not None

        async def outputs() -> AsyncIterator[RequestOutput]:
            for error in [stream.refuse("no room")]:
                raise error
            yield output(0)

        return outputs()

    engine.generate = refused  # type: ignore[method-assign]
    answer = await replica.rest(TOKENS[:2])
    error = json.loads(answer.rest)
    assert (answer.status, error["error"]["message"]) == (400, "no room")
    assert ("type" in error) is path.endswith("messages")


@pytest.mark.parametrize("header", ["", "-1", "1.0", "x", "٣", "9" * 10, "3"])
async def test_a_header_that_does_not_fit_the_body_is_refused(header: str) -> None:
    assert (await Replica().ask(header.encode().decode("latin-1"), b"{}")).status == 400


async def test_an_engine_that_takes_no_output_marks_nothing_and_refuses() -> None:
    replica = Replica(continues=False)
    assert not (await replica.ask()).is_marked
    assert (await replica.rest(TOKENS[:1])).status == 400


async def test_streams_are_handed_over_between_groups_and_their_requests_end() -> None:
    streams = OpenStreams()

    async def draining() -> None:
        assert (len(streams), streams.hand_over()) == (1, 1)
        await asyncio.sleep(3600)

    engine = Engine(draining, fails_after=3)
    answer = await Replica(engine, streams=streams).ask()
    assert (answer.tokens, answer.is_handed_over, answer.rest) == ([7, 300, 8], True, b"")
    assert (engine.closed, len(streams)) == (1, 0)
    assert engine.messages[-1]["body"] == MARK_HAND_OVER


async def test_a_client_that_leaves_hands_nothing_over() -> None:
    streams, waiting = OpenStreams(), asyncio.Event()

    async def wait() -> None:
        waiting.set()
        await asyncio.sleep(3600)

    engine = Engine(wait, fails_after=1)
    request = asyncio.create_task(Replica(engine, streams=streams).ask())
    await waiting.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert (engine.closed, len(streams), engine.messages[-1]["body"][-6:]) == (1, 0, b":t 7\n\n")


def queue(*, is_separate: bool) -> OutputQueue:
    made = OutputQueue(RequestOutputKind.DELTA, "1")
    made.is_separate = is_separate
    return made


async def test_separate_outputs_are_not_merged() -> None:
    merging, separate = queue(is_separate=False), queue(is_separate=True)
    for token in TOKENS:
        merging.put(output(token))
        separate.put(output(token))
    assert (await merging.get()).outputs[0].token_ids == list(TOKENS)
    assert [(separate.get_nowait() or await separate.get()).outputs[0].token_ids for _ in TOKENS] == [
        [token] for token in TOKENS
    ]
    assert separate.get_nowait() is merging.get_nowait() is None


async def test_an_error_passes_the_outputs_that_wait() -> None:
    line = queue(is_separate=True)
    for item in (output(1), output(2), RuntimeError("dead")):
        line.put(item)
    with pytest.raises(RuntimeError, match="dead"):
        await line.get()


def request(**fields: Any) -> Any:
    params = parameters(**fields)
    return SimpleNamespace(sampling_params=params, prompt_token_ids=[1] * 10, prompt_embeds=None)


@pytest.mark.parametrize(
    ("output", "fields", "word"),
    [
        ([50], {}, "vocabulary"),
        ([1] * 9, {}, "may have 9"),
        ([1] * 8, {}, None),
        ([1] * 7, {"stop_token_ids": [1]}, "end"),
        ([49], {}, None),
    ],
)
def test_a_continuation_fits_its_request(output: list[int], fields: dict[str, Any], word: str | None) -> None:
    reason = why_not_continued(request(**fields), output, 50, 19)
    assert (reason is None) if word is None else (reason is not None and word in reason)
    assert why_not_continued(request(**fields), output, 50, 10 + len(output)) is not None  # the context is full


def config(**changes: Any) -> Any:
    plain: dict[str, Any] = {
        "model_config.runner_type": "generate",
        "model_config.skip_tokenizer_init": False,
        "model_config.is_encoder_decoder": False,
        "model_config.is_diffusion": False,
        "scheduler_config.scheduler_cls": None,
        "parallel_config.worker_extension_cls": "",
        "parallel_config.pipeline_parallel_size": 1,
        "speculative_config": None,
        "kv_transfer_config": None,
        "ec_transfer_config": None,
        "use_v2_model_runner": False,
    }
    made = SimpleNamespace(
        model_config=SimpleNamespace(), scheduler_config=SimpleNamespace(), parallel_config=SimpleNamespace()
    )
    for name, value in {**plain, **changes}.items():
        part, _, field_name = name.rpartition(".")
        setattr(getattr(made, part) if part else made, field_name, value)
    return made


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_config.runner_type", "pooling"),
        ("model_config.skip_tokenizer_init", True),
        ("model_config.is_encoder_decoder", True),
        ("model_config.is_diffusion", True),
        ("scheduler_config.scheduler_cls", "a.Scheduler"),
        ("parallel_config.worker_extension_cls", "a.Extension"),
        ("parallel_config.pipeline_parallel_size", 2),
        ("speculative_config", object()),
        ("kv_transfer_config", object()),
        ("ec_transfer_config", object()),
        ("use_v2_model_runner", True),
    ],
)
def test_engines_that_are_not_known_to_continue_streams_do_not(name: str, value: Any) -> None:
    assert obstacle(config()) is None
    assert obstacle(config(**{name: value})) is not None


def test_other_names_of_uuid_are_pythons() -> None:
    assert continuation.UuidsOfStream().NAMESPACE_URL is uuid.NAMESPACE_URL
