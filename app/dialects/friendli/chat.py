"""Friendli's chat: OpenAI's format with more fields. Answers are vLLM's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.dialects.base import (
    Call,
    EngineRequest,
    Flow,
    ParseContext,
    Reply,
    Request,
    ServingContext,
    Stream,
    Translation,
)
from app.dialects.common.copies import check_copies
from app.dialects.common.engine_request import engine_extensions
from app.dialects.common.passthrough import PassthroughStream, StreamFormat
from app.dialects.friendli.chat_fields import Chat, read
from app.dialects.friendli.errors import error_frames
from app.dialects.friendli.prepare import check_extensions
from app.dialects.friendli.sampling import sampling, seed_fields
from app.dialects.json_body import dump
from app.engine.usage import find_usage
from app.internal_api import to_int64_seed

PATH = "/v1/chat/completions"
_FORMAT = StreamFormat(PATH, error_frames)
_PASSED_ON = frozenset(
    "chat_template_kwargs frequency_penalty include_reasoning logit_bias logprobs max_completion_tokens max_tokens "
    "messages min_p min_tokens parallel_tool_calls presence_penalty reasoning_effort repetition_penalty stop stream "
    "tool_choice tools top_k top_logprobs top_p".split()
)


def parse_chat(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    fields = read(body)
    engine_body = _engine_body(fields, body)
    if not fields.is_one_request:
        check_copies("seed", engine_body, len(fields.seeds) - 1)
    extended = bool(engine_extensions(engine_body))
    translation = ChatTranslation(fields, engine_body, stream=fields.stream, needs_model=extended)
    return Call("chat", engine_body, translation, timeout_s=fields.timeout_s)


def _engine_body(fields: Chat, body: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's chat request; `body` is what `fields` were read from. Raises BadRequest."""
    engine_body = {name: value for name, value in body.items() if name in _PASSED_ON}
    if not fields.tools:
        # The previous SDK sends both with every request.
        engine_body.pop("tools", None)
        engine_body.pop("tool_choice", None)
    engine_body |= sampling(fields, several=fields.n > 1 and fields.is_one_request)
    if fields.n > 1:
        engine_body["n"] = fields.n
    if fields.seeds and fields.is_one_request:
        engine_body |= seed_fields(fields.seeds)
    if fields.eos_token:
        engine_body |= {"stop_token_ids": fields.eos_token, "ignore_eos": True}
    if fields.reasoning_budget is not None:
        engine_body["thinking_token_budget"] = fields.reasoning_budget
    if fields.stream:
        engine_body["stream_options"] = {"include_usage": True}
    return engine_body


@dataclass(frozen=True)
class ChatTranslation(Translation):
    """POST …/v1/chat/completions. `body` is the engine's. `needs_model`: it asks for extensions."""

    fields: Chat
    body: dict[str, Any]
    stream: bool = False
    needs_model: bool = False

    def engine_requests(self, serving: ServingContext) -> Flow:
        if self.needs_model:
            check_extensions(self.body, serving)
        if self.fields.is_one_request:
            return EngineRequest(PATH, self.body)
        # vLLM can only count up from one seed: every choice with its own seed is a separate request.
        answers = yield [
            EngineRequest(PATH, {**self.body, "n": 1, "seed": to_int64_seed(seed)}) for seed in self.fields.seeds
        ]
        answer = dump(_joined(answers))
        return Reply(self._renamed(answer), usage=find_usage(answer))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(self._renamed(answer))

    def open_stream(self, serving: ServingContext) -> Stream:
        kind = _ReasoningStream if self.fields.parse_reasoning else PassthroughStream
        return kind(_FORMAT, hide_usage=not self.fields.shows_usage)

    def _renamed(self, answer: bytes) -> bytes:
        return _with_friendlis_reasoning(answer) if self.fields.parse_reasoning else answer


class _ReasoningStream(PassthroughStream):
    """A `PassthroughStream` that sends reasoning under Friendli's name."""

    def feed(self, chunk: bytes) -> bytes:
        return _with_friendlis_reasoning(super().feed(chunk))


def _with_friendlis_reasoning(answer: bytes) -> bytes:
    # Inside a JSON string the quotes of the key would be escaped.
    return answer.replace(b'"reasoning":', b'"reasoning_content":')


def _joined(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One answer with the first choice of each."""
    choices = [{**answer["choices"][0], "index": index} for index, answer in enumerate(answers)]
    prompt = answers[0]["usage"]["prompt_tokens"]
    completion = sum(answer["usage"]["completion_tokens"] for answer in answers)
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**answers[0], "choices": choices, "usage": usage}
