"""A stream that outlives its engine: the replica's side. Importing it imports vLLM.

The router sends a request of generation with `CONTINUATION_HEADER` (`app.internal_api` documents header and marks), and
the replica marks which tokens' events it has sent. If the engine dies, the router sends the request to another replica,
with the ids of these tokens. The other engine takes it as one that it has preempted (`deployments.engine.scheduler`,
`worker`): grammar, penalties, seed and limits go on where they were. Its API layer reads the tokens one by one, as if
its engine had made them: detokenizer, stop strings, parsers, ids and usage are where they were, too. What it writes for
them, the client has; it is dropped.

    router ── header, ids ──► ContinuationMiddleware ──► vLLM's route ──► ContinuingEngine ──► vLLM's engine
                                  marked events ◄── one group per output ◄──┘        └── ids first ──► engine core

vLLM's API layer asks for an output when all events of the last one are written. Then these are a group. An output has
one token as long as the API layer keeps up. If not, vLLM merges outputs, and its parsers of reasoning and tools misread
what they get at once, in streams without marks, too. Streams that are parsed are therefore never merged here.
"""

import asyncio
import hashlib
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import numpy as np
import vllm.entrypoints.anthropic.serving
import vllm.utils
import vllm.v1.engine.async_llm
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from vllm.entrypoints.openai.sse_keep_alive import SSE_KEEP_ALIVE_COMMENT
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.outputs import LogprobsLists

from app.engine.errors import ENGINE_DEAD
from app.internal_api import (
    CONTINUATION_HEADER,
    CONTINUATION_MARKED,
    CONTINUATION_NEW,
    EXTENDED_PATH,
    MARK_HAND_OVER,
    MARK_NONE,
    MARK_TOKENS,
)
from deployments.engine.completions import Outputs, WrappedEngine
from deployments.engine.scheduler import OUTPUT

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", EXTENDED_PATH)
"""The routes whose streams can be continued."""

AT_ONCE = 32
"""Tokens that a continuation reads before other streams get their turn: about 10 ms."""


