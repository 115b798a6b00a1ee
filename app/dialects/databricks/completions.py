"""Databricks' completion task: prompts in the chat template, echo and suffix, and truncation.

Streams of completions with text around the engine's, or that end complete when time is up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic_core import from_json

from app.dialects.base import Call, EngineRequest, Flow, Reply, ServingContext, Stream, Translation, immutable
from app.dialects.bodies import dump
from app.dialects.common.requests import FIELD_NAMES, BestOf, ask_for_usage, check_copies, greedy, tokenize
from app.dialects.common.streams import LastChoiceUsageStream, read_chunk
from app.dialects.databricks.chat import RequestContext, counts, json_reply, with_finish_reason, with_served_model
from app.dialects.databricks.errors import error_frames
from app.dialects.databricks.fields import Completions, checked, without_records
from app.engine.collectors import STREAM_OPTIONS, CompletionCollector, Tally
from app.engine.context import PromptTokens
from app.engine.output import find_usage
from app.errors import BadRequest, SwitchyardError, TimedOut
from app.sse import DONE, encode


@dataclass(frozen=True, slots=True)
class TextAffixes:
    """Text added to the choices: each of `prompts` has `n` of them."""

    prompts: Sequence[str]
    n: int
    echo: bool
    suffix: str

    @property
    def are_empty(self) -> bool:
        """Whether nothing is added."""
        return not (self.echo or self.suffix)

    def check_copies(self) -> None:
        """Raises BadRequest if all choices together repeat too much of the request."""
        if self.echo:
            check_copies("echo", self.prompts, self.n - 1)
        check_copies("suffix", self.suffix, self.n * len(self.prompts) - 1)

    def before(self, index: int) -> str:
        """The text before the choice with this index, which counts through all prompts."""
        return self.prompts[index // self.n] if self.echo else ""


class CompletionStream(LastChoiceUsageStream):
    """Edits every chunk. Indices keep counting through all prompts, as OpenAI's SDK expects of a stream.

    `truncate_on_timeout`: a timeout ends the stream with the text so far, once there is some.
    """

    def __init__(
        self,
        error_frames: Callable[[SwitchyardError], bytes],
        affixes: TextAffixes,
        *,
        truncate_on_timeout: bool,
        usage_apart: bool,
    ) -> None:
        super().__init__("/v1/completions", error_frames, counts=counts, apart=usage_apart)
        self._affixes = affixes
        self._truncate = truncate_on_timeout
        self._not_started = set(range(affixes.n * len(affixes.prompts)))
        self._unfinished = set(self._not_started)
        self._tally = Tally(affixes.n)
        self._head: dict[str, Any] = {}

    def _failed(self, error: SwitchyardError) -> bytes:
        if not (self._truncate and self._head and isinstance(error, TimedOut)):
            return super()._failed(error)
        last = b"".join(self._choice(self._cut(index)) for index in sorted(self._unfinished))
        usage = encode(dump({**self._head, "choices": [], "usage": self._tally.usage()}))
        self.usage = find_usage(usage)
        return last + self._release(usage) + DONE

    def _passes(self, frames: bytes) -> bool:
        return False

    def _choice(self, frame: bytes) -> bytes:
        chunk = read_chunk(frame)
        usage = chunk.pop("usage", None)
        for choice in chunk["choices"]:
            choice["text"] = self._text(choice["index"], choice["text"], choice["finish_reason"] is not None)
            if usage:
                self._tally.add(choice["index"], usage)
        self._head = {name: value for name, value in chunk.items() if name != "choices"}
        return super()._choice(encode(dump(chunk)))

    def _text(self, index: int, text: str, finished: bool) -> str:
        if index in self._not_started:
            self._not_started.remove(index)
            text = self._affixes.before(index) + text
        if finished:
            self._unfinished.discard(index)
            text += self._affixes.suffix
        return text

    def _cut(self, index: int) -> bytes:
        choice = {"index": index, "text": "", "logprobs": None, "finish_reason": "length"}
        return encode(dump({**self._head, "choices": [choice]}))


_NOT_SENT = frozenset({"echo", "error_behavior", "suffix", "use_raw_prompt"})
_IN_TEMPLATE: Mapping[str, str] = {"messages": "prompt"}


@immutable
class DatabricksCompletionsTranslation(Translation):
    """Completions. `usage_apart`: the client asked for the usage in a separate chunk.

    `to_tokenize` are bodies of `/tokenize` for the prompts: to put them into the chat template, to find the room for
    the answer, to cut them. Empty if the prompts are sent as they are.

    Echo and suffix are added here: the engine sees the prompt in a chat template that the client did not write, and
    fills in the middle before a suffix.

    `truncate_on_timeout`: at the deadline the answer is the text so far. Whole answers are collected from a stream
    for that; for streams, `Stream.fail` with TimedOut ends them in order.
    """

    body: Mapping[str, Any]
    context: RequestContext
    affixes: TextAffixes
    to_tokenize: Sequence[Mapping[str, Any]]
    best_of: BestOf | None
    usage_apart: bool
    stream: bool = False
    truncate_on_timeout: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any], context: RequestContext) -> Call:
        """Raises BadRequest."""
        request = checked(Completions, body)
        affixes = TextAffixes(request.prompts, request.n, request.echo, request.suffix)
        affixes.check_copies()
        sent = {name: value for name, value in without_records(body).items() if name not in _NOT_SENT}
        best_of = BestOf.take(sent)
        greedy(sent)
        usage_apart = ask_for_usage(sent)
        if request.truncates and request.stream:
            sent["stream_options"] = dict(STREAM_OPTIONS)
        translation = cls(
            sent, context, affixes, _to_tokenize(request), best_of, usage_apart, request.stream, request.truncates
        )
        return Call("completions", sent, translation, field_names={**_IN_TEMPLATE, **(FIELD_NAMES if best_of else {})})

    def engine_requests(self, serving: ServingContext) -> Flow:
        body = self.body
        if self.to_tokenize:
            tokens = yield from tokenize(self.to_tokenize, serving)
            fit = _truncated if self.truncate_on_timeout else _checked_room
            body = {**body, **fit(tokens, body.get("max_tokens"))}
        return EngineRequest("/v1/completions", body)

    def collector(self, request: EngineRequest) -> CompletionCollector | None:
        return CompletionCollector(request.body) if self.truncate_on_timeout else None

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        completion = from_json(answer)
        if self.best_of is not None:
            completion = self.best_of.select(completion)
        return json_reply(
            {**completion, "choices": [self._choice(choice) for choice in completion["choices"]]}, serving
        )

    def open_stream(self, serving: ServingContext) -> Stream:
        failure = partial(error_frames, request_id=self.context.request_id)
        if self.affixes.are_empty and not self.truncate_on_timeout:
            stream = LastChoiceUsageStream("/v1/completions", failure, counts=counts, apart=self.usage_apart)
        else:
            stream = CompletionStream(
                failure, self.affixes, truncate_on_timeout=self.truncate_on_timeout, usage_apart=self.usage_apart
            )
        return with_served_model(stream, serving)

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any]:
        index = choice["index"]
        choice = {**choice, "text": self.affixes.before(index) + choice["text"] + self.affixes.suffix}
        return with_finish_reason({**choice, "index": index // self.affixes.n}) if self.context.native else choice


def _to_tokenize(request: Completions) -> Sequence[Mapping[str, Any]]:
    if not request.use_raw_prompt:
        return [{"messages": [{"role": "user", "content": prompt}]} for prompt in request.prompts]
    if request.max_tokens is None or request.truncates:
        return [{"prompt": prompt} for prompt in request.prompts]
    return []


def _truncated(tokens: PromptTokens, max_tokens: int | None) -> Mapping[str, Any]:
    """`prompt` and `max_tokens`, lowered to the room that the longest prompt that fits leaves. Longer prompts keep
    their ends."""
    fitting = [len(ids) for ids in tokens.ids if len(ids) < tokens.context]
    room = tokens.context - max(fitting, default=tokens.context - 1)
    limit = min(room, max_tokens or room)
    return {"prompt": [ids[limit - tokens.context :] for ids in tokens.ids], "max_tokens": limit}


def _checked_room(tokens: PromptTokens, max_tokens: int | None) -> Mapping[str, Any]:
    """`prompt` and `max_tokens`, by default what the longest prompt leaves: a batch is one request with one limit.

    Raises BadRequest if there is no room for `max_tokens`.
    """
    if tokens.room < (wanted := max_tokens or 1):
        field = "prompt" if tokens.room < 1 else "max_tokens"
        raise BadRequest(
            f"{field}: the prompt has {tokens.longest} of this model's {tokens.context} tokens, which leaves no room "
            f"for {wanted}; error_behavior 'truncate' returns what fits",
            param=field,
        )
    return {"prompt": tokens.ids, "max_tokens": max_tokens or tokens.room}
