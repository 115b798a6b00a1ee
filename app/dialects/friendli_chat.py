"""Friendli's chat: OpenAI's form with more fields. The answers are vLLM's own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from app.dialects.base import Lookup, Reply
from app.dialects.friendli_errors import error_frames
from app.dialects.friendli_fields import (
    GENERATION_RULES,
    MAX_STOP_STRINGS,
    Generation,
    Phrase,
    Rule,
    Strict,
    checked,
    obeyed,
)
from app.dialects.friendli_sampling import counts_up, sampling, seeded
from app.dialects.limits import folded
from app.dialects.relay import Ending, Relay
from app.errors import Broken
from app.sse import DONE

PATH = "/v1/chat/completions"

ENDING = Ending(is_terminal=lambda frames: frames.endswith(DONE), error_frames=error_frames)


class _Open(Strict):
    """The members that are looked at; the engine knows the others."""

    model_config = ConfigDict(extra="allow")


class Message(_Open):
    """One chat message."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class Function(_Open):
    """A function that the model may call."""

    name: str = Field(min_length=1)


class Tool(_Open):
    """One tool."""

    type: Literal["function"]
    function: Function


class Chat(Generation):
    """POST …/v1/chat/completions."""

    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)
    messages: list[Message] = Field(min_length=1)
    parallel_tool_calls: bool | None = None
    parse_reasoning: bool | None = None
    reasoning_budget: int | None = Field(default=None, ge=1)
    reasoning_effort: str | None = None
    stop: str | list[Phrase] = Field(default=[], max_length=MAX_STOP_STRINGS)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    tools: list[Tool] = Field(default=[])
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    @property
    def seeds(self) -> list[int]:
        """As the client gave them: none, one, or one for each choice."""
        return self.seed if isinstance(self.seed, list) else [self.seed]


# What goes on as it is.
_VLLMS = frozenset(
    "chat_template_kwargs frequency_penalty include_reasoning logit_bias logprobs max_completion_tokens max_tokens "
    "messages min_p min_tokens parallel_tool_calls presence_penalty reasoning_effort repetition_penalty stop stream "
    "tool_choice tools top_k top_logprobs top_p".split()
)

_RULES: Sequence[Rule[Chat]] = (
    ("top_logprobs", lambda f: f.top_logprobs is not None and not f.logprobs, "only allowed with logprobs"),
    (
        "max_completion_tokens",
        lambda f: f.max_completion_tokens is not None and f.max_tokens is not None,
        "cannot be given together with max_tokens",
    ),
    ("response_format", lambda f: f.is_formatted and bool(f.tools), "not supported with tools"),
    ("min_tokens", lambda f: bool(f.min_tokens and f.tools), "not supported with tools"),
    ("tool_choice", lambda f: f.tool_choice not in (None, "none", "auto") and not f.tools, "only allowed with tools"),
    ("seed", lambda f: f.stream and not _counts_up(f), "a list that does not count up by one cannot be streamed"),
    (
        "parse_reasoning",
        lambda f: f.parse_reasoning is False,
        "false is not supported: what the engine parses stays so",
    ),
)


def _counts_up(fields: Chat) -> bool:
    return not fields.seeds or counts_up(fields.seeds)


def read(body: Mapping[str, Any]) -> Chat:
    """The fields of a chat request. Raises BadRequest or Unprocessable, which name the field."""
    return obeyed(checked(body, Chat), [*GENERATION_RULES, *_RULES])


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
        questions = [(PATH, {**asked, "n": 1, "seed": folded(seed)}) for seed in fields.seeds]
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


def stream(fields: Chat) -> Relay:
    """The answer's chunks, likewise. The usage is told where it was asked for."""
    kind = _Reasoning if fields.parse_reasoning else Relay
    return kind(ENDING, hide_usage=not fields.shows_usage)


class _Reasoning(Relay):
    """A `Relay` that tells reasoning under Friendli's name."""

    def feed(self, chunk: bytes) -> bytes:
        return _named(super().feed(chunk))


def _named(answer: bytes) -> bytes:
    # Inside a JSON string the quotes of the key would be escaped.
    return answer.replace(b'"reasoning":', b'"reasoning_content":')
