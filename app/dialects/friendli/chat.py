"""Friendli's chat: OpenAI's form with more fields. The answers are vLLM's own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.dialects.base import Reply
from app.dialects.common.passthrough import PassthroughStream, StreamFormat
from app.dialects.friendli.chat_fields import Chat, _counts_up
from app.dialects.friendli.errors import error_frames
from app.dialects.friendli.sampling import sampling, seeded
from app.dialects.legacy import Lookup
from app.errors import Broken
from app.internal_api import to_int64_seed
from app.sse import DONE

PATH = "/v1/chat/completions"
ENDING = StreamFormat(is_terminal=lambda frames: frames.endswith(DONE), error_frames=error_frames)


# What goes on as it is.
_VLLMS = frozenset(
    "chat_template_kwargs frequency_penalty include_reasoning logit_bias logprobs max_completion_tokens max_tokens "
    "messages min_p min_tokens parallel_tool_calls presence_penalty reasoning_effort repetition_penalty stop stream "
    "tool_choice tools top_k top_logprobs top_p".split()
)


def question(fields: Chat, body: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's chat request; `body` is what `fields` were read from. Raises BadRequest."""
    asked = {name: value for name, value in body.items() if name in _VLLMS}
    if not fields.tools:
        # What the SDK before the present one sends with every request.
        asked.pop("tools", None)
        asked.pop("tool_choice", None)
    asked |= sampling(fields, several=fields.n > 1 and _counts_up(fields))
    if fields.n > 1:
        asked["n"] = fields.n
    if fields.seeds and _counts_up(fields):
        asked |= seeded(fields.seeds)
    if fields.eos_token:
        asked |= {"stop_token_ids": fields.eos_token, "ignore_eos": True}
    if fields.reasoning_budget is not None:
        asked["thinking_token_budget"] = fields.reasoning_budget
    if fields.stream:
        asked["stream_options"] = {"include_usage": True}
    return asked


def one_by_one(fields: Chat) -> Callable[[dict[str, Any]], Lookup] | None:
    """A question for each seed, where vLLM cannot count them up itself."""
    if _counts_up(fields):
        return None

    def lookup(asked: dict[str, Any]) -> Lookup:
        questions = [(PATH, {**asked, "n": 1, "seed": to_int64_seed(seed)}) for seed in fields.seeds]
        return Lookup(questions, lambda _, answers: _joined(answers))

    return lookup


def _joined(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One answer with a choice of each. Raises Broken."""
    try:
        choices = [{**answer["choices"][0], "index": index} for index, answer in enumerate(answers)]
        prompt = answers[0]["usage"]["prompt_tokens"]
        completion = sum(answer["usage"]["completion_tokens"] for answer in answers)
    except (KeyError, TypeError, IndexError) as error:
        raise Broken("The deployment's answer is no completion") from error
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**answers[0], "choices": choices, "usage": usage}


def reply(fields: Chat, body: bytes) -> Reply:
    """The whole answer: vLLM's, its reasoning under Friendli's name where it was asked for."""
    return Reply(_named(body) if fields.parse_reasoning else body)


def stream(fields: Chat) -> PassthroughStream:
    """The answer's chunks, likewise. The usage is told where it was asked for."""
    kind = _Reasoning if fields.parse_reasoning else PassthroughStream
    return kind(ENDING, hide_usage=not fields.shows_usage)


class _Reasoning(PassthroughStream):
    """A `PassthroughStream` that tells reasoning under Friendli's name."""

    def feed(self, chunk: bytes) -> bytes:
        return _named(super().feed(chunk))


def _named(answer: bytes) -> bytes:
    # Inside a JSON string the quotes of the key would be escaped.
    return answer.replace(b'"reasoning":', b'"reasoning_content":')