class GenerationStream:
    """One request of generation: what its response may hold back, and how much of it the client has.

    `output`: the tokens whose events the client has; None: it has nothing yet. `is_asked`: the router wants marks.
    """

    def __init__(self, send: Send, *, is_asked: bool, output: Sequence[int] | None, seed: str) -> None:
        self.is_asked, self.output = is_asked, output
        self.is_separate = False
        """The engine's outputs are not merged."""
        self.is_generating = False
        """It is the engine's turn, not the API layer's."""
        self.engine_has_died = False
        self.refused: str | None = None
        """Why it cannot be continued."""
        self._send, self._seed = send, seed
        self._ids = self._answers = 0
        self._start: Message | None = None
        self._held: list[bytes] = []
        """What the API layer has written since the last group."""
        self.can_be_marked = True
        """It is the stream of one choice, as far as is known."""
        self._is_marked = self._is_unmarked = self._has_ended = False
        self._is_accepted = not output
        self._left = len(output or ())
        """Tokens whose events are dropped."""
        self._last: Sequence[int] | None = None
        """The tokens of the output that finished the answer."""

    @property
    def has_begun(self) -> bool:
        """Whether the router has the head of the response."""
        return self._is_marked or self._is_unmarked

    @property
    def can_be_handed_over(self) -> bool:
        """Whether another engine may write the rest."""
        return self._is_marked and not self._is_unmarked and self._last is None and not self._has_ended

    def next_id(self) -> uuid.UUID:
        """The stream's next id: on every engine the same."""
        self._ids += 1
        return uuid.UUID(bytes=hashlib.sha256(f"{self._seed}:{self._ids}".encode()).digest()[:16], version=4)

    def refuse(self, message: str) -> VLLMValidationError:
        """The error with which the request ends."""
        self.refused = message
        return VLLMValidationError(message)

    def answer(self, params: Any) -> None:
        """The API layer asks for an answer. Raises VLLMValidationError if the request comes with another's output."""
        self._answers += 1
        if self._answers == 1 and _is_stream_of_tokens(params):
            return
        self.can_be_marked = False
        if self.output is not None and not self.has_begun:
            raise self.refuse("Only a stream of one choice can be continued")

    async def begin(self) -> None:
        """The API layer asks for the first output of an answer: what it has written so far precedes the tokens."""
        if not self.can_be_marked:
            if self._is_marked and not self._is_unmarked:
                await self._close_group(self._last or ())
                self._held.append(MARK_NONE)
            await self._unmark()
        elif self._is_accepted:
            await self._mark()
            await self._close_group(())

    async def accept(self) -> None:
        """The engine has taken the request with its output."""
        if not self._is_accepted:
            self._is_accepted = True
            await self._mark()

    async def written(self, tokens: Sequence[int], *, is_last: bool) -> None:
        """The API layer has written the events of an output. After the last one, everything belongs to it."""
        if is_last:
            self._last = tokens
        elif self._left > 0:
            self._held.clear()
            self._left -= len(tokens)
            if self._left % AT_ONCE == 0:
                await asyncio.sleep(0)
        elif self._is_marked and not self._is_unmarked:
            await self._close_group(tokens)

    async def send(self, message: Message) -> None:
        """What the API layer writes; nothing after a refusal, unless the response has begun."""
        if self.refused is not None and not self.has_begun:
            return
        if self._is_unmarked:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._start = message
            kind = Headers(raw=message["headers"]).get("content-type", "")
            if message["status"] != 200 or not kind.startswith("text/event-stream") or not self.can_be_marked:
                await self._unmark()
        elif (body := message.get("body", b"")) == _KEEP_ALIVE and self._is_marked:
            await self._send_body(body + _mark(()))
        else:
            self._held.append(body)
            if not message.get("more_body", False):
                await self._end()

    async def hand_over(self) -> None:
        """Ends the response; the group that has begun is dropped. The API layer writes no more."""
        if self.can_be_handed_over:
            await self._send_body(MARK_HAND_OVER, more=False)

    async def _mark(self) -> None:
        if self._start is not None and not self._is_marked:
            self._is_marked = True
            if self.output is not None:
                self._held.clear()
            MutableHeaders(raw=self._start["headers"])[CONTINUATION_HEADER] = CONTINUATION_MARKED
            await self._send(self._start)

    async def _unmark(self) -> None:
        """Sends what is held, and from now on everything at once."""
        if self._start is None or self._is_unmarked:
            return
        self._is_unmarked = True
        if not self._is_marked:
            await self._send(self._start)
        if self._held:
            await self._send_body(self._taken())

    async def _close_group(self, tokens: Sequence[int]) -> None:
        if tokens or self._held:
            await self._send_body(self._taken() + _mark(tokens))

    async def _end(self) -> None:
        """The response is complete. Without the last output, its end is an error: a group without tokens.

        That an engine has died is said in the same words on every route: some have words that may mean anything.
        """
        self._has_ended = True
        body = self._taken()
        if self.engine_has_died and self._is_marked:
            body = _DIED
        if not self._is_marked:
            await self._send(self._start)  # type: ignore[arg-type]  # it precedes every body
        elif body:
            body += _mark(self._last or ())
        await self._send_body(body, more=False)

    def _taken(self) -> bytes:
        body = b"".join(self._held)
        self._held.clear()
        return body

    async def _send_body(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


_KEEP_ALIVE = SSE_KEEP_ALIVE_COMMENT.encode()
_DIED = b'data: {"error": {"message": "%b", "type": "InternalServerError", "code": 500}}\n\n' % ENGINE_DEAD.encode()


def _mark(tokens: Sequence[int]) -> bytes:
    return MARK_TOKENS + ",".join(map(str, tokens)).encode() + b"\n\n"


def _is_stream_of_tokens(params: Any) -> bool:
    """Whether an answer with these parameters is a stream of one choice."""
    return (
        isinstance(params, SamplingParams)
        and params.n == 1
        and params.output_kind is RequestOutputKind.DELTA
        and params.prompt_logprobs is None
    )


current_stream: ContextVar[GenerationStream | None] = ContextVar("stream", default=None)
"""The stream of this request."""


class OpenStreams:
    """The streams with marks of this replica."""

    def __init__(self) -> None:
        self._responses: dict[GenerationStream, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._responses)

    def hand_over(self) -> int:
        """Ends the streams that others can continue, and returns their number. The engine ends their requests."""
        leaving = [stream for stream in self._responses if stream.can_be_handed_over]
        for stream in leaving:
            self._responses.pop(stream).cancel()
        return len(leaving)

    async def respond(self, stream: GenerationStream, response: Coroutine[Any, Any, None]) -> None:
        """Awaits `response`, which writes the stream, to its end or until the stream is handed over."""
        task = self._responses[stream] = asyncio.ensure_future(response)
        try:
            await task
        except asyncio.CancelledError:
            if stream in self._responses or not task.cancelled():
                raise
        finally:
            is_leaving = self._responses.pop(stream, None) is None
        if is_leaving:
            await stream.hand_over()


class ContinuationMiddleware:
    """Reads the header, marks the response's events, and drops those that the client has.

    `continues`: whether the engine takes requests that come with output. If not, no stream is marked.
    """

    def __init__(self, app: ASGIApp, *, streams: OpenStreams, continues: bool) -> None:
        self._app, self._streams, self._continues = app, streams, continues

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(PATHS):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        continuation, output = headers.get(CONTINUATION_HEADER), None
        if continuation is not None and continuation != CONTINUATION_NEW:
            try:
                if not self._continues:
                    raise ValueError("This engine does not continue streams")
                output, receive = await split(continuation, receive)
            except ValueError as error:
                await _refusal(scope["path"], str(error))(scope, receive, send)
                return
        is_asked = continuation is not None and self._continues
        seed = headers.get("x-request-id") or uuid.uuid4().hex
        stream = GenerationStream(send, is_asked=is_asked, output=output, seed=seed)
        token = current_stream.set(stream)
        try:
            if is_asked:
                await self._streams.respond(stream, self._respond(stream, scope, receive, send))
            else:
                await self._app(scope, receive, send)
        finally:
            current_stream.reset(token)

    async def _respond(self, stream: GenerationStream, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, stream.send)
        except Exception:
            if stream.refused is None or stream.has_begun:
                raise
        if stream.refused is not None and not stream.has_begun:
            await _refusal(scope["path"], stream.refused)(scope, receive, send)


async def split(count: str, receive: Receive) -> tuple[list[int], Receive]:
    """The token ids at the end of the request's body, and a `receive` for what precedes them.

    Raises ValueError if there are not `count` of them.
    """
    if not (count.isascii() and count.isdigit() and len(count) < 10):
        raise ValueError(f"{CONTINUATION_HEADER} must be {CONTINUATION_NEW} or a number, not {count[:20]!r}")
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
    if len(body) < (size := 4 * int(count)):
        raise ValueError(f"The body should end with {count} token ids, {size} bytes, but has {len(body)} bytes")
    end = len(body) - size
    output = np.frombuffer(bytes(body[end:]), "<u4").tolist()
    before = [{"type": "http.request", "body": bytes(body[:end]), "more_body": False}]

    async def receive_body() -> Message:
        return before.pop() if before else await receive()

    return output, receive_body


def _refusal(path: str, message: str) -> JSONResponse:
    """400, as the route says it."""
    error = {"type": "invalid_request_error", "message": message}
    if path.endswith("/v1/messages"):
        return JSONResponse({"type": "error", "error": error}, 400)
    return JSONResponse({"error": {**error, "param": CONTINUATION_HEADER, "code": 400}}, 400)


class ContinuingEngine(WrappedEngine):
    """vLLM's engine for one of its servers: tells a request's stream what the API layer has written.

    `is_parsed`: the server's events depend on how tokens are grouped into outputs.
    """

    def __init__(self, engine: Any, *, is_parsed: bool) -> None:
        super().__init__(engine)
        self._is_parsed = is_parsed

    def generate(self, prompt: Any, params: SamplingParams, request_id: str, **options: Any) -> Outputs:
        if (stream := current_stream.get()) is None:
            return super().generate(prompt, params, request_id, **options)
        stream.is_separate |= self._is_parsed
        if not stream.is_asked:
            return super().generate(prompt, params, request_id, **options)
        stream.answer(params)
        if stream.output:
            params = params.clone()
            params.extra_args = {**(params.extra_args or {}), OUTPUT: list(stream.output)}
        return _reported(stream, super().generate(prompt, params, request_id, **options))


async def _reported(stream: GenerationStream, outputs: Outputs) -> Outputs:
    await stream.begin()
    left = len(stream.output or ())
    stream.is_generating = True
    try:
        async with aclosing(outputs):
            async for output in outputs:
                stream.is_generating = False
                if not stream.can_be_marked:  # several choices, for one
                    yield output
                    continue
                await stream.accept()
                (choice,) = output.outputs
                has_failed = choice.finish_reason == "error"
                if has_failed and stream.output and left == 0:  # the engine's first output
                    raise stream.refuse("The request's constraint does not accept the tokens that it comes with")
                yield output
                left -= len(choice.token_ids)
                if not has_failed:
                    await stream.written(choice.token_ids, is_last=output.finished)
                stream.is_generating = True
    except EngineDeadError:
        stream.engine_has_died = True
        raise
    finally:
        stream.is_generating = False


def _fed(add: Callable[..., Any], processor: Any, vocabulary: int, max_len: int) -> Callable[..., Any]:
    async def add_after_output(request: EngineCoreRequest) -> None:
        """vLLM's `EngineCoreClient.add_request_async`; also raises VLLMValidationError."""
        stream, params = current_stream.get(), request.sampling_params
        state = processor.request_states.get(request.request_id)
        output = stream.output if stream is not None and stream.is_asked else None
        if params is not None and params.extra_args and not output:
            params.extra_args.pop(OUTPUT, None)  # a client's
        if stream is not None and state is not None and state.queue is not None and stream.is_separate:
            state.queue.is_separate, state.stream_interval = True, 1
        if stream is not None and output:
            if reason := why_not_continued(request, output, vocabulary, max_len):
                raise stream.refuse(reason)
            if await _read(state, output, params.num_logprobs):
                raise stream.refuse(_IS_COMPLETE)
        await add(request)

    return add_after_output


_IS_COMPLETE = "The tokens that the request comes with end its answer"


def why_not_continued(request: Any, output: Sequence[int], vocabulary: int, max_len: int) -> str | None:
    """Why vLLM's `EngineCoreRequest` cannot go on after these tokens; None if it can."""
    params = request.sampling_params
    prompt = len(request.prompt_token_ids if request.prompt_token_ids is not None else request.prompt_embeds)
    if (highest := max(output)) >= vocabulary:
        return f"The token {highest} is not in the vocabulary of {vocabulary}"
    if len(output) >= params.max_tokens:
        return f"The request comes with {len(output)} tokens, and may have {params.max_tokens}"
    if prompt + len(output) >= max_len:
        return f"The prompt's {prompt} tokens and {len(output)} more leave no room in a context of {max_len}"
    ends = {params.eos_token_id, *(params.stop_token_ids or ())}
    return None if ends.isdisjoint(output) else _IS_COMPLETE


async def _read(state: Any, output: Sequence[int], logprobs: int | None) -> bool:
    """Reads the tokens as outputs of the engine, each for itself. Whether a stop string ends the answer in them."""
    interval, state.stream_interval = state.stream_interval, 1
    state.queue.is_separate = True
    for number, token in enumerate(output, 1):
        if state.detokenizer.update([token], False):
            return True
        if logprobs is not None:
            state.logprobs_processor.update_from_output(_placeholder(state.request_id, token, logprobs))
        state.queue.put(state.make_request_output([token], None, None, None))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    state.stream_interval, state.sent_tokens_offset = interval, len(output)
    return False


def _placeholder(request_id: str, token: int, logprobs: int) -> EngineCoreOutput:
    """Log-probabilities that nobody sees."""
    width = max(logprobs, 0) + 1
    values = LogprobsLists(np.full((1, width), token), np.zeros((1, width), np.float32), np.ones(1, np.int64))
    return EngineCoreOutput(request_id, [token], new_logprobs=values)


class OutputQueue(RequestOutputCollector):  # type: ignore[misc]  # vLLM ships no types
    """Does not merge the outputs of a stream that depends on each."""

    def __init__(self, output_kind: RequestOutputKind, request_id: str) -> None:
        super().__init__(output_kind, request_id)
        self.is_separate = False
        self._line: deque[Any] = deque()

    def put(self, output: Any) -> None:
        """Adds an output; an error passes those that wait."""
        if self.is_separate and self.output is not None and not isinstance(output, Exception):
            self._line.append(output)
        else:
            super().put(output)

    async def get(self) -> Any:
        """The next output. Raises an error that was put."""
        output = await super().get()
        self._advance()
        return output

    def get_nowait(self) -> Any:
        """The next output; None if there is none yet."""
        output = super().get_nowait()
        self._advance()
        return output

    def _advance(self) -> None:
        if self._line and self.output is None:
            super().put(self._line.popleft())


class UuidsOfStream:
    """The module `uuid` for vLLM's API layer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(uuid, name)

    def uuid4(self) -> uuid.UUID:
        """Random, but for a stream with marks: its next id. The engine's own ids tell requests apart, whatever ids
        their clients give them.
        """
        stream = current_stream.get()
        return uuid.uuid4() if stream is None or not stream.is_asked or stream.is_generating else stream.next_id()


def obstacle(config: Any) -> str | None:
    """Why an engine with this VllmConfig does not take requests that come with output; None if it does.

    To be asked before the engine gets our scheduler and extension.
    """
    parallel, model = config.parallel_config, config.model_config
    reasons = {
        "it does not generate": model.runner_type != "generate" or model.skip_tokenizer_init,
        "scheduler_cls is set": config.scheduler_config.scheduler_cls is not None,
        "worker_extension_cls is set": bool(parallel.worker_extension_cls),
        "speculative decoding": config.speculative_config is not None,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "a KV connector": config.kv_transfer_config is not None or config.ec_transfer_config is not None,
        "an encoder and a decoder": model.is_encoder_decoder,
        "diffusion": model.is_diffusion,
        "vLLM's model runner V2": config.use_v2_model_runner,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def continue_streams(app: Any, streams: OpenStreams, *, continues: bool) -> None:
    """Has vLLM's application `app` mark and continue streams, if its engine `continues` them, and never merge what its
    servers parse.
    """
    state = app.state
    client = state.engine_client
    core, model = client.engine_core, client.model_config
    core.add_request_async = _fed(
        core.add_request_async, client.output_processor, model.get_vocab_size(), model.max_model_len
    )
    vllm.v1.engine.async_llm.RequestOutputCollector = OutputQueue
    vllm.utils.uuid = vllm.entrypoints.anthropic.serving.uuid = UuidsOfStream()
    for name in ("openai_serving_chat", "openai_serving_completion", "anthropic_serving_messages"):
        if (server := getattr(state, name, None)) is not None:
            is_parsed = getattr(server, "parser_cls", None) is not None or name.startswith("anthropic")
            server.engine_client = ContinuingEngine(client, is_parsed=is_parsed)
    server = getattr(state, "openai_serving_responses", None)
    if server is not None and not server.enable_store:  # a stored response is this replica's
        server.engine_client = ContinuingEngine(client, is_parsed=True)
    app.add_middleware(ContinuationMiddleware, streams=streams, continues=continues)
