"""Databricks' completion task: prompts in the chat template, echo and suffix, and truncation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic_core import from_json

from app.dialects.base import Call, EngineRequest, Flow, Reply, ServingContext, Stream, Translation
from app.dialects.common.best_of import FIELD_NAMES, BestOf
from app.dialects.common.engine_request import ask_for_usage, greedy
from app.dialects.common.last_usage import LastChoiceUsageStream
from app.dialects.common.tokenize import tokenize
from app.dialects.databricks.answer import RequestContext, counts, json_reply, with_finish_reason, with_served_model
from app.dialects.databricks.completion_stream import CompletionStream, TextAffixes
from app.dialects.databricks.errors import error_frames
from app.dialects.databricks.fields import Completions, checked, without_records
from app.engine.collectors import STREAM_OPTIONS, CompletionCollector
from app.engine.usage import PromptTokens
from app.errors import BadRequest

_NOT_SENT = frozenset({"echo", "error_behavior", "suffix", "use_raw_prompt"})


@dataclass(frozen=True)
class CompletionsTranslation(Translation):
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
        return Call("completions", sent, translation, field_names=FIELD_NAMES if best_of else {})

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
        return json_reply({**completion, "choices": [self._choice(it) for it in completion["choices"]]}, serving)

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
