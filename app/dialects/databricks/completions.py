"""Databricks' completion task: prompts in the chat template, what stands around the generated text, and truncation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.dialects.base import Stream
from app.dialects.common.best_of import BestOf
from app.dialects.common.engine_request import ask_for_usage, greedy
from app.dialects.common.last_usage import LastChoiceUsageStream
from app.dialects.databricks.answer import RequestContext, counts, with_finish_reason
from app.dialects.databricks.completion_stream import CompletionStream, TextAffixes
from app.dialects.databricks.errors import error_frames
from app.dialects.databricks.fields import RECORDS, Completions, checked
from app.dialects.legacy import Call, Lookup
from app.engine.completion_collector import STREAM_OPTIONS
from app.errors import BadRequest, Broken

_NOT_SENT = RECORDS | {"echo", "error_behavior", "suffix", "use_raw_prompt"}


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    """The answer to a completion request. `usage_apart`: a stream's usage goes into a chunk of its own."""

    asked: RequestContext
    surroundings: TextAffixes
    best_of: BestOf | None
    usage_apart: bool

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        if self.best_of is not None:
            answer = self.best_of.kept(answer)
        return {**answer, "choices": [self._told(choice) for choice in answer["choices"]]}

    def stream(self) -> Stream:
        tell = partial(error_frames, request_id=self.asked.request_id)
        if self.surroundings.is_plain:
            return LastChoiceUsageStream(tell, counts=counts, apart=self.usage_apart)
        return CompletionStream(tell, self.surroundings, usage_apart=self.usage_apart)

    def _told(self, choice: dict[str, Any]) -> dict[str, Any]:
        index, around = choice["index"], self.surroundings
        told = {**choice, "text": around.before(index) + choice["text"] + around.suffix}
        return with_finish_reason({**told, "index": index // around.n}) if self.asked.native else told


def completions(body: dict[str, Any], asked: RequestContext) -> Call:
    """A completion request as vLLM reads it. Raises BadRequest.

    Echo and suffix are put around the text here: the engine sees the prompt in the chat template, which the client did
    not write, and takes a suffix for something else.
    """
    fields = checked(Completions, body)
    prompts = [fields.prompt] if isinstance(fields.prompt, str) else fields.prompt
    sent = {name: value for name, value in body.items() if name not in _NOT_SENT}
    best_of = BestOf.take(sent)
    greedy(sent)
    usage_apart = ask_for_usage(sent)
    truncate = fields.error_behavior == "truncate"
    if truncate and fields.stream:
        sent["stream_options"] = dict(STREAM_OPTIONS)
    surroundings = TextAffixes(prompts, fields.n, fields.echo, fields.suffix, truncate)
    return Call(
        "completions",
        "/v1/completions",
        sent,
        stream=fields.stream,
        partial=truncate,
        lookup=_lookup(fields, prompts),
        note=CompletionAnswer(asked, surroundings, best_of, usage_apart),
    )


def _lookup(fields: Completions, prompts: Sequence[str]) -> Lookup | None:
    """The prompts' tokens: to put them into the template, to find the room for the answer, to cut them."""
    truncate = fields.error_behavior == "truncate"
    if fields.use_raw_prompt:
        if fields.max_tokens is not None and not truncate:
            return None
        questions: list[tuple[str, dict[str, Any]]] = [("/tokenize", {"prompt": prompt}) for prompt in prompts]
    else:
        questions = [("/tokenize", {"messages": [{"role": "user", "content": prompt}]}) for prompt in prompts]
    return Lookup(questions, partial(_fitted, truncate=truncate))


def _fitted(body: dict[str, Any], answers: Sequence[dict[str, Any]], *, truncate: bool) -> dict[str, Any]:
    """`body` with tokens for prompts, and an explicit `max_tokens`; `answers` are vLLM's of `/tokenize`.

    A batch is one request with one limit. Without `max_tokens` it is what the longest prompt leaves. With `truncate` it
    is lowered to what the longest prompt that fits leaves, and a prompt that is too long keeps its end.
    """
    try:
        context, prompts = answers[0]["max_model_len"], [answer["tokens"] for answer in answers]
        lengths = [len(prompt) for prompt in prompts]
        fitting = [length for length in lengths if length < context]
    except (KeyError, TypeError) as error:
        raise Broken("The deployment does not tell a prompt's tokens") from error
    wanted = body.get("max_tokens")
    if truncate:
        room = context - max(fitting, default=context - 1)
        limit = min(room, wanted or room)
        return {**body, "prompt": [prompt[limit - context :] for prompt in prompts], "max_tokens": limit}
    longest = max(lengths)
    if (room := context - longest) < (wanted or 1):
        field = "prompt" if room < 1 else "max_tokens"
        raise BadRequest(
            f"{field}: the prompt has {longest} of this model's {context} tokens, which leaves no room for "
            f"{wanted or 1}; error_behavior 'truncate' returns what fits",
            param=field,
        )
    return {**body, "prompt": prompts, "max_tokens": wanted or room}
